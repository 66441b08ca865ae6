"""The values of a square mask that loops compute from nothing but their coordinates.

Each element is followed from the mask back through the loops that made it. A whole number becomes an index over the mask's
coordinates: of `arange`, and what is added, gathered or put side by side. Other values are known as two: that where the key
does not lie behind the query, and that where it does. So `k <= q` is (True, False), for all sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import DTYPES

from . import index as ix
from .expr import Expr
from .index import Index
from .ir import Kernel, LoopNest, Loops, Store

MOST = 2000  # expressions that are looked at: a mask of transformers takes some hundred
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


class Halves(NamedTuple):
    """A value in both halves of a mask: for keys up to the query, and for keys behind it. None: it differs within that
    half."""

    upto: Any
    behind: Any


class Unknown(Exception):
    """A value that is neither an index nor two values."""


def mask_values(loops: Loops) -> Halves | None:
    """The values of the first output, a tensor whose last two coordinates are a query and a key; None where they depend on an
    input or are more than two."""
    view = loops.outputs[0].view
    stores = [(k, p, s) for k in loops.steps if isinstance(k, Kernel) for p in k.nests for s in p.stores]
    in_part = {s.buffer for _, _, s in stores if s.over or s.mask is not None or s.mode != "set"}
    writers = {at[-1].buffer: at for at in stores if at[-1].buffer not in in_part}
    if view is None or view.buffer not in writers:
        return None
    kernel, nest, store = writers[view.buffer]
    try:
        sizes = {a.name: a.size for a in (*kernel.axes, *nest.axes)}
        found = _Mask(writers, sizes, *map(ix.index, store.coords[-2:])).value(
            store.value, {name: ix.var(name) for name in sizes}
        )
    except (Unknown, ix.Undecided):
        return None
    return found if isinstance(found, Halves) else None


class _Mask:
    """writers: buffer -> what stores all of it; sizes: of the mask's axes; query, key: its coordinates."""

    def __init__(
        self, writers: dict[str, tuple[Kernel, LoopNest, Store]], sizes: dict[str, Any], query: Index, key: Index
    ) -> None:
        self.writers, self.sizes, self.ahead = writers, sizes, key - query
        self.left = MOST
        self.holds: list[Index] = []  # what is known to be 0 or less where the present value is used
        self.nest: LoopNest | None = None  # in which it is computed

    def value(self, e: Expr, at: dict[str, Index]) -> Index | Halves:
        """An expression's value. at: its axes, over those of the mask. Raises: Unknown."""
        self.left -= 1
        if self.left < 0:
            raise Unknown
        if e.kind == "const":
            return ix.index(e.attr) if e.dtype == "i64" else Halves(e.attr, e.attr)
        if e.kind == "index":
            return self.place(e.attr, at)
        if e.kind == "load":
            return self.load(e, at)
        if e.kind == "ref":
            return self.scan(e, at)
        if e.name == "select":
            return self.select(e, at)
        values = [self.value(x, at) for x in e.args]
        if all(isinstance(v, Index) for v in values):
            return self.of_indices(e, values)
        if any(isinstance(v, Index) and v.terms for v in values):
            raise Unknown
        upto, behind = zip(*(Halves(v.const, v.const) if isinstance(v, Index) else v for v in values))
        return _as_index(e, Halves(_computed(e, upto), _computed(e, behind)))

    # ---- whole numbers --------------------------------------------------------------------------------------------
    def place(self, x: Any, at: dict[str, Index]) -> Index:
        """An index over the mask's axes."""
        total = ix.index(ix.index(x).const)
        for atom, c in ix.index(x).terms:
            if type(atom) is ix.Val:
                one = self.value(atom.parts[0], at)
                if not isinstance(one, Index):
                    raise Unknown
            else:
                one = ix.substitute(ix.Index(((atom, 1),), 0), at, self.sizes)
            total = total + one * c
        return total

    def of_indices(self, e: Expr, values: list[Any]) -> Index | Halves:
        """An operation on whole numbers."""
        if e.name in ("add", "sub"):
            return values[0] + values[1] if e.name == "add" else values[0] - values[1]
        if e.name in COMPARED:
            return self.compared(e.name, *values)
        if e.name == "to" and e.dtype == "i64":
            return values[0]
        if e.name == "bound":
            i, size = values
            own = [name for name in self.sizes if i == ix.var(name)]
            if ix.bounds(i, self.sizes)[0] >= 0 and (own and self.sizes[own[0]] == ix.size_of(size) or self.never(size - i)):
                return i
            raise Unknown
        if any(v.terms for v in values):
            raise Unknown
        result = _computed(e, tuple(v.const for v in values))
        return _as_index(e, Halves(result, result))

    def never(self, x: Index) -> bool:
        """Whether an index is always above 0."""
        return ix.bounds(x, self.sizes)[0] > 0

    def compared(self, name: str, first: Index, second: Index) -> Halves:
        """Where one whole number is compared with another."""
        if name in ("eq", "ne"):
            if self.never(first - second) or self.never(second - first):
                return Halves(name == "ne", name == "ne")
            return Halves(name == "eq", name == "eq") if first == second else Halves(None, None)
        x = _question(name, first, second)
        if ix.bounds(x, self.sizes)[1] <= 0 or x in self.holds:
            return Halves(True, True)
        if self.never(x) or 1 - x in self.holds:
            return Halves(False, False)
        return Halves(True, False) if x == self.ahead else Halves(False, True) if x == 1 - self.ahead else Halves(None, None)

    # ---- what other loops stored ----------------------------------------------------------------------------------
    def load(self, e: Expr, at: dict[str, Index]) -> Index | Halves:
        """An element that another kernel stored."""
        if e.mask is not None and self.value(e.mask, at) != Halves(True, True) or e.name not in self.writers:
            raise Unknown
        kernel, nest, store = self.writers[e.name]
        there: dict[str, Index] = {}
        for own, given in zip(store.coords, e.attr, strict=True):
            terms = ix.index(own).terms
            if not terms and ix.index(own).const == 0:
                continue
            ((atom, c),) = terms if len(terms) == 1 else ((None, 0),)
            if type(atom) is not ix.AxisVar or c != 1 or ix.index(own).const:
                raise Unknown
            there[atom.parts[0]] = self.place(given, at)
        before, self.nest = self.nest, nest
        found = self.value(store.value, there)
        self.nest = before
        return found

    def scan(self, e: Expr, at: dict[str, Index]) -> Index:
        """A running sum of zeros."""
        for r in self.nest.reduces if self.nest is not None else ():
            if r.name == e.name and r.kind == "sum" and r.running and self.value(r.args[0], at) == ix.index(0):
                return ix.index(0)
        raise Unknown

    def select(self, e: Expr, at: dict[str, Index]) -> Index | Halves:
        """A choice. Where one side is for coordinate 0 only, and the other's index goes on to it, it is that index."""
        condition = self.value(e.args[0], at)
        if not isinstance(condition, Halves):
            raise Unknown
        if None not in condition:
            sides = [self.value(e.args[1 if c else 2], at) for c in dict.fromkeys(condition)]
            if len(sides) == 1:
                return sides[0]
            if any(isinstance(side, Index) and side.terms for side in sides):
                raise Unknown
            parts = [Halves(s.const, s.const) if isinstance(s, Index) else s for s in sides]
            return Halves(parts[0].upto, parts[1].behind)
        compared = e.args[0]
        if compared.kind != "op" or compared.name not in ("lt", "le", "gt", "ge"):
            raise Unknown
        x = _question(compared.name, *(self.place_of(a, at) for a in compared.args))
        axis = next((n for n in self.sizes if x == ix.var(n)), None)
        if axis is None:
            raise Unknown
        zero = {axis: ix.index(0)}
        first = self.value(e.args[1], {k: ix.substitute(v, zero, self.sizes) for k, v in at.items()})
        self.holds.append(1 - x)
        other = self.value(e.args[2], at)
        self.holds.pop()
        if not isinstance(other, Index) or ix.substitute(other, zero, self.sizes) != first:
            raise Unknown
        return other

    def place_of(self, e: Expr, at: dict[str, Index]) -> Index:
        """The value of an expression of whole numbers."""
        found = self.value(e, at)
        if not isinstance(found, Index):
            raise Unknown
        return found


def _question(name: str, first: Index, second: Index) -> Index:
    """What is 0 or less where a comparison holds."""
    x = first - second if name in ("lt", "le") else second - first
    return x + 1 if name in ("lt", "gt") else x


def _as_index(e: Expr, found: Halves) -> Index | Halves:
    """A whole number that is the same everywhere, as an index."""
    return ix.index(found.upto) if e.dtype == "i64" and found.upto is not None and found.upto == found.behind else found


def _computed(e: Expr, values: tuple) -> Any:
    """An op on numbers; None where one is not known."""
    if any(v is None for v in values):
        return None
    found = applied(e, [torch.tensor(v, dtype=DTYPES[x.dtype].torch) for v, x in zip(values, e.args)])
    return None if found is None else found.item()


def applied(e: Expr, args: list[torch.Tensor]) -> torch.Tensor | None:
    """An op's result for tensors in the place of its operands; None where it has no formula."""
    row = table().by_name[e.name]
    if e.name not in ("to", "narrow") and row.ref is None:
        return None
    return (args[0] if row.ref is None else row.ref(*args)).to(DTYPES[e.dtype].torch)
