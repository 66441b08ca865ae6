"""Where the values lie that one nest of a kernel passes to another: in a row-local buffer, in memory, or nowhere, as they are
computed again or not needed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, Store
from bytejit.codegen.loops.simplify import HEAVY, Rewriter, innermost, own_cost, points
from bytejit.common.dtypes import itemsize
from bytejit.common.spec import contiguous_stride

LOCAL_MOST = 128 * 1024  # bytes of a row-local buffer: it should stay in a core's cache


def by_name(found: Iterable[Expr]) -> dict[str, list[Expr]]:
    """Loads by their buffers."""
    out: dict[str, list[Expr]] = {}
    for e in found:
        out.setdefault(e.name, []).append(e)
    return out


def place_buffers(
    k: Kernel,
    buffers: dict[str, Buffer],
    outside: set[str],
    cons: Cons,
    sizes: dict[str, Any],
) -> tuple[Kernel, dict[str, Buffer]] | None:
    """The kernel after the choice for each buffer that it stores and no other step needs: dropped, computed again, row-local, or
    left in memory. Also the new local buffers. None when a nest needs what another row stores."""
    stores = {s.buffer: s for p in k.nests for s in p.stores}
    left = by_name(k.loads)
    outer = {a.name for a in k.axes}
    scans = {r.name for p in k.nests for r in p.reduces if r.running}
    rows_are_apart = functools.cache(lambda: not any(innermost(k, p, buffers) in outer for p in k.nests if p.axes))
    made: dict[str, Buffer] = {}
    drop: set[str] = set()
    again: dict[str, Store] = {}
    for name, s in stores.items():
        if name in outside or buffers[name].kind == "local" and name in left:
            continue
        if name not in left:
            drop.add(name)
        elif s.mode == "set" and s.mask is None:
            if aligned(left[name], s) and cheap(s.value, scans):
                again[name] = s
            elif fits(s, buffers[name], outer) and rows_are_apart():
                made[name] = local_buffer(s, buffers[name], outer)
    if any(not rows_meet(left[n], s, outer) for n, s in stores.items() if n in left):
        return None

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr | None:
        if e.name in again:
            return rewrite(again[e.name].value)
        if e.name in made:
            return cons.load(e.name, own_coords(stores[e.name], coords, outer), e.dtype, mask, e.where)
        return None

    rewrite = Rewriter(cons, sizes, None, on_load, only={*again, *made})
    nests = []
    for p in k.nests:
        p = rewrite.body(p)
        kept = tuple(
            replace(s, coords=own_coords(stores[s.buffer], s.coords, outer)) if s.buffer in made else s
            for s in p.stores
            if s.buffer not in drop and s.buffer not in again
        )
        if kept or p.reduces:
            nests.append(p if len(kept) == len(p.stores) and all(map(operator.is_, kept, p.stores)) else replace(p, stores=kept))
    return replace(k, nests=tuple(nests)), made


def cheap(value: Expr, scans: set[str]) -> bool:
    """Whether a value costs little to compute again: little work on one loaded value at most. scans: reductions whose running
    value exists in their own nest only. Stops where it is seen not to be: most values of a large kernel are not."""
    seen, todo = {id(value)}, [value]
    work = read = 0
    while todo:
        e = todo.pop()
        work += own_cost(e)
        read += e.kind in ("ref", "load")
        if work >= HEAVY or read > 1 or e.kind == "ref" and e.name in scans:
            return False
        new = [x for x in e.needs if id(x) not in seen]
        seen.update(map(id, new))
        todo += new
    return True


def aligned(found: list[Expr], s: Store) -> bool:
    """Whether every load of the buffer is at the store's own coordinates (then its value can be computed again
    there)."""
    return all(e.attr == s.coords and e.mask is None for e in found)


def rows_meet(found: list[Expr], s: Store, outer: set[str]) -> bool:
    """Whether every load of the buffer is in the row that stored it."""
    for e in found:
        if any(c != d for c, d in zip(s.coords, e.attr) if ix.variables(c) & outer):
            return False
    return True


def own_coords(s: Store, coords: tuple, outer: set[str]) -> tuple:
    """The coordinates of a row-local buffer: those that are not the row's."""
    return tuple(c for c, d in zip(coords, s.coords) if d.terms and not ix.variables(d) & outer)


def fits(s: Store, b: Buffer, outer: set[str]) -> bool:
    """Whether a row of the stored buffer is small enough to be local to a thread."""
    inner = [n for n, c in zip(b.shape, s.coords) if c.terms and not ix.variables(c) & outer]
    size = points([Axis("", n) for n in inner]) * itemsize(b.dtype)
    return size <= LOCAL_MOST and not any(ix.only_axis(c) is None and c.terms for c in s.coords)


def local_buffer(s: Store, b: Buffer, outer: set[str]) -> Buffer:
    """The row-local form of a buffer."""
    shape = tuple(n for n, c in zip(b.shape, s.coords) if c.terms and not ix.variables(c) & outer)
    return Buffer(b.name, shape, contiguous_stride(shape), b.dtype, "local", b.device, b.where)
