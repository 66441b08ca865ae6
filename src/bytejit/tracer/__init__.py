"""Symbolic evaluation of bytecode, from a resume point to an exit: values, opcodes, objects, calls.

Known values are real objects with a source. Tensors are FX proxies with a fake. Containers, instances, functions, iterators
and generators that are made or changed inside are modelled. Functions are inlined by a new frame; built-in functions that
call back or iterate are Python polyfills, which are inlined too.

Some nodes of a graph are no operations of torch: entering and leaving inference mode, an autograd function under gradients, a
part under torch's checkpoint, `set_data`. `GraphCall.opaque` says which run through torch, but for checkpointed
parts and autograd functions whose backward was traced, which a backend may record (`codegen/aten/checkpointed_parts.py`,
`codegen/aten/applied_functions.py`).
"""
