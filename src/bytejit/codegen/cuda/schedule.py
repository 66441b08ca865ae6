"""Loops -> plan for CUDA: which points of a kernel one program computes, and how, as data.

A program computes a tile of points. There are four modes:

    points   a kernel without reductions: all axes as one flat range, of which each program takes consecutive points
    tiles    the same where a load and the store have stride 1 along different axes (a transposition): a program takes a square
    rows     nests over inner axes: one or several rows a program. The row lies in registers from its first load to its
             last store (persistent) as far as it fits; longer rows are walked in a loop a nest (looped)
    split    few long rows: each nest over inner axes is a launch, in which several programs share a row; the next launch
             combines their parts

What a nest stores and a later one loads at the same element is taken from the value itself, not from memory: in a
register when rows are persistent, computed again when they are looped.

Rows that are looped or split compute the sum of a softmax together with its maximum, and a variance together with its mean
(`loops/passes/online_reductions.py`). A temporary buffer that only its own kernel would read is not stored. Nests over the
same axes share one flat order, so that a value of one is at the same place of the tile in the other. Offsets are i64 only
where one, or what it is computed of, may reach 2**31, or a size is symbolic; values of positions are i64.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from bytejit.codegen.cuda.aligned_rows import common_start
from bytejit.codegen.cuda.blocks import BLOCK
from bytejit.codegen.cuda.row_points import SAVED, as_rows, shared_by_rows
from bytejit.codegen.cuda.store_forwarding import Overlap, barriers, forward, kept
from bytejit.codegen.cuda.tiles import (
    COLUMNS,
    LOOP,
    Tile,
    across_tiles,
    blocks,
    column_tiles,
    looped_tiles,
    power,
    row_tiles,
    shared_tiles,
    squares,
    stretches,
    turn_of_rows_read_again,
)
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Loops
from bytejit.codegen.loops.kernel_axes import (
    collapse,
    column_axis,
    flatten,
    indices,
    order_pointwise,
    order_rows,
    pair,
    rename,
    transposed,
    votes,
    without,
)
from bytejit.codegen.loops.memory import Memory, plan_memory
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.passes.online_reductions import joined
from bytejit.codegen.loops.passes.write_inputs import write_inputs
from bytejit.codegen.loops.plan import Call, Machine, Plan
from bytejit.codegen.loops.planning import plan_kernels
from bytejit.codegen.loops.simplify import elements, known, points, reads_rows
from bytejit.codegen.loops.uses import reads, writes
from bytejit.common.dtypes import itemsize
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass

PERSISTENT = 32768  # elements, of all values that live from nest to nest: a tile of so many fits the registers of a program
SMALL = 2048  # the same when the kernel of a larger tile could not be built: longer rows are looped
LONG = 32768  # elements: for a longer row, splitting it is worth further launches
MARGIN = 1 << 22  # points: the last program of a range, or the last part of a row, may reach so far past the end
SHARED_ROWS = 4  # rows that share work: so many are one program, which does that work once
SHARED_LOOP = 8192, 8  # elements of an iteration, warps, for such rows in a loop: each thread has several loads in flight
SIDE = 8  # elements: with a shorter side, the unused lanes of a square cost more than strided loads
UNALIGNED = 16384  # elements: longer rows that begin between two multiples of 16 bytes are a loop from such a multiple on


@light_dataclass(frozen=True)
class CudaSchedule:
    """How one kernel runs. mode: points, tiles, rows or split. tiles: the chosen one, then alternatives to time. single: a
    program takes one row, and its tile has one dim. looped: inner axes are a loop. wide: offsets are i64. parts: programs that
    share a row (split). spaces: the distinct inner axes of nests; their blocks are named R, R1, ... barriers: nests before
    which the threads of a program are synchronised, because the nest reads a buffer that an earlier nest stored, or
    overwrites one that an earlier nest read."""

    mode: str
    tiles: tuple[Tile, ...]
    single: bool = False
    looped: bool = False
    wide: bool = False
    parts: int = 1
    spaces: tuple[tuple[Axis, ...], ...] = ()
    barriers: tuple[int, ...] = ()

    def check(self, k: Kernel) -> None:
        """Checks that the schedule fits the kernel. Raises: Bug."""
        inner = [p.axes for p in k.nests if p.axes]
        if self.mode in ("points", "tiles"):
            if k.axes or len(k.nests) != 1 or k.nests[0].reduces:
                raise Bug(f"{k.name}: {self.mode} is for one nest without reductions, not {k!r}")
        elif set(inner) != set(self.spaces):
            raise Bug(f"{k.name}: the inner axes of nests are {inner}, the schedule has blocks for {self.spaces}")
        if self.barriers and not 0 < min(self.barriers) <= max(self.barriers) < len(k.nests):
            raise Bug(f"{k.name}: barriers before {self.barriers} of {len(k.nests)} nests")
        for tile in self.tiles:
            if any(n < 1 or n & n - 1 for _, n in tile.blocks) or self.single and tile["X"] != 1:
                raise Bug(f"{k.name}: {tile} is not made of powers of two, or has X above 1 with single={self.single}")
            for i, space in enumerate(self.spaces):
                if not self.looped and tile[f"R{i or ''}"] < points(space):
                    raise Bug(f"{k.name}: {tile} holds less than the {points(space)} points of {space}")


def schedule_cuda(loops: Loops, machine: Machine, room: int = PERSISTENT) -> Plan:
    """The plan for a CUDA device; `Call.schedule` is a `CudaSchedule`. Deterministic. room: elements of a row, f32, that
    one program may hold."""
    loops = write_inputs(loops)
    needed: dict[str, int] = {r.view.buffer: 2 for r in loops.outputs if r.view is not None}
    for step in loops.steps:  # count the steps that use each buffer
        for name in {*reads(step), *writes(step)}:
            needed[name] = needed.get(name, 0) + 1
    own = frozenset(n for n, b in loops.buffers.items() if b.kind == "temp" and needed.get(n, 0) < 2)

    def made(memory: Memory) -> tuple[Plan, frozenset[str]]:
        """The plan, and the temps that none of its kernels touches."""
        overlap = Overlap(memory.offsets, memory.slots, loops.buffers, own)
        one = partial(schedule_kernel, overlap=overlap, room=room)
        plan = plan_kernels(loops, machine, memory, one)
        plan = replace(plan, steps=tuple(_touched(s, plan.buffers) if isinstance(s, Call) else s for s in plan.steps))
        used = {b for s in plan.steps if isinstance(s, Call) for b in (*s.reads, *s.writes)}
        return plan, own - used

    plan, gone = made(plan_memory(loops, block=BLOCK))
    if any(b in plan.offsets or b in plan.slots for b in gone):
        smaller, still = made(plan_memory(loops, gone, BLOCK))  # where buffers lie decides what may be computed again
        if gone <= still:
            return smaller
    return plan


def _touched(call: Call, buffers: dict[str, Buffer]) -> Call:
    """The call with the buffers that its kernel still touches."""
    out = writes(call.kernel)
    return replace(
        call,
        reads=tuple(b for b in reads(call.kernel) if buffers[b].kind != "local" and b not in out),
        writes=tuple(b for b in out if buffers[b].kind != "local"),
    )


def schedule_kernel(
    k: Kernel,
    buffers: dict[str, Buffer],
    cons: Cons,
    machine: Machine,
    overlap: Overlap | None = None,
    room: int = PERSISTENT,
) -> tuple[Kernel, CudaSchedule]:
    """The kernel in its final loops, and how they run. overlap: where buffers lie, and the temps that no other kernel touches:
    these need no memory if the kernel holds their values. room: as in `schedule_cuda`."""
    k = flatten(k, buffers, cons)
    k = collapse(k, cons) if flexible(k) else collapse_rows(k, cons)
    wide, overlap = needs_wide(k, buffers), overlap or Overlap({}, {}, buffers)
    if flexible(k):
        k = rename(order_pointwise(k, SIDE), cons)
        if (rows := as_rows(k)) is not None:
            k, sched = schedule_rows(rename(rows, cons), buffers, cons, machine, overlap, room)
            return k, replace(sched, wide=wide)
        p = k.nests[0]
        names = [a.name for a in p.axes]
        square = len(names) == 2 and transposed(p, p.axes, names[1], SIDE) == names[0]
        k = rename(replace(k, axes=(), nests=(replace(p, axes=(*k.axes, *p.axes)),)), cons)
        n = points(k.nests[0].axes)
        if square:
            return k, CudaSchedule("tiles", squares(k.nests[0]), wide=wide)
        return k, CudaSchedule("points", stretches(n, widest(k, buffers), machine), wide=wide)
    k = rename(one_order(order_rows(reduced_over(k))), cons)
    k, sched = schedule_rows(k, buffers, cons, machine, overlap, room)
    return k, replace(sched, wide=wide)


# ---- axes ---------------------------------------------------------------------------------------------------------
def collapse_rows(k: Kernel, cons: Cons) -> Kernel:
    """Merge axes where all offsets allow it; inner ones over all nests that have them, so that a value has the same place in
    the tile in each nest. All become parallel: `Reduce` says what is done along them."""
    joined = collapse(replace(k, nests=tuple(replace(p, axes=()) for p in k.nests)), cons)
    nests = [replace(q, axes=p.axes) for p, q in zip(k.nests, joined.nests)]
    for names in dict.fromkeys(frozenset(a.name for a in p.axes) for p in nests if p.axes):
        group = [i for i, p in enumerate(nests) if frozenset(a.name for a in p.axes) == names]
        while (found := pair(nests[group[0]].axes, set().union(*(indices(nests[i]) for i in group)))) is not None:
            x, y = found
            for i in group:
                axes = tuple(
                    replace(a, size=x.size * y.size) if a.name == y.name else a for a in nests[i].axes if a.name != x.name
                )
                nests[i] = without(replace(nests[i], axes=axes), x, cons)
    parallel = tuple(replace(p, axes=tuple(replace(a, kind="parallel") for a in p.axes)) for p in nests)
    return replace(joined, nests=parallel)


def reduced_over(k: Kernel) -> Kernel:
    """Give a reduction of one element, whose axis is gone, an axis of one point."""
    return replace(k, nests=tuple(replace(p, axes=(Axis("one", 1),)) if p.reduces and not p.axes else p for p in k.nests))


def one_order(k: Kernel) -> Kernel:
    """Nests over the same axes get the same loop order: that of the nest that touches most memory, with the axis innermost that
    suits the accesses of all of them."""
    groups: dict[frozenset[str], list[LoopNest]] = {}
    for p in k.nests:
        groups.setdefault(frozenset(a.name for a in p.axes), []).append(p)
    order: dict[frozenset[str], tuple[str, ...]] = {}
    for names, nests in groups.items():
        most = max(nests, key=lambda p: len(p.loads) + 2 * len(p.stores))
        axes = order[names] = tuple(a.name for a in most.axes)
        if len(axes) > 1 and len(nests) > 1 and not any(a.kind == "scan" for p in nests for a in p.axes):
            total: Counter[str] = Counter()
            for p in nests:
                total.update(votes(p, set(names)))
            best = max(axes, key=lambda name: (total[name], axes.index(name)))
            order[names] = (*(name for name in axes if name != best), best)
    return replace(
        k,
        nests=tuple(
            replace(p, axes=tuple(sorted(p.axes, key=lambda a: order[frozenset(b.name for b in p.axes)].index(a.name))))
            for p in k.nests
        ),
    )


# ---- facts of a kernel --------------------------------------------------------------------------------------------
def needs_wide(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether offsets need i64. They do if an offset, a part of its formula or a range of points may reach 2**31, or if one
    of these is not known."""
    for p in k.nests:
        if not known((*k.axes, *p.axes)) or max(points(p.axes), points(k.axes)) >= (1 << 31) - MARGIN:
            return True
    sizes = {a.name: a.size for p in k.nests for a in (*k.axes, *p.axes)}
    places = {(s.buffer, s.coords) for p in k.nests for s in p.stores} | {(e.name, e.attr) for e in k.loads}
    for name, at in places:
        b = buffers[name]
        if not all(isinstance(n, int) for n in (*b.shape, *b.stride)) or not all(fits_i32(c, sizes) for c in at):
            return True
        if b.kind == "local" and points(k.axes) * elements(b) >= 1 << 31:
            return True
    return False


