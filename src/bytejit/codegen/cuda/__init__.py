"""Schedule and Triton text."""
