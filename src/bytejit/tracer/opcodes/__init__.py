"""Handlers of opcodes, one each, by family."""
