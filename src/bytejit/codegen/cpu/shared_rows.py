"""Kernels whose rows compute the same of each column: the axis of the rows goes into the nest, around blocks of columns.

    for n: for c: for i: o[n, c, i] = x[n, c, place(g[n, i])] * weight(g[n, i])
    ->  for n: for blocks of i: for c: for i in the block: ...

What does not depend on the row is then computed once a block (`block_tables.py`). So an image is read at places that a network
computes: each channel at the same ones.
"""

from __future__ import annotations

from dataclasses import replace

from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.ir import Kernel, LoopNest
from bytejit.codegen.loops.kernel_axes import best_axis, transposed
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.simplify import axes_at, known, may_raise, own_cost, points

from .ranges import TURNED

LEAST_ROWS = 3  # rows: fewer do not pay
LEAST_COLUMNS = 64  # columns
LEAST_COST = 16  # additions of what the rows share, at each column


def around_columns(k: Kernel) -> Kernel | None:
    """The kernel with an axis of rows in its nest, where these share most of the work; None where they do not. k: with offsets as
    coordinates."""
    if not flexible(k) or not known(k.axes) or len(k.axes) < 2 or any(a.kind != "parallel" for a in k.axes):
        return None
    p = k.nests[0]
    inner = best_axis(p, k.axes)
    if inner is None or transposed(p, k.axes, inner, TURNED) is not None or may_raise(p.roots()):
        return None
    columns = next(a for a in k.axes if a.name == inner)
    half = any(e.dtype == "f16" for e in (*p.loads, *(s.value for s in p.stores)))  # `half_rows.py` needs long rows
    if half or points([columns]) < LEAST_COLUMNS:
        return None
    best, most = None, 0
    for a in k.axes:
        if a.name != inner and points([a]) >= LEAST_ROWS:
            shared, rest = work_of_columns(p, a.name, inner)
            if shared >= max(LEAST_COST, rest) and shared > most:
                best, most = a, shared
    if best is None:
        return None
    return replace(k, axes=tuple(a for a in k.axes if a is not best), nests=(replace(p, axes=(best,)),))


def work_of_columns(p: LoopNest, row: str, column: str) -> tuple[int, int]:
    """(the work that depends on the column and other axes, or on memory, but not on the row, the work that depends on the row).
    What depends on the column alone is in tables (`axis_tables.py`). Units: additions."""
    axes: dict[int, set[str]] = {}
    memory: dict[int, bool] = {}
    shared = rest = 0
    for e in walk(p.roots()):
        axes[id(e)] = axes_at(e).union(*(axes[id(a)] for a in e.needs))
        memory[id(e)] = e.kind == "load" or any(memory[id(a)] for a in e.needs)
        if row in axes[id(e)]:
            rest += own_cost(e)
        elif column in axes[id(e)] and (memory[id(e)] or len(axes[id(e)]) > 1):
            shared += own_cost(e)
    return shared, rest
