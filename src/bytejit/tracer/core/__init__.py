"""Frames, values, the trace itself, and how a region is left."""
