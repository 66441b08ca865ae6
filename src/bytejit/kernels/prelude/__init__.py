"""What generated kernels include: C++ headers, and Triton functions with their numpy form for the interpreter."""
