"""Pointwise kernels scheduled as rows, where much of what an element needs is the same for its whole row or column.

In a flat range of points every value is computed for each element. In a tile of rows and columns, the logarithm of a row's sum or
the scale of a channel has one dim less than the tile: it is computed once for each row or column. A tile's sides are powers of
two: rows of 96 channels leave a quarter of it empty, which costs more than a few operations that are done again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bytejit.codegen.cuda.tiles import power
from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.simplify import axes_at, kernel_roots, known, points
from bytejit.codegen.ops.table import table

LEAST = 1 << 20  # points: a kernel of fewer takes a few microseconds either way
SHORT = 64  # elements: shorter rows do not have enough common work for a tile
ROWS = 512  # rows: at least so many occupy the whole GPU
LOAD = 2  # additions: the cost of a load from a cache
SAVED = 8  # additions an element: rows are worth it if they save so many
MUCH = 64  # the same where a part of the tile is empty: below it, memory decides, and every lane counts
FULL = 0.875  # the part of the tile that a row fills, at least, where the whole row lies in registers
HELD = 4096  # elements: longer rows are walked in a loop, whose last turn alone may be partly empty


def as_rows(k: Kernel) -> Kernel | None:
    """A pointwise kernel, whose last axis is the innermost in memory, with that axis alone in its nest; None where it stays
    flat."""
    (p,) = k.nests
    axes = (*k.axes, *p.axes)
    if len(axes) < 2 or not known(axes) or points(axes) < LEAST:
        return None
    inner = axes[-1]
    full = inner.size > HELD or inner.size >= FULL * power(inner.size)
    if inner.size < SHORT or points(axes[:-1]) < ROWS or once(k, inner.name) < (SAVED if full else MUCH):
        return None
    return replace(k, axes=axes[:-1], nests=(replace(p, axes=(inner,)),))


def once(k: Kernel, inner: str) -> int:
    """Work that need not be done at every point: its result depends on the inner axis only, or does not depend on it. Units:
    additions an element."""
    return sum(work for work, along, across in sides(k, frozenset((inner,))) if not (along and across))


def shared_by_rows(k: Kernel) -> int:
    """Work whose result is the same in all rows. Units: additions an element of a row."""
    inner = frozenset(a.name for p in k.nests for a in p.axes)
    return sum(work for work, along, across in sides(k, inner) if along and not across)


def sides(k: Kernel, inner: frozenset[str]) -> Iterator[tuple[int, bool, bool]]:
    """Returns for each value the work that it takes without its operands, in additions; whether it depends on inner axes; on
    others."""
    rows = table().by_name
    seen: dict[int, tuple[bool, bool]] = {}
    for e in walk(kernel_roots(k)):
        own = axes_at(e)
        along, across = bool(own & inner), bool(own - inner)
        for x in e.needs:
            along, across = along or seen[id(x)][0], across or seen[id(x)][1]
        seen[id(e)] = along, across
        yield LOAD if e.kind == "load" else rows[e.name].cost if e.kind == "op" and e.name in rows else 0, along, across
