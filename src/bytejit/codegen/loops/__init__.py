"""The loop IR, index algebra, lowering, checks, memory."""
