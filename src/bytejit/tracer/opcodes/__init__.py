"""One handler an opcode, by family."""
