"""Graphs to kernels: ATen graph, loops, plan, text. Builds nothing."""
