"""One op, one row, by family."""
