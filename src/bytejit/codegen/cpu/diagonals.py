"""Kernels with another value on a diagonal, as two kernels: one for all points, then one for those of the diagonal.

    o[i, j] = a[i] if j == i + 1 else 0      ->      o[i, j] = 0 for all i, j;  o[i, i + 1] = a[i] for all i

So matrices are made of their diagonals, and gradients of diagonals. Without it each element asks whether it is on the diagonal,
and where the axis of the diagonal's own elements is not the innermost, zeros are read along large strides.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Buffer, Kernel
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.simplify import Rewriter, elements, kernel_roots, known, loads, may_raise, points

from .ranges import loaded

LEAST = 1 << 14  # elements: for fewer a second kernel does not pay
LONG = 16  # elements along the axis that the second kernel does not have, at least


class Diagonal(NamedTuple):
    """The points at which `axis` is `at`, an index of the axis `along` for its values low <= along < high."""

    axis: str
    at: ix.Index
    along: str
    low: int
    high: int


def with_diagonal_apart(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> list[Kernel]:
    """Kernels that together do what k does, in order; k alone where it has no diagonal, or where two kernels would differ."""
    if not flexible(k) or k.nests[0].stores[1:] or not known(k.axes) or points(k.axes) < LEAST or may_raise(kernel_roots(k)):
        return [k]
    store = k.nests[0].stores[0]
    if store.mode != "set" or store.mask is not None:
        return [k]
    sizes = {a.name: a.size for a in k.axes if a.kind == "parallel"}
    found: dict[Diagonal, list[Expr]] = {}
    for e, diagonal in diagonals(k, sizes):
        found.setdefault(diagonal, []).append(e)
    if not found:
        return [k]
    diagonal, tests = max(found.items(), key=lambda item: len(item[1]))
    off = decided(k, sizes, tests, False, cons)
    on = decided(k, sizes, tests, True, cons, diagonal)
    if not masks_decided(k, tests, cons) or reads_what_is_written(on, store.buffer, buffers):
        return [k]
    return [off, on] if diagonal.low < diagonal.high else [off]


def diagonals(k: Kernel, sizes: Mapping[str, int]) -> Iterator[tuple[Expr, Diagonal]]:
    """Each test whether a sum or difference of two axes is a number, and the points at which it holds."""
    for e in walk(kernel_roots(k)):
        if e.kind != "op" or e.name != "eq" or any(a.kind not in ("index", "const") or a.dtype != "i64" for a in e.args):
            continue
        at = ix.index(e.args[0].attr) - ix.index(e.args[1].attr)
        terms = [(a, c) for a, c in ix.axis_terms(at) or () if a in sizes and isinstance(c, int) and abs(c) == 1]
        if len(terms) != 2 or len(at.terms) != 2:
            continue
        (along, first), (axis, second) = sorted(terms, key=lambda t: (sizes[t[0]], t[0]))
        step, start = -first * second, -second * int(at.const)  # axis == step * along + start
        ends = sorted((-start * step, (sizes[axis] - 1 - start) * step))
        low, high = max(0, ends[0]), min(sizes[along], ends[1] + 1)
        if sizes[axis] >= LONG:
            yield e, Diagonal(axis, ix.var(along) * step + start, along, low, high)


def decided(
    k: Kernel, sizes: Mapping[str, int], tests: list[Expr], holds: bool, cons: Cons, on: Diagonal | None = None
) -> Kernel:
    """The kernel with one result for all `tests`; on: for the points of a diagonal alone."""
    axes, new = k.axes, {}
    if on is not None:
        place = ix.var(on.along) + on.low
        new = {on.along: place, on.axis: ix.substitute(on.at, {on.along: place}, sizes)}
        short = (replace(a, size=on.high - on.low) if a.name == on.along else a for a in k.axes)
        axes = tuple(a for a in short if a.name != on.axis)
    rewrite = Rewriter(cons, {a.name: a.size for a in axes}, new, functools.partial(loaded, cons))
    for e in tests:
        rewrite.memo[id(e)] = cons.const(holds, "b8")
        rewrite.keep.append(e)
    return replace(k, axes=axes, nests=(rewrite.body(k.nests[0]),))


def masks_decided(k: Kernel, tests: list[Expr], cons: Cons) -> bool:
    """Whether each load whose mask asks for the diagonal is one of the diagonal alone. Another might leave its buffer there."""
    apart = Rewriter(cons, {})
    for e in tests:
        apart.memo[id(e)] = cons.const(False, "b8")
        apart.keep.append(e)
    asked = {id(e) for e in tests}
    masks = [e.mask for e in loads(kernel_roots(k)) if e.mask is not None and any(id(x) in asked for x in walk((e.mask,)))]
    return all((new := apart(mask)).kind == "const" and not new.attr for mask in masks)


def reads_what_is_written(k: Kernel, buffer: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a kernel reads memory that one before it wrote: the same buffer, or a temp that the result may lie in."""
    size = elements(buffers[buffer])
    read = [e.name for e in k.loads]
    return buffer in read or any(buffers[b].kind == "temp" and elements(buffers[b]) == size for b in read)
