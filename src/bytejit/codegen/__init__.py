"""From graphs to the text of kernels: ATen graph, loops, plan, text. Builds no binaries."""
