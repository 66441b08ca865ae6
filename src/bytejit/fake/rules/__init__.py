"""What ops return, by family."""
