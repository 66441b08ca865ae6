"""Sizes that are known at the call only: symbols, expressions over them, what is known of them."""
