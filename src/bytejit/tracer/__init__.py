"""Symbolic evaluation of bytecode: values, opcodes, objects, calls."""
