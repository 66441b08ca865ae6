"""For the CPU: how kernels are scheduled, and their C++ text."""
