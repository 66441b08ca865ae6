"""Traced graph -> functional ATen graph, and passes over it."""
