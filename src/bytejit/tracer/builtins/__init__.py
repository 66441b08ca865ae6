"""Models of Python's built-in types and functions."""
