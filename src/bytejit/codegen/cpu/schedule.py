"""Loops -> plan: how each kernel runs on a machine, as data that names no language.

For each kernel: offsets instead of coordinates; axes that are contiguous in memory are collapsed; loops are ordered so that the
innermost has stride 1; the axis that is vectorized; blocks for reductions of columns; tiles for transpositions; the axes that
threads share.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from bytejit.codegen.loops.expr import Cons, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Loops
from bytejit.codegen.loops.kernel_axes import (
    collapse,
    column_axis,
    flatten,
    order_pointwise,
    order_rows,
    rename,
    transposed,
)
from bytejit.codegen.loops.memory import plan_memory
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.passes.write_inputs import write_inputs
from bytejit.codegen.loops.plan import Machine, NestSchedule, Plan, Schedule
from bytejit.codegen.loops.planning import plan_kernels
from bytejit.codegen.loops.simplify import cost, known, points, reads_rows
from bytejit.common.dtypes import acc_dtype, itemsize

from .diagonals import with_diagonal_apart
from .phases import nests_of_phases
from .ranges import in_ranges, nests_of_ranges
from .shared_rows import around_columns
from .short_rows import together, unrolled

GRAIN = 32768  # additions: less work than this is not worth a thread
COLUMNS = 64  # elements of a block of columns: a few vectors, so that accumulators stay in registers
FEW = 8  # elements of a row that is reduced: of more a whole vector is computed, whose last lanes do nothing
SHORT = 4  # elements of a row that are computed together, if it is shorter than a vector
TILE = 32  # elements, along both axes, of a tile of a transposition
PARTS = 16  # of the work, at least, for each thread: then all threads end at about the same time
ACCUMULATORS = 4  # vectors of partial results of a reduction: one addition does not wait for the one before it
LONG = 65536  # elements: threads may share a row of at least so many


def schedule(loops: Loops, machine: Machine) -> Plan:
    """The plan for a CPU. Deterministic."""
    loops = write_inputs(loops)
    return plan_kernels(loops, machine, plan_memory(loops), schedule_kernel, parts_of)


def parts_of(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> list[Kernel]:
    """The kernels that run, in order, in a kernel's place."""
    return [part for one in with_diagonal_apart(k, buffers, cons) for part in in_ranges(one, buffers, cons)]


