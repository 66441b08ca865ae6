"""Long rows that begin between two multiples of 16 bytes, such as 50,257 columns of bf16: where in a row 16 bytes a lane begin.

A lane moves 16 bytes at once only where the compiler knows that they begin at a multiple of 16. A loop over such a row takes
the few elements before the first multiple of `LANES` elements by themselves, and then whole blocks from there. Reads and
writes whose place differs from the row's by a multiple of it are told to the compiler as aligned.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import LoopNest

LANES = 8  # elements: 16 bytes of bf16 and f16, 32 of f32


def row_start(p: LoopNest, at: Any) -> ix.Index | None:
    """The place in a buffer where a nest's row begins. at: a place in that row. None: consecutive points of the row are not
    consecutive elements, or the beginning is not known before the loop. Units: elements."""
    place, below, start = ix.index(at), 1, ix.index(at)
    for a in reversed(p.axes):
        if not isinstance(a.size, int) or place.coefficient(a.name) != below:
            return None
        start = start - ix.var(a.name) * below
        below *= a.size
    if common.axes_of(start) & {a.name for a in p.axes} or any(ix.values_in(start)):
        return None
    return start


def aligned(start: ix.Index) -> bool:
    """Whether a place is a multiple of LANES elements whatever its axes and symbols are."""
    return not any(c % LANES for c in (start.const, *(c for _, c in start.terms)))


def common_start(p: LoopNest) -> ix.Index | None:
    """Where most accesses of a nest see their row begin. None: there the rows are aligned already, or a reduction counts its
    iterations."""
    if any(r.kind == "moments" for r in p.reduces):
        return None
    places = [e.attr[0] for e in common.walk(p.roots()) if e.kind == "load"] + [s.coords[0] for s in p.stores]
    starts = Counter(start for at in places if (start := row_start(p, at)) is not None)
    if not starts:
        return None
    start = starts.most_common(1)[0][0]
    return None if aligned(start) else start


def all_aligned(p: LoopNest, values: tuple[Expr, ...], begin: ix.Index | None) -> bool:
    """Whether each read along the row in some values is 16 bytes a lane. begin: what the loop over the row is aligned with."""
    inner = {a.name for a in p.axes}
    for e in common.walk(values):
        if e.kind == "load" and common.axes_of(e.attr[0]) & inner:
            start = row_start(p, e.attr[0])
            if start is None or not aligned(start if begin is None else start - begin):
                return False
    return True
