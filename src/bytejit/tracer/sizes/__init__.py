"""Sizes and numbers of a trace that are symbols.

**In the graph.** A symbol is a placeholder `s0` with a SymInt as meta["val"], before the first placeholder or node that needs
it, and is fed with an int. Arithmetic on sizes that an operation takes is a call node, one for each expression; so the graph
runs as it is for every size. Fakes have SymInts as sizes, strides and offsets.

**Which become symbols.** `mark_dynamic` and `mark_static` come first. With `dynamic=None` it is what a guard of an entry at
this site found changed: a size, a stride, an int or a float, or a size whose condition failed. With `dynamic=True`: all sizes
but those of parameters and buffers, and all ints and floats among the live values. Bools stay constants. Every dimension has
a symbol of its own; two become one where an operation needs them equal. Strides are products of sizes where they were so when
traced, else constants. A marked size that can only be one value is an error, `ConstraintViolation`.

**Operations that refuse symbols** (a meta kernel, a C function) get constants. Such a call is first made again with torch's
Python decompositions; where that fails too, the region is traced again with these sizes static (`Specialise`).
`node.meta["manner"]` says how a call was inferred: who infers it again does so under `symbols.manner_of(node)`.

**Handlers that know nothing of symbols** read `SymVar.obj`, an int, and have thereby made the size a constant. So a handler is
right without a line about symbols; one that passes them on says so.
"""
