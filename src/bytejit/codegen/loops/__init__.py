"""The loop IR (`ir.py`): lowering to it, its text, checks, index algebra, memory planning; `passes/` fuses kernels."""
