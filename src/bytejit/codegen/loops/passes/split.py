"""Splits axes where a reshape divides them, so that kernels on both sides of the reshape have the same axes.

Writer `b[d]` (d:768) and reader `b[64*h + e]` (h:12, e:64), or `b[d//64]`: d becomes (12, 64) in the writer and in
every kernel that has an axis along that dim of b. Splitting costs nothing: the schedule collapses axes that are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Loops
from bytejit.codegen.loops.simplify import Rewriter

Place = Any  # an axis name, or (buffer, dim)


class Cuts:
    """Classes of axes and buffer dims that are the same (a union-find structure), and the strides at which accesses divide
    them."""

    def __init__(self) -> None:
        self.parent: dict[Place, Place] = {}
        self.at: dict[Place, set[ix.Size]] = {}

    def find(self, p: Place) -> Place:
        """The class of a place."""
        root = p
        while (up := self.parent.get(root, root)) != root:
            root = up
        while (up := self.parent.get(p, p)) != root:
            self.parent[p], p = root, up
        return root

    def union(self, a: Place, b: Place) -> None:
        """Record that the two places are the same."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
            self.at[a] = self.at.pop(a, set()) | self.at.pop(b, set())

    def cut(self, p: Place, stride: ix.Size) -> None:
        """Record that some access divides a place at `stride` elements."""
        self.at.setdefault(self.find(p), set()).add(ix.size_of(stride))

    def factors(self, p: Place, size: Any) -> list[ix.Size] | None:
        """The sizes, slowest first, of the axes that an axis of `size` is split into; None: it stays whole."""
        strides = sorted((s for s in self.at.get(self.find(p), ()) if s != size and _may_cut(s, size)), key=ix.hint)
        if not strides:
            return None
        chain = [1, *strides, size]
        parts = [q for a, b in zip(chain, chain[1:]) if (q := ix.quotient(b, a)) is not None]
        return None if len(parts) < len(chain) - 1 or 1 in parts else parts[::-1]


def _may_cut(stride: ix.Size, size: ix.Size) -> bool:
    """Whether an axis may be divided at a stride: for constants 1 < stride < size."""
    if isinstance(stride, int) and isinstance(size, int):
        return 1 < stride < size
    return stride != 1 and ix.hint(stride) <= ix.hint(size)


def accesses(nests: Iterable[LoopNest]) -> Iterator[tuple[str, tuple]]:
    """Every (buffer, coordinates) that the nests store or load; ("", (index,)) for indices used as values."""
    for p in nests:
        for s in p.stores:
            yield s.buffer, s.coords
        for e in walk(p.roots()):
            if e.kind == "load":
                yield e.name, e.attr
            elif e.kind == "index":
                yield "", (e.attr,)


def radix(c: ix.Index, sizes: dict[str, Any]) -> list[ix.Size] | None:
    """Strides of a coordinate that is several axes in mixed radix (64*h + e with e:64); None when it is not."""
    terms = ix.axis_terms(c) if len(c.terms) > 1 else None
    if not terms or len(terms) < 2 or c.const or any(not ix.variables(ix.index(a)) for a, _ in c.terms):
        return None
    parts = sorted(((coefficient, sizes.get(name)) for name, coefficient in terms), key=lambda p: ix.hint(p[0]))
    step: ix.Size = 1
    for coefficient, size in parts:
        if coefficient != step or size is None:
            return None
        step = ix.size_of(step * size)
    return [s for s, _ in parts[1:]]


def find_cuts(loops: Loops, sizes: dict[str, Any]) -> Cuts:
    """Collect the cuts and unions that follow from each access."""
    cuts = Cuts()
    for k in loops.steps:
        if not isinstance(k, Kernel):
            continue
        for name, coords in accesses(k.nests):
            b = loops.buffers.get(name)
            for d, c in enumerate(coords):
                _coordinate(cuts, c, sizes, b, d)
    return cuts


def _coordinate(cuts: Cuts, c: ix.Index, sizes: dict[str, Any], b: Buffer | None, d: int) -> None:
    """Note where one coordinate divides an axis or a dimension. c: the coordinate, of dimension `d` of a buffer. b: the
    buffer, None if it is not one of the program's. An axis that runs over a whole dimension is cut wherever the dimension
    is. Divisions and remainders cut the axis that they divide."""
    if (axis := ix.only_axis(c)) is not None:
        if b is not None and b.kind in ("temp", "output") and sizes[axis] == b.shape[d]:
            cuts.union((b.name, d), axis)
        return
    if b is not None and b.kind in ("temp", "output") and (strides := radix(c, sizes)):
        for s in strides:
            cuts.cut((b.name, d), s)
    for a in ix.atoms(c):
        if type(a) not in (ix.Div, ix.Mod):
            continue
        x, step = a.parts[0], 1
        alone = x.terms[0][0] if len(x.terms) == 1 and not x.const and x.terms[0][1] == 1 else None
        if type(alone) is ix.Div:  # (axis // step) // n, or % n
            x, step = alone.parts
        axis = ix.only_axis(x)
        if axis is not None:
            cuts.cut(axis, step * a.parts[1])
            if step != 1:
                cuts.cut(axis, step)


def split_axes(loops: Loops) -> Loops:
    """The loops with every axis split as its class requires."""
    kernels = [k for k in loops.steps if isinstance(k, Kernel)]
    sizes = {a.name: a.size for k in kernels for p in k.nests for a in (*k.axes, *p.axes)}
    cuts = find_cuts(loops, sizes)
    if not any(cuts.at.values()):
        return loops
    parts: dict[str, list[Axis]] = {}
    for k in kernels:
        for a in {a.name: a for p in k.nests for a in (*k.axes, *p.axes)}.values():
            factors = cuts.factors(a.name, a.size) if a.kind != "scan" else None
            if factors:
                parts[a.name] = [Axis(f"{a.name}_{i}", f, a.kind) for i, f in enumerate(factors)]
    for new in parts.values():
        sizes.update((a.name, a.size) for a in new)
    steps = tuple(_split(k, parts, sizes, loops) if isinstance(k, Kernel) else k for k in loops.steps)
    return replace(loops, steps=steps)


def _split(k: Kernel, parts: dict[str, list[Axis]], sizes: dict[str, Any], loops: Loops) -> Kernel:
    """Returns a kernel with its axes replaced by their parts."""
    own = {a.name for p in k.nests for a in (*k.axes, *p.axes)} & set(parts)
    if not own:
        return k
    names = {}
    for name in own:
        flat = ix.ZERO
        for a in parts[name]:
            flat = flat * a.size + ix.var(a.name)
        names[name] = flat
    rewrite = Rewriter(loops.cons, sizes, names)

    def cut(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(n for a in axes for n in (parts[a.name] if a.name in own else (a,)))

    return replace(k, axes=cut(k.axes), nests=tuple(rewrite.body(p, cut(p.axes)) for p in k.nests))
