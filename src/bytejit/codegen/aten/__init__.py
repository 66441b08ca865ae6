"""Traced graph -> functional ATen graph, and passes over it.

Offsets of `Alias` and of `as_strided` nodes count from the first element of what they view. A value that an output
exposes is no placeholder and no view, and belongs to one storage: where it was a view, a `clone` stands before it and
stays a copy. Calls that nothing reads are dropped, but for those that act: they draw random numbers, or return nothing
and may raise. `CannotNormalise`: the graph has no functional form here (a written input that overlaps another, `set_`).
It then runs through torch.
"""
