"""Strides of dimensions of size 1: they place nothing, so guards leave them out, until the program asks for strides.

`cache[:, :n]` of one row has another stride of that row for each length of the cache, and nothing else differs. Results
of a trace may have other strides there than eager's; where the program itself reads strides of a tensor, all strides of
the inputs are guarded, and one that changes becomes a symbol.
"""

from __future__ import annotations

import operator

from bytejit.guards.guard_set import GuardSet
from bytejit.guards.sources import Source
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.values import TensorVar

READERS = frozenset({"stride", "dim_order"})  # methods whose result holds strides of dimensions of size 1


class UnitStrides(Component):
    """The part of the tracer that knows whether strides of dimensions of size 1 matter."""

    def start_unit_strides(self) -> None:
        """No stride was read yet."""
        self.strides_read = False

    def note_strides_read(self) -> None:
        """The program has asked for strides. Symbolic sizes of inputs are no longer 1: the strides hold for larger ones."""
        self.strides_read = True
        for shape, _ in self.t.sizes.fake_sizes.values():
            for size in filter(is_symbolic, shape):
                operator.truth(size >= 2)

    def without_unit_strides(self, shape: tuple, stride: tuple) -> tuple:
        """Strides as a guard has them: None, not checked, where the size is 1."""
        return tuple(None if n == 1 else s for n, s in zip(shape, stride, strict=True))

    def guard_unit_strides(self, guards: GuardSet) -> None:
        """Guard those strides too, where strides were read. Once, when the trace is done."""
        if not self.strides_read:
            return
        tensors: dict[Source, TensorVar] = {v.origin: v for v in self.t.inputs if isinstance(v, TensorVar)}
        for source, v in tensors.items():
            open_strides = {i for i, s in enumerate(self.t.sizes.fake_sizes.get(source, ((), ()))[1]) if is_symbolic(s)}
            for g in guards.on(source):
                if g.kind == "TENSOR":
                    stride = tuple(
                        now if was is None and n == 1 and i not in open_strides else was
                        for i, (n, was, now) in enumerate(zip(g.value.shape, g.value.stride, v.real.stride(), strict=True))
                    )
                    guards.replace(g, g.value.with_sizes(g.value.shape, stride))
