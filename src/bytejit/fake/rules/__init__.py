"""Shape rules of ops, by family."""
