"""The axes of a kernel on its way into a plan, alike for every target: offsets instead of coordinates, fewer axes, names, and
which axis is innermost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest
from bytejit.codegen.loops.simplify import Rewriter, axes_below, known, points


# ---- offsets, and fewer axes -----------------------------------------------------------------------------------------
def flatten(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> Kernel:
    """The kernel with one coordinate for each load and store: the offset in elements."""
    sizes = {a.name: a.size for p in k.nests for a in (*k.axes, *p.axes)}

    def at(name: str, coords: tuple) -> tuple:
        return (ix.resimplify(ix.linear(coords, buffers[name].stride), sizes),)

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr:
        return cons.load(e.name, at(e.name, coords), e.dtype, mask, e.where)

    rewrite = Rewriter(cons, sizes, None, on_load)
    nests = []
    for p in k.nests:
        p = rewrite.body(p)
        nests.append(replace(p, stores=tuple(replace(s, coords=at(s.buffer, s.coords)) for s in p.stores)))
    return replace(k, nests=tuple(nests))


def indices(p: LoopNest) -> set[ix.Index]:
    """Every index in a nest: offsets of loads and stores, indices used as values."""
    found = {c for s in p.stores for c in s.coords}
    for e in walk(p.roots()):
        if e.kind == "load":
            found.update(e.attr)
        elif e.kind == "index":
            found.add(e.attr)
    return found


def pair(axes: tuple[Axis, ...], used: set[ix.Index]) -> tuple[Axis, Axis] | None:
    """Two axes (slow, fast) that can be collapsed: in every index they form one longer axis. None when there are none."""
    for y in axes:
        for x in axes:
            if x is y or x.kind != y.kind or x.kind == "scan":
                continue
            if all(i.coefficient(x.name) == i.coefficient(y.name) * y.size for i in used):
                if not any(i.within_atoms(a.name) for i in used for a in (x, y)):
                    return x, y
    return None


def collapse(k: Kernel, cons: Cons) -> Kernel:
    """The kernel with axes collapsed where all its offsets allow it: outer axes over all nests, inner ones within each nest."""
    while True:
        found = pair(k.axes, set().union(*map(indices, k.nests)))
        if found is None:
            break
        x, y = found
        k = replace(
            k,
            axes=tuple(replace(a, size=ix.size_of(x.size * y.size)) if a is y else a for a in k.axes if a is not x),
            nests=tuple(without(p, x, cons) for p in k.nests),
        )
    nests = []
    for p in k.nests:
        while (found := pair(p.axes, indices(p))) is not None:
            x, y = found
            axes = tuple(replace(a, size=ix.size_of(x.size * y.size)) if a is y else a for a in p.axes if a is not x)
            p = without(replace(p, axes=axes), x, cons)
        nests.append(p)
    return replace(k, nests=tuple(nests))


def without(p: LoopNest, x: Axis, cons: Cons) -> LoopNest:
    """The nest without index terms in x: after the collapse the terms of the other axis cover them."""
    return Rewriter(cons, {}, {x.name: ix.ZERO}).body(p)


def rename(k: Kernel, cons: Cons) -> Kernel:
    """The kernel with outer axes i0, i1, ..., inner axes j0, j1, ... and reductions m0, m1, ...: equal kernels get equal text.

    A name has one size in the whole kernel: nests share a name only for axes of the same size.
    """
    outer = {a.name: f"i{n}" for n, a in enumerate(k.axes)}
    refs: dict[str, str] = {}
    for p in k.nests:
        for r in p.reduces:
            refs.setdefault(r.name, f"m{len(refs)}")
    nests: list[LoopNest] = []
    sizes: dict[str, ix.Size] = {}
    for p in k.nests:
        names = outer | inner_names(p, sizes)
        body = Rewriter(cons, {}, {a: ix.var(n) for a, n in names.items()}, refs=refs).body(p)
        nests.append(replace(body, axes=tuple(replace(a, name=names[a.name]) for a in p.axes)))
    return replace(k, axes=tuple(replace(a, name=outer[a.name]) for a in k.axes), nests=tuple(nests))


def inner_names(p: LoopNest, sizes: dict[str, ix.Size]) -> dict[str, str]:
    """Names for a nest's own axes: j0, j1, ..., without those that have another size in `sizes`, to which they are added."""
    names: dict[str, str] = {}
    for a in p.axes:
        n = 0
        while f"j{n}" in names.values() or sizes.get(f"j{n}", a.size) != a.size:
            n += 1
        names[a.name] = f"j{n}"
        sizes[f"j{n}"] = a.size
    return names


