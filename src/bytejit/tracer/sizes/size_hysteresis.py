"""Sizes that a trace takes for other than they are, and tensors that are new to a site.

A batch of 8 was seen, now it is 1: the size is known to change, so it is to be a symbol; but a symbol that is 1 when traced
soon becomes the constant 1 (it broadcasts, it is squeezed). So it is traced as 8, on a tensor whose size says 8, and the
entry holds for 1 too unless something asked for it. Then this call gets another trace, with the 1 as it is.

A tensor that no entry of the site has met (a mask that is given now and then) has no history. Where a size of it is one that
changes elsewhere among the inputs, it is taken to change with it.
"""

from __future__ import annotations

from typing import Any

from bytejit.guards.sources import Source, TensorSize
from bytejit.shapes.symbols import hint, is_symbolic
from bytejit.tracer.core.component import Component


class SizeHysteresis(Component):
    """The part of the tracer that decides with which sizes inputs are traced."""

    def start_varying(self) -> None:
        """Nothing is known to vary yet."""
        self.varying: set[int] = set()  # sizes now of what became symbols
        self.varying_shapes: dict[tuple, dict[int, int]] = {}  # shape now -> dimension that became a symbol: its hint

    def traced_sizes(self, shape: tuple, source: Source, fixed: Any) -> dict[int, int]:
        """The sizes that some dimensions of an input are traced with: {dimension: size}. It names dimensions that become
        symbols although the user did not mark them and they have not changed themselves, and dimensions whose size is 1 in
        this call."""
        d = self.t.sizes.dynamic
        if not d.changed:
            return {}
        new = source not in d.guarded
        like = self.varying_shapes.get(shape, {}) if new else {}
        found: dict[int, int] = {}
        for i, n in enumerate(shape):
            key = TensorSize(source, i)
            if i in fixed or key in d.static:
                continue
            if n == 1 and d.hysteresis:
                as_it_was = d.changed.get(key, 0) or like.get(i, 0)
                if as_it_was > 1:
                    found[i] = as_it_was
            elif n > 1 and new and n in self.varying:
                found[i] = n
        return found

    def note_varying(self, shape: tuple, sizes: list) -> None:
        """The sizes of a tensor from outside, some of which are symbols."""
        symbols = {i: hint(s) for i, s in enumerate(sizes) if is_symbolic(s)}
        self.varying.update(shape[i] for i in symbols if shape[i] > 1)
        self.varying_shapes.setdefault(tuple(shape), symbols)

    @property
    def in_use(self) -> bool:
        """Whether a size was traced with another value than it has."""
        return any(f.now is not None for f in self.t.sizes.symbols.values())

    def fits_call(self) -> bool:
        """Whether what the trace relies on, as far as it is known, holds for the sizes of this very call."""
        if not self.in_use:
            return True
        values = {f.value.node.e: f.real for f in self.t.sizes.symbols.values()}
        conditions = self.t.sizes.environment().conditions
        return all(relation.holds(values) for relation, _ in conditions if relation.symbols() <= values.keys())
