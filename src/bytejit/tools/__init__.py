"""Tools for people: the accuracy mode, minify, reports as HTML, benchmarks."""