# ---- order ------------------------------------------------------------------------------------------------------------
def votes(p: LoopNest, names: set[str]) -> dict[str, int]:
    """Axis -> how well the nest's accesses suit it as the innermost: accesses of stride 1 count for it, others against it, stores
    twice. Only accesses that depend on the most axes count, and those at indices read from memory: vectors of channel parameters
    are small beside an image."""
    found = dict.fromkeys(sorted(names), 0)
    accesses = [(s.coords[0], 2) for s in p.stores] + [(e.attr[0], 1) for e in p.loads]
    widest = max((len(ix.variables(at) & names) for at, _ in accesses), default=0)
    for at, weight in accesses:
        values = list(ix.values_in(at))
        used = names & ix.variables(at).union(*map(axes_below, values))
        if not values and len(used) < widest:
            continue
        for name in found:
            c = at.coefficient(name)
            found[name] += 4 * weight if c == 1 else 0
            if c != 1 and name in used:
                found[name] -= weight
    return found


def best_axis(p: LoopNest, axes: tuple[Axis, ...]) -> str | None:
    """The best innermost axis by `votes`; among equals that of the smallest strides. None without axes."""
    if not axes:
        return None
    score = votes(p, {a.name for a in axes})
    return max(reversed(by_stride(axes, p)), key=lambda a: score[a.name]).name


def by_stride(axes: tuple[Axis, ...], p: LoopNest) -> list[Axis]:
    """Axes with the largest stride first: of the nest's stores, else of its loads."""
    accesses = [s.coords[0] for s in p.stores] or [e.attr[0] for e in p.loads]
    return sorted(axes, key=lambda a: -max((abs(ix.hint(c.coefficient(a.name))) for c in accesses), default=0))


def order_pointwise(k: Kernel, least: int) -> Kernel:
    """A kernel without inner axes: the axis of stride 1 becomes the nest's, with another one when the kernel transposes. least:
    as in `transposed`."""
    p = k.nests[0]
    if not k.axes:
        return k
    inner = best_axis(p, k.axes)
    axes = by_stride(k.axes, p)
    own = [a for a in axes if a.name == inner]
    other = None if inner is None else transposed(p, k.axes, inner, least)
    if other is not None:
        own = [a for a in axes if a.name == other] + own
    return replace(k, axes=tuple(a for a in axes if a not in own), nests=(replace(p, axes=tuple(own)),))


def transposed(p: LoopNest, axes: tuple[Axis, ...], inner: str, least: int) -> str | None:
    """An axis along which some load has stride 1 that has a larger stride along `inner`; both have at least `least` elements.
    None when there is none."""
    sizes = {a.name: points([a]) if known([a]) else max(least, points([a])) for a in axes}
    for e in p.loads:
        if abs(ix.hint(e.attr[0].coefficient(inner))) > 1:
            for a in axes:
                if a.name != inner and e.attr[0].coefficient(a.name) == 1 and min(sizes[a.name], sizes[inner]) >= least:
                    return a.name
    return None


def order_rows(k: Kernel) -> Kernel:
    """A kernel of nests: an outer axis of stride 1 (columns) comes last; in a nest the axes of the largest strides come first."""
    column = column_axis(k)
    axes = [a for a in k.axes if a.name != column] + [a for a in k.axes if a.name == column]
    nests = []
    for p in k.nests:
        inner = best_axis(p, p.axes)
        rest = tuple(a for a in p.axes if a.name != inner)
        scans = any(a.kind == "scan" for a in p.axes)
        nests.append(p if scans else replace(p, axes=(*by_stride(rest, p), *(a for a in p.axes if a.name == inner))))
    return replace(k, axes=tuple(axes), nests=tuple(nests))


def column_axis(k: Kernel) -> str | None:
    """The outer axis that suits the accesses of the nests better as the innermost than the nests' own axes do, each as often as
    there are points in a row; else None."""
    total: dict[str, int] = {}
    inner = 0
    for p in k.nests:
        if p.axes:
            score, times = votes(p, {a.name for a in (*k.axes, *p.axes)}), points(p.axes)
            for a in k.axes:
                total[a.name] = total.get(a.name, 0) + times * score[a.name]
            inner += times * max(score[a.name] for a in p.axes)
    sizes = {a.name: points([a]) for a in k.axes}
    good = [n for n, s in total.items() if s > max(0, inner) and sizes[n] >= 4]
    return max(good, key=lambda n: total[n]) if good else None