def schedule_kernel(k: Kernel, buffers: dict[str, Buffer], cons: Cons, machine: Machine) -> tuple[Kernel, Schedule]:
    """The kernel in its final loops, and how they run."""
    k = collapse(flatten(together(unrolled(k, buffers, cons), buffers, cons), buffers, cons), cons)
    around = around_columns(k)
    if around is not None:
        k = order_rows(around)
    else:
        k = ordered(k) if any(a.kind == "scan" for a in k.axes) else order_pointwise(k, TILE) if flexible(k) else order_rows(k)
    k = rename(k, cons)
    block = column_block(k, around is not None)
    k = k if block else rename(divided(k, cons), cons)
    nests = tuple(schedule_nest(k, p, block, machine) for p in k.nests)
    work = max(1, sum(points(p.axes) * max(1, cost(p.roots()) + len(p.loads)) for p in k.nests))
    rows = points(k.axes)
    shared = k.axes if block else shared_axes(k, machine)
    parallel: tuple[str, ...] = tuple(a.name for a in shared)
    unit = work * (min(block[1], rows) if block else max(1, rows // max(1, points(shared))))
    split = 0
    if not k.axes and len(k.nests) == 1 and not k.nests[0].reduces and k.nests[0].axes:
        first = next(a for a in k.nests[0].axes if a.name == nests[0].order[0])
        parallel, unit = ((first.name,), max(1, work // max(1, points([first])))) if first.kind == "parallel" else ((), 1)
    elif rows < machine.threads and known(k.axes) and threads_can_share_rows(k, buffers):
        parallel, split = (), machine.threads
    if work * rows < 2 * GRAIN and known(a for p in k.nests for a in (*k.axes, *p.axes)):
        parallel, split = (), 0
    grain = max(1, -(-GRAIN // max(1, unit))) * (block[1] if block else 1)
    return k, Schedule(parallel, grain, nests, block, split)


def divided(k: Kernel, cons: Cons) -> Kernel:
    """The kernel with several nests in place of one where these need neither masks nor computed places."""
    nests = tuple(one for p in k.nests for part in nests_of_phases(k, p, cons) for one in nests_of_ranges(k, part, cons))
    return k if all(map(operator.is_, nests, k.nests)) else replace(k, nests=nests)


def shared_axes(k: Kernel, machine: Machine) -> tuple[Axis, ...]:
    """The outer axes that threads share: all, or the first ones if these are enough. Axes that are not shared are loops of their
    own, without a division for each of their points, and with what does not depend on them computed before."""
    for n in range(1, len(k.axes)):
        if known(k.axes) and points(k.axes[:n]) >= PARTS * machine.threads:
            return k.axes[:n]
    return k.axes


def ordered(k: Kernel) -> Kernel:
    """A kernel that writes at indices read from memory. Axes along which two points may write the same element become the nest's,
    with all axes after them: a nest runs in order, and the last write wins."""
    first = next(i for i, a in enumerate(k.axes) if a.kind == "scan")
    return replace(k, axes=k.axes[:first], nests=(replace(k.nests[0], axes=k.axes[first:]),))


def column_block(k: Kernel, shared: bool) -> tuple[str, int] | None:
    """(axis, size of a block) of a kernel whose last axis is a column axis (see `order_rows`); else None. shared: its rows share
    what is computed of a column."""
    if not k.axes or not any(p.axes for p in k.nests) or flexible(k) or column_axis(k) != k.axes[-1].name:
        return None
    if len(k.nests) == 1 and not k.nests[0].reduces and not shared:
        return None
    size = k.axes[-1].size
    return k.axes[-1].name, min(COLUMNS, size) if isinstance(size, int) else COLUMNS


def schedule_nest(k: Kernel, p: LoopNest, block: tuple[str, int] | None, machine: Machine) -> NestSchedule:
    """Order, lanes and accumulators of one nest."""
    order = tuple(a.name for a in p.axes)
    dtypes = [acc_dtype(e.dtype) for e in walk(p.roots()) if e.kind in ("load", "op") and e.dtype != "b8"]
    widest = max((itemsize(d) for d in dtypes), default=4)
    lanes = max(1, machine.vector_bytes // widest)
    if block is not None:
        return NestSchedule(order, block[0], lanes)
    if not order or p.axes[-1].kind == "scan":
        return NestSchedule(order)
    size = points([p.axes[-1]])
    if known(p.axes[-1:]) and size < lanes:
        plain = size >= SHORT and all(e.mask is None for e in p.loads)
        if p.reduces:
            lanes = lanes if plain and size > FEW else 1
        else:
            lanes = 1 << int(size).bit_length() - 1 if plain else 1
    many = ACCUMULATORS if p.reduces and size >= ACCUMULATORS * lanes else 1
    tile: tuple[tuple[str, int], ...] = ()
    if len(order) == 2 and flexible(replace(k, nests=(replace(p, axes=()),))) and not p.reduces and len(k.nests) == 1:
        tile = tuple((n, TILE) for n in order) if transposed(p, p.axes, order[-1], TILE) == order[0] else ()
    return NestSchedule(order, order[-1] if lanes > 1 else None, lanes, many, tile)


def threads_can_share_rows(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether threads can share a row: it is long, and only the first nest reduces and it stores nothing."""
    if not k.nests or not k.nests[0].reduces or k.nests[0].stores:
        return False
    if any(p.reduces for p in k.nests[1:]) or any(a.kind == "scan" for p in k.nests for a in p.axes):
        return False
    if reads_rows(k, buffers):
        return False
    return points(k.nests[0].axes) >= LONG
