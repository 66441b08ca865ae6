"""Sizes and numbers of a trace that are symbols."""
