"""For a GPU: how kernels are scheduled, and their Triton text."""
