"""Divides loops where comparisons of an axis with numbers change, so that each range has neither masks nor choices.

    o[i] = a[i] if i < 32 else b[i - 32] if i < 64 else ...      ->      o[i] = a[i] for i:32, o[i + 32] = b[i] for i:32, ...

Without it every part of a concatenation is read, under a mask, for every element. An axis around others gets a kernel for each
range, or, where rows are short, a nest; the innermost a nest. Nests of one kernel write a row from its beginning to its end: a
kernel for each part would go through the memory of the result once for each part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest
from bytejit.codegen.loops.kernel_axes import best_axis, flatten, transposed
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.simplify import Rewriter, kernel_roots, known, points, work

MANY = 4  # with at least so many parts, a loop for each costs less than masks
LONG = 1 << 15  # elements from which on that holds of two parts, too
SHARE = 8  # if none is less than 1/SHARE of the whole, as the borders of an image are
FEW = 8  # ranges, at most, of an innermost loop
ROW = 16  # elements: with a range of at least so many an innermost loop is divided
ROWS = 16  # rows, at least, that threads share
ROW_LENGTH = 1 << 14  # elements: parts of longer rows are kernels of their own
TURNED = 8  # elements along both axes of a transposition, at least
NESTS = 16  # parts of a row, at most
MOST = 512  # additions and loads of all ranges of an innermost loop
#: (comparison, axis, function from a value of the axis to the result, values of the axis at which the result changes)
Test = tuple[Expr, str, Callable[[int], bool], list[int]]
TRUE = {"lt": int.__lt__, "ge": int.__ge__, "le": int.__le__, "gt": int.__gt__, "eq": int.__eq__, "ne": int.__ne__}


def in_ranges(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> list[Kernel]:
    """Kernels that together do what k does; k alone where no axis has many parts."""
    sizes = {a.name: a.size for a in k.axes if a.kind == "parallel" and isinstance(a.size, int)}
    if not flexible(k) or k.nests[0].stores[1:]:
        return [k]
    tests = list(comparisons(kernel_roots(k), sizes))
    axis, ranges = most_ranges(tests, sizes)
    if not pays(k, [high - low for low, high in ranges]):
        return [k]
    own = [(e, holds) for e, a, holds, _ in tests if a == axis]
    parts = [
        replace(
            k,
            axes=tuple(replace(a, size=high - low) if a.name == axis else a for a in k.axes),
            nests=(part(k.nests[0], sizes, cons, axis, low, high, own),),
        )
        for low, high in ranges
    ]
    rows = row_axes(k, parts, axis, buffers, cons)
    return [in_rows(parts, rows, axis, cons)] if rows else parts


def row_axes(k: Kernel, parts: list[Kernel], axis: str, buffers: dict[str, Buffer], cons: Cons) -> tuple[Axis, ...]:
    """The axes around the one that is divided, where all parts are best written row by row; none where they are not."""
    store = k.nests[0].stores[0]
    at = ix.linear(store.coords, buffers[store.buffer].stride)
    steps = {a.name: ix.hint(at.coefficient(a.name)) for a in k.axes}
    rows = tuple(a for a in k.axes if steps[a.name] > steps[axis])
    length = points(k.axes) // max(1, points(rows))
    if not ROW <= length <= ROW_LENGTH or points(rows) < ROWS or len(parts) > NESTS or not known(k.axes):
        return ()
    outer = {a.name for a in rows}
    for one in parts:
        p = flatten(one, buffers, cons).nests[0]
        inner = best_axis(p, one.axes)
        if inner is None or inner in outer or transposed(p, one.axes, inner, TURNED) in outer:
            return ()
    return rows


def in_rows(parts: list[Kernel], rows: tuple[Axis, ...], axis: str, cons: Cons) -> Kernel:
    """The parts as nests of one kernel, whose rows are points of the axes `rows`."""
    nests = []
    for n, one in enumerate(parts):
        names = {a.name: f"{a.name}_{n}" for a in one.axes if a not in rows}
        sizes = {names.get(a.name, a.name): a.size for a in one.axes}
        rewrite = Rewriter(cons, sizes, {old: ix.var(new) for old, new in names.items()})
        axes = tuple(replace(a, name=names[a.name]) for a in one.axes if a.name in names)
        nests.append(rewrite.body(one.nests[0], axes))
    return replace(parts[0], axes=rows, nests=tuple(nests))


def nests_of_ranges(k: Kernel, p: LoopNest, cons: Cons) -> list[LoopNest]:
    """Nests that together do what the nest p of k does, without comparisons that have one result in all of a nest; p alone where
    nothing changes."""
    if not has_plain_loop(k, p):
        return [p]
    axis, size = p.axes[-1].name, p.axes[-1].size
    _, ranges = most_ranges(list(comparisons((e.mask for e in p.loads if e.mask is not None), {axis: size})), {axis: size})
    longest = max((high - low for low, high in ranges), default=0)
    if longest < ROW or len(ranges) > FEW or work(p.roots()) * len(ranges) > MOST:
        ranges = [(0, size)]
    own = list(comparisons(p.roots(), {axis: size}))
    sizes = {a.name: a.size for a in (*k.axes, *p.axes)}
    nests = []
    for low, high in ranges:
        same = [(e, holds) for e, _, holds, flips in own if not any(low < n < high for n in flips)]
        nests.append(part(p, sizes, cons, axis, low, high, same) if same else p)
    return nests


def has_plain_loop(k: Kernel, p: LoopNest) -> bool:
    """Whether the innermost loop of a nest within others has a known length, may run in any order and reduces nothing. That of a
    transposition, the only nest of a kernel and of two axes, runs in tiles."""
    scans = any(a.kind == "scan" for a in p.axes)
    tiles = len(p.axes) > 1 and len(k.nests) == 1
    return bool(k.axes) and bool(p.axes) and known(p.axes) and not scans and not tiles and not p.reduces


def most_ranges(tests: list[Test], sizes: dict[str, int]) -> tuple[str, list[tuple[int, int]]]:
    """(the axis at whose values the most tests change, the ranges between these values, in order); no range where no test
    changes."""
    cuts: dict[str, set[int]] = {}
    for _, axis, _, flips in tests:
        cuts.setdefault(axis, set()).update(n for n in flips if 0 < n < sizes[axis])
    axis = max(cuts, key=lambda a: len(cuts[a]), default="")
    bounds = [0, *sorted(cuts[axis]), sizes[axis]] if axis else []
    return axis, list(zip(bounds, bounds[1:]))


def pays(k: Kernel, widths: list[int]) -> bool:
    """Whether a loop for each part costs less than masks. widths: of the parts of one axis, in elements."""
    few = len(widths) > 1 and points(k.axes) >= LONG and min(widths) * SHARE >= sum(widths)
    return few or len(widths) >= MANY


def comparisons(roots: Iterable[Expr], sizes: dict[str, int]) -> Iterator[Test]:
    """Each comparison of a multiple of an axis, and a number, with a number."""
    for e in walk(tuple(roots)):
        if e.kind != "op" or e.name not in TRUE or e.args[0].kind != "index" or e.args[1].kind != "const":
            continue
        at, limit = e.args[0].attr, int(e.args[1].attr)
        if len(at.terms) == 1 and type(at.terms[0][0]) is ix.AxisVar and at.terms[0][0].parts[0] in sizes:
            step, start, test = at.terms[0][1], at.const, TRUE[e.name]
            holds = lambda v, step=step, start=start, test=test, limit=limit: test(step * v + start, limit)
            yield e, at.terms[0][0].parts[0], holds, flips_of(e.name, step, limit - start)


def flips_of(name: str, step: int, limit: int) -> list[int]:
    """The values v at which step * v reaches or leaves what compares with the limit."""
    reached, left = -(-limit // step), limit // step + 1  # the first v at or behind limit / step, and the first one behind it
    if name in ("eq", "ne"):
        return [reached, left] if limit % step == 0 else []
    return [reached if (name in ("lt", "ge")) == (step > 0) else left]


def part(
    p: LoopNest, sizes: Mapping[str, Any], cons: Cons, axis: str, low: int, high: int, tests: list[tuple[Expr, Any]]
) -> LoopNest:
    """The nest for values of the axis in range(low, high), in which each of `tests` has one result. sizes: of the axes around."""

    rewrite = Rewriter(cons, {**sizes, axis: high - low}, {axis: ix.var(axis) + low}, functools.partial(loaded, cons))
    for e, holds in tests:
        rewrite.memo[id(e)] = cons.const(holds(low), "b8")
        rewrite.keep.append(e)
    return rewrite.body(p, tuple(replace(a, size=high - low) if a.name == axis else a for a in p.axes))


def loaded(cons: Cons, e: Expr, coords: tuple, mask: Expr | None) -> Expr | None:
    """A load whose mask has become a constant; None where it has not."""
    if mask is None or mask.kind != "const":
        return None
    return cons.load(e.name, coords, e.dtype, None, e.where) if mask.attr else cons.const(0, e.dtype)
