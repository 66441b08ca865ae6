"""What printers of all devices share, and the Python function that calls the kernels."""
