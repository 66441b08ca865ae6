"""Unrolls reductions of few elements, so that the loop around them can be vectorized.

    for i: m = 0; for r:3: m += x[3*i + r] ** 2; o[i] = sqrt(m)      ->      for i: o[i] = sqrt(x[3*i] ** 2 + ... + x[3*i+2] ** 2)

A loop of three steps is no vector code, and neither is what follows it at each point: the distance of two points in space, for
example. And computes the few points of an outer axis together, where they share costly work in long rows:

    for i, c:3: m = 0; for j: m += d[i,j,c] * x[i,j] ** -1.5; o[i,c] = m
    ->  for i: m0 = m1 = m2 = 0; for j: y = x[i,j] ** -1.5, m0 += d[i,j,0] * y, ...; o[i,0] = m0, ...
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Reduce, Store
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.simplify import Rewriter, axes_below, known, own_cost, points, walk, work
from bytejit.common.dtypes import FLOATS, NARROW

SHORT = 8  # elements of a row, at most
STORES = 4  # of a row, at most: GCC vectorizes no loop that stores more elements side by side
MOST = 192  # additions and loads of an unrolled kernel, at most
ROWS = 64  # so many rows, at least, make a vectorized loop
LONG = 16  # elements of a row, at least, that make its loop vector code
FEW = 4  # points of an outer axis that are computed together, at most
COSTLY = 8  # additions that they share, at least
OPS = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}


def unrolled(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> Kernel:
    """The kernel with reductions of few elements as expressions: one nest without axes; k itself where that does not pay."""
    if flexible(k) or points(k.axes) < ROWS or not all(map(is_short, k.nests)):
        return k
    if sum(points(p.axes) * work(p.roots()) for p in k.nests) > MOST:
        return k
    kept = [sum(buffers[s.buffer].kind != "local" for s in p.stores) for p in k.nests]
    if sum(points(p.axes) * n for p, n in zip(k.nests, kept)) > STORES:
        return k
    unrolling = Unrolling(k, buffers, cons)
    nest = unrolling.nest()
    return replace(k, nests=(nest,)) if unrolling.complete else k


def together(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> Kernel:
    """The kernel with the few points of an outer axis in each row; k itself where they share no costly work in long rows."""
    local = any(buffers[e.name].kind == "local" for e in k.loads)
    plain = all(r.kind in OPS and not r.running for p in k.nests for r in p.reduces)
    if local or not plain or not any(p.reduces and points(p.axes) >= LONG for p in k.nests):
        return k
    total = sum(work(p.roots()) for p in k.nests)
    for a in k.axes:
        if a.kind == "parallel" and isinstance(a.size, int) and 1 < a.size <= FEW and a.size * total <= MOST and shares(k, a):
            return replace(k, axes=tuple(b for b in k.axes if b is not a), nests=tuple(spread(p, a, k, cons) for p in k.nests))
    return k


def shares(k: Kernel, a: Axis) -> bool:
    """Whether the nests compute something costly for each of their points, which is the same for all points of an outer axis."""
    found = 0
    for p in k.nests:
        own = {b.name for b in p.axes}
        for e in walk(p.roots()) if p.axes else ():
            if e.kind == "op" and own_cost(e) > 1 and own <= (below := axes_below(e)) and a.name not in below:
                found += own_cost(e)
    return found >= COSTLY


def spread(p: LoopNest, a: Axis, k: Kernel, cons: Cons) -> LoopNest:
    """A nest that computes all points of an outer axis at each of its own."""
    sizes = {b.name: b.size for q in k.nests for b in (*k.axes, *q.axes)}
    names = [r.name for q in k.nests for r in q.reduces]
    made = LoopNest(p.axes, ())
    for n in range(a.size):
        refs = {name: f"{name}_{n}" for name in names}
        made = made.joined(Rewriter(cons, sizes, {a.name: ix.index(n)}, refs=refs).body(p), p.axes)
    return made


class Unrolling:
    """A kernel while it is unrolled. results: reduction -> its result; stored: element that an earlier nest stored -> its value;
    complete: whether all that later nests read of what earlier ones stored is known."""

    def __init__(self, k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> None:
        self.kernel, self.buffers, self.cons = k, buffers, cons
        self.sizes = {a.name: a.size for a in k.axes}
        self.results: dict[str, str | Expr] = {}
        self.stored: dict[tuple, Expr] = {}
        self.written: set[str] = set()
        self.complete = True

    def nest(self) -> LoopNest:
        """What all nests compute at a point of the kernel's axes."""
        stores: list[Store] = []
        for p in self.kernel.nests:
            values: list[list[Expr]] = []
            made: list[Store] = []
            for place in itertools.product(*(range(a.size) for a in p.axes)):
                axes = {a.name: ix.index(n) for a, n in zip(p.axes, place)}
                at = Rewriter(self.cons, self.sizes, axes, self.loaded, refs=dict(self.results))
                made += [at.store(s) for s in p.stores]
                values.append([at(r.args[0]) for r in p.reduces])
            self.results.update((r.name, self.combined(r, [v[n] for v in values])) for n, r in enumerate(p.reduces))
            for s in made:
                self.store(s)
            stores += [s for s in made if self.buffers[s.buffer].kind != "local"]
        return LoopNest((), tuple(stores))

    def combined(self, r: Reduce, elements: list[Expr]) -> Expr:
        """A reduction of elements, in order. A sum of zeros is 0.0, as one that begins with it is, also of -0.0."""
        found = functools.reduce(lambda a, b: self.cons.op(OPS[r.kind], (a, b), r.dtype, r.where), elements)
        if r.kind != "sum" or r.dtype not in FLOATS:
            return found
        return self.cons.op("add", (found, self.cons.const(0.0, r.dtype)), r.dtype, r.where)

    def store(self, s: Store) -> None:
        """Keep what later nests read of a store, in the dtype of its buffer."""
        dtype = self.buffers[s.buffer].dtype
        self.written.add(s.buffer)
        if s.mask is None and s.mode == "set":
            value = s.value if s.value.dtype == dtype else self.cons.op("to", (s.value,), dtype, s.where)
            self.stored[s.buffer, s.coords] = value
        else:  # nothing is known of the buffer
            self.stored = {at: value for at, value in self.stored.items() if at[0] != s.buffer}

    def loaded(self, e: Expr, coords: tuple, mask: Expr | None) -> Expr | None:
        """The value of an element that an earlier nest stored; None for loads of other memory."""
        if e.name not in self.written:
            return None
        zero = self.cons.const(0, e.dtype)
        if mask is not None and mask.kind == "const":
            mask = None if mask.attr else mask
        value = self.stored.get((e.name, coords), zero)
        self.complete &= (e.name, coords) in self.stored or mask is not None and mask.kind == "const"
        self.complete &= mask is None or e.dtype not in NARROW
        return value if mask is None else self.cons.op("select", (mask, value, zero), e.dtype, e.where)


def is_short(p: LoopNest) -> bool:
    """Whether a nest has few points, and only reductions that an op on two operands combines."""
    if any(r.running or r.kind not in OPS or r.dtype == "b8" or r.args[0].dtype != r.dtype for r in p.reduces):
        return False
    return known(p.axes) and 0 < points(p.axes) <= SHORT and not any(a.kind == "scan" for a in p.axes)
