"""Tensors and torch's functions in a trace."""
