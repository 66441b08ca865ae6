"""Passes that make fewer and larger kernels."""