def fits_i32(at: Any, sizes: dict[str, Any]) -> bool:
    """Whether an index, each of its terms and each index within it are numbers of 31 bits. sizes: of its axes."""
    for x in (at, *(ix.Index(((atom, c),), 0) for atom, c in at.terms)):
        if not all(abs(v) < 1 << 31 for v in ix.bounds(x, sizes)):
            return False
    return all(
        fits_i32(ix.index(part), sizes) for atom, _ in at.terms for part in atom.parts if isinstance(part, ix.Index | ix.Atom)
    )


def widest(k: Kernel, buffers: dict[str, Buffer]) -> int:
    """Bytes of the widest element that the kernel touches."""
    return max(
        [itemsize(e.dtype) for e in k.loads] + [itemsize(buffers[s.buffer].dtype) for p in k.nests for s in p.stores],
        default=4,
    )


# ---- choices ------------------------------------------------------------------------------------------------------


def spaces_of(k: Kernel) -> tuple[tuple[Axis, ...], ...]:
    """The distinct inner axes of nests, the largest first."""
    return tuple(sorted(dict.fromkeys(p.axes for p in k.nests if p.axes), key=lambda s: -points(s)))


def schedule_rows(
    k: Kernel, buffers: dict[str, Buffer], cons: Cons, machine: Machine, overlap: Overlap, room: int
) -> tuple[Kernel, CudaSchedule]:
    """Rows: persistent when a row fits the registers, else looped; split when rows are few and long."""
    near = forward(k, buffers, cons, False, overlap)
    spaces = spaces_of(near)
    rows, longest = points(k.axes), max((points(s) for s in spaces), default=1)
    sized = all(map(known, spaces))
    column = bool(k.axes) and column_axis(near) == k.axes[-1].name
    many = len(near.nests) > 1
    together = rows_together(near, rows, machine)
    room //= max(1, widest(near, buffers) // 4)
    if longest > UNALIGNED and any(common_start(p) is not None for p in near.nests):
        room = min(room, UNALIGNED)
    if sized and power(longest) * kept(near) <= (room if many else min(room, LOOP * 2)) and not column:
        width = across(near, buffers)
        tiles = across_tiles(rows, longest, width, room // kept(near), machine) if width else []
        if together > 1 and not width:
            tiles = shared_tiles(together, longest)
        tiles = tiles if tiles and tiles[0][0] > 1 else row_tiles(rows, longest, machine)
        single = tiles[0][0] == 1
        return near, CudaSchedule("rows", blocks(tiles, spaces), single, spaces=spaces, barriers=barriers(near, overlap))
    if sized and column and power(longest) * 16 * kept(near) <= room // 4 and (many or longest <= 64):
        tiles = column_tiles(rows, longest, machine)
        return near, CudaSchedule("rows", blocks(tiles, spaces), spaces=spaces, barriers=barriers(near, overlap))
    k = joined(forward(k, buffers, cons, True, overlap), overlap)
    spaces = spaces_of(k)
    x = min(COLUMNS, power(rows)) if column else together
    work = longest * x
    programs = max(1, -(-rows // x))  # none of a kernel without rows
    few = known(k.axes) and sized and work >= LONG and programs < machine.threads
    if few and nests_can_be_launches(apart := updates_last(k), buffers):
        k = apart
        parts = min(-(-4 * machine.threads // programs), -(-work // (LONG // 4)), 1024)
        cut = looped_tiles(x, -(-longest // parts), None)
        return k, CudaSchedule("split", blocks(cut, spaces, True), x == 1, True, parts=parts, spaces=spaces)
    while column and x > 16 and -(-rows // x) < 2 * machine.threads:
        x //= 2
    again = x == 1 and sum(bool(p.axes) for p in k.nests) > 1
    first = SHARED_LOOP if together > 1 and not column else None
    if again:
        first = turn_of_rows_read_again(longest, [itemsize(d) for d in read_again(k)], machine)
    turns = looped_tiles(x, longest, first)
    return k, CudaSchedule("rows", blocks(turns, spaces, True), x == 1, True, spaces=spaces, barriers=barriers(k, overlap))


def across(k: Kernel, buffers: dict[str, Buffer]) -> int:
    """Bytes an element of accesses that have stride 1 along the last outer axis but not along the nest's axes; 0 without any."""
    found = 0
    for p in k.nests:
        touched = [(e.attr, e.dtype) for e in p.loads] + [(s.coords, buffers[s.buffer].dtype) for s in p.stores]
        for at, dtype in touched if p.axes and k.axes else ():
            strides = [abs(ix.hint(at[0].coefficient(a.name))) for a in p.axes if ix.hint(a.size) > 1]
            if strides and min(strides) > 1 and at[0].coefficient(k.axes[-1].name) == 1:
                found = max(found, itemsize(dtype))
    return found


def rows_together(k: Kernel, rows: int, machine: Machine) -> int:
    """Returns how many rows a program computes at the same time. Several if they share work (as the rows of a matrix that is
    multiplied by a vector, or images whose channels are normalised) and there are enough rows for all SMs."""
    reduces = any(p.reduces for p in k.nests)
    if reduces and any(p.axes and p.stores for p in k.nests) or not (known(k.axes) and k.axes):
        return 1
    if shared_by_rows(k) < (1 if reduces else SAVED):
        return 1
    x = SHARED_ROWS
    while x > 1 and -(-rows // x) < machine.threads:
        x //= 2
    return x


def read_again(k: Kernel) -> list[str]:
    """The dtypes of what is read along the row by several nests."""
    seen: Counter[Expr] = Counter()
    for p in k.nests:
        inner = {a.name for a in p.axes}
        seen.update({e for e in p.loads if any(ix.variables(c) & inner for c in e.attr)})
    return [e.dtype for e, n in seen.items() if n > 1]


def updates_last(k: Kernel) -> Kernel:
    """The kernel with stores that overwrite a value of the row (the update of a parameter) in a nest after all others: other
    programs that share the row may still have to read the value."""
    within = max((i for i, p in enumerate(k.nests) if p.axes), default=-1)
    nests, late = [], []
    for i, p in enumerate(k.nests):
        if not p.axes and i < within:
            read = {e.name for q in k.nests[: i + 1] for e in q.loads}
            read -= {e.name for q in k.nests[i + 1 :] for e in q.loads}
            late += [s for s in p.stores if s.buffer in read]
            p = replace(p, stores=tuple(s for s in p.stores if s.buffer not in read))
        if p.stores or p.reduces:
            nests.append(p)
    if not late:
        return k
    last = max(i for i, p in enumerate(nests) if p.axes)
    return replace(k, nests=(*nests[: last + 1], LoopNest((), tuple(late), ()), *nests[last + 1 :]))


def nests_can_be_launches(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether each nest can be a launch: there are no scans and no row-local buffers, and nothing is overwritten that a later
    launch reads."""
    if any(r.running for p in k.nests for r in p.reduces) or not any(p.reduces for p in k.nests):
        return False
    within = max(i for i, p in enumerate(k.nests) if p.axes)
    once = {s.buffer for p in k.nests[:within] if not p.axes for s in p.stores}
    if any(e.name in once for e in k.loads):
        return False
    return not reads_rows(k, buffers)
