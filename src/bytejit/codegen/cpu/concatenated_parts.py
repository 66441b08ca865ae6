"""Splits a kernel that writes a concatenation of many parts into a kernel for each part.

    o[i] = a[i] if i < 32 else b[i - 32] if i < 64 else ...      ->      o[i] = a[i] for i:32, o[i + 32] = b[i] for i:32, ...

Without it every part is read, under a mask, for every element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.simplify import Rewriter, kernel_roots, points

MANY = 4  # with at least so many parts, a loop for each costs less than masks
LONG = 1 << 15  # elements from which on that holds of two parts, too
SHARE = 8  # if none is less than 1/SHARE of the whole, as the borders of an image are
# comparison of an axis with a number n -> d: its result changes where the axis reaches n + d
FLIPS = {"lt": (0,), "ge": (0,), "le": (1,), "gt": (1,), "eq": (0, 1), "ne": (0, 1)}
TRUE = {"lt": int.__lt__, "ge": int.__ge__, "le": int.__le__, "gt": int.__gt__, "eq": int.__eq__, "ne": int.__ne__}


def in_ranges(k: Kernel, cons: Cons) -> list[Kernel]:
    """Kernels that together do what k does; k alone where no axis has many parts."""
    sizes = {a.name: a.size for a in k.axes if a.kind == "parallel" and isinstance(a.size, int)}
    if not flexible(k) or k.nests[0].stores[1:]:
        return [k]
    tests = list(comparisons(k, sizes))
    cuts: dict[str, set[int]] = {}
    for _, axis, _, flips in tests:
        cuts.setdefault(axis, set()).update(n for n in flips if 0 < n < sizes[axis])
    axis = max(cuts, key=lambda a: len(cuts[a]), default="")
    if not axis:
        return [k]
    bounds = [0, *sorted(cuts[axis]), sizes[axis]]
    ranges = list(zip(bounds, bounds[1:]))
    if not pays(k, [high - low for low, high in ranges]):
        return [k]
    own = [(e, holds) for e, a, holds, _ in tests if a == axis]
    return [part(k, cons, axis, low, high, own) for low, high in ranges]


def pays(k: Kernel, widths: list[int]) -> bool:
    """Whether a loop for each part costs less than masks. widths: of the parts of one axis, in elements."""
    few = len(widths) > 1 and points(k.axes) >= LONG and min(widths) * SHARE >= sum(widths)
    return few or len(widths) >= MANY


def comparisons(k: Kernel, sizes: dict[str, int]) -> Iterator[tuple[Expr, str, Any, list[int]]]:
    """For each comparison of an axis with a number: (expression, axis, function from a value of the axis to the result, values of
    the axis at which the result changes)."""
    for e in walk(kernel_roots(k)):
        if e.kind != "op" or e.name not in FLIPS or e.args[0].kind != "index" or e.args[1].kind != "const":
            continue
        at, limit = e.args[0].attr, e.args[1].attr
        if len(at.terms) == 1 and type(at.terms[0][0]) is ix.AxisVar and at.terms[0][1] == 1 and at.terms[0][0].parts[0] in sizes:
            start, test = at.const, TRUE[e.name]
            holds = lambda v, start=start, test=test, limit=limit: test(v + start, int(limit))
            yield e, at.terms[0][0].parts[0], holds, [int(limit) - start + n for n in FLIPS[e.name]]


def part(k: Kernel, cons: Cons, axis: str, low: int, high: int, tests: list[tuple[Expr, Any]]) -> Kernel:
    """The kernel for values of the axis in range(low, high), in which each of `tests` has one result."""

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr | None:
        if mask is None or mask.kind != "const":
            return None
        return cons.load(e.name, coords, e.dtype, None, e.where) if mask.attr else cons.const(0, e.dtype)

    sizes = {a.name: a.size for a in k.axes} | {axis: high - low}
    rewrite = Rewriter(cons, sizes, {axis: ix.var(axis) + low}, on_load)
    for e, holds in tests:
        rewrite.memo[id(e)] = cons.const(holds(low), "b8")
        rewrite.keep.append(e)
    axes = tuple(replace(a, size=high - low) if a.name == axis else a for a in k.axes)
    return replace(k, axes=axes, nests=(rewrite.body(k.nests[0]),))
