"""Tools for users: the accuracy mode, minify, reports as HTML, benchmarks."""
