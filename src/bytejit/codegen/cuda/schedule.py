"""Loops -> plan for CUDA: which points of a kernel one program takes, and how, as data.

A program is a tile of points. Four ways:

    points   a kernel without reductions: all axes as one flat range, a stretch of it a program
    tiles    the same where one side walks memory along another axis (a transpose): a square a program
    rows     passes over inner axes: one or several rows a program. The row lies in registers from its first load to its
             last store (persistent) as far as it fits; longer rows are walked in a loop a pass (looped)
    split    few long rows: each pass over inner axes is a launch of its own, its rows cut in parts; the next launch
             combines the parts

What a pass stores and a later one loads at the same element is taken from the value itself, not from memory: in a
register when rows are persistent, computed again when they are looped.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bytejit.codegen.cpu.schedule import (
    collapse,
    column_axis,
    flatten,
    indices,
    order_pointwise,
    order_rows,
    pair,
    rename,
    schedule,
    transposed,
    without,
)
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Axis, Buffer, Call, Cons, Expr, Kernel, Loops, Pass, Plan, Store, Target, itemsize, walk
from bytejit.codegen.loops.memory import Memory, plan_memory, write_inputs
from bytejit.codegen.loops.passes.fuse import reads, writes
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.passes.online_reductions import joined
from bytejit.codegen.loops.simplify import Rewriter, kernel_roots, loads, points
from bytejit.errors import Bug

PERSISTENT = 32768        # elements of a tile that registers hold, over all values that live from pass to pass
SMALL = 2048              # the same where a kernel could not be built: longer rows are looped
ROW = 512                 # elements of a row from which a program takes one row only
TILE = 2048               # elements of a program's tile
LOOP = 2048               # elements of one turn of a loop
COLUMNS = 64              # columns of a tile whose rows walk memory: two cache lines of f32
LONG = 32768              # elements a program may reduce before a split pays for its launches
MOST_WARPS = 32
MARGIN = 1 << 22          # points that the last program of a range, or the last part of a row, may lie past its end
SIDE = 8                  # elements of the shorter side of a square from which its unused lanes cost less than strided loads
WIDE_LOOP = 8192, 32      # elements of a turn, warps, where passes read a long row again: few rows at a time stay in L2
TWO_LOOPS = 4096, 16      # the same where two rows an SM stay there: one computes while the other waits for memory
STAYS = 0.6               # part of L2 that such rows may take


@dataclass(frozen=True)
class Tile:
    """Block sizes by name (powers of two) and warps. Names: X (outer points), Y (second side of a square), R, R1, ...
    (points of the inner axes)."""
    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int = 1

    def __getitem__(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)


@dataclass(frozen=True)
class CudaSchedule:
    """How one kernel runs. mode: points, tiles, rows or split. tiles: the choice, then alternatives. single: one row a
    program, whose tile has one dim. looped: inner axes in a loop. wide: offsets in i64. parts: programs a row (split).
    spaces: the distinct inner axes of passes, each with a block name R, R1, ... barriers: passes before which the threads
    of a program must meet: they read what an earlier pass stored, or store what one read."""
    mode: str
    tiles: tuple[Tile, ...]
    single: bool = False
    looped: bool = False
    wide: bool = False
    parts: int = 1
    spaces: tuple[tuple[Axis, ...], ...] = ()
    barriers: tuple[int, ...] = ()

    def check(self, k: Kernel) -> None:
        """Whether the kernel can run so. Raises: Bug."""
        inner = [p.axes for p in k.passes if p.axes]
        if self.mode in ("points", "tiles"):
            if k.axes or len(k.passes) != 1 or k.passes[0].reduces:
                raise Bug(f"{k.name}: {self.mode} is for one pass without reductions, not {k!r}")
        elif set(inner) != set(self.spaces):
            raise Bug(f"{k.name}: passes over {inner}, blocks for {self.spaces}")
        if self.barriers and not 0 < min(self.barriers) <= max(self.barriers) < len(k.passes):
            raise Bug(f"{k.name}: barriers before {self.barriers} of {len(k.passes)} passes")
        for tile in self.tiles:
            if any(n < 1 or n & n - 1 for _, n in tile.blocks) or self.single and tile["X"] != 1:
                raise Bug(f"{k.name}: {tile}, single={self.single}")
            for i, space in enumerate(self.spaces):
                if not self.looped and tile[f"R{i or ''}"] < points(space):
                    raise Bug(f"{k.name}: {tile} holds less than the {points(space)} points of {space}")


def schedule_cuda(loops: Loops, target: Target, room: int = PERSISTENT) -> Plan:
    """The plan for a CUDA device; `Call.schedule` is a `CudaSchedule`. Deterministic. room: elements of a row, f32, that
    one program may hold."""
    loops = write_inputs(loops)
    needed: dict[str, int] = {r.view.buffer: 2 for r in loops.outputs if r.view is not None}
    for step in loops.steps:                     # by how many steps: more than the one that makes it
        for name in {*reads(step), *writes(step)}:
            needed[name] = needed.get(name, 0) + 1
    own = frozenset(n for n, b in loops.buffers.items() if b.kind == "temp" and needed.get(n, 0) < 2)


    def made(memory: Memory) -> tuple[Plan, frozenset[str]]:
        """The plan, and the temps that none of its kernels touches."""
        one = partial(schedule_kernel, offsets=memory.offsets, slots=memory.slots, own=own, room=room)
        plan = schedule(loops, target, memory, one)
        plan = replace(plan, steps=tuple(_touched(s, plan.buffers) if isinstance(s, Call) else s for s in plan.steps))
        used = {b for s in plan.steps if isinstance(s, Call) for b in (*s.reads, *s.writes)}
        return plan, own - used
    plan, gone = made(plan_memory(loops))
    if any(b in plan.offsets or b in plan.slots for b in gone):
        smaller, still = made(plan_memory(loops, gone))      # where buffers lie decides what may be computed again
        if gone <= still:
            return smaller
    return plan


def _touched(call: Call, buffers: dict[str, Buffer]) -> Call:
    """The call with the buffers that its kernel still touches."""
    out = writes(call.kernel)
    return replace(call, reads=tuple(b for b in reads(call.kernel) if buffers[b].kind != "local" and b not in out),
                   writes=tuple(b for b in out if buffers[b].kind != "local"))


def schedule_kernel(k: Kernel, buffers: dict[str, Buffer], cons: Cons, target: Target,
                    offsets: dict[str, int] | None = None, slots: dict[str, int] | None = None,
                    own: frozenset[str] = frozenset(), room: int = PERSISTENT) -> tuple[Kernel, CudaSchedule]:
    """The kernel in its final loops, and how they run. offsets, slots: as in `Plan`; own: temps that no other kernel touches:
    they need no memory where the kernel has their values; room: as in `schedule_cuda`."""
    k = flatten(k, buffers, cons)
    k = collapse(k, cons) if flexible(k) else collapse_rows(k, cons)
    wide = needs_wide(k, buffers)
    if flexible(k):
        k = rename(order_pointwise(k, SIDE), cons)
        p = k.passes[0]
        names = [a.name for a in p.axes]
        square = len(names) == 2 and transposed(p, p.axes, names[1], SIDE) == names[0]
        k = rename(replace(k, axes=(), passes=(replace(p, axes=(*k.axes, *p.axes)),)), cons)
        n = points(k.passes[0].axes)
        if square:
            return k, CudaSchedule("tiles", squares(k.passes[0]), wide=wide)
        return k, CudaSchedule("points", stretches(n, widest(k, buffers), target), wide=wide)
    k = rename(one_order(order_rows(reduced_over(k))), cons)
    return schedule_rows(k, buffers, cons, target, wide, Overlap(offsets or {}, slots or {}, buffers, own), room)


# ---- axes ---------------------------------------------------------------------------------------------------------
def collapse_rows(k: Kernel, cons: Cons) -> Kernel:
    """Axes joined where all offsets allow: inner ones over all passes that have them, so that a value of one pass is at
    the same place of the tile in another. All become parallel: `Reduce` says what is done along them."""
    joined = collapse(replace(k, passes=tuple(replace(p, axes=()) for p in k.passes)), cons)
    passes = [replace(q, axes=p.axes) for p, q in zip(k.passes, joined.passes)]
    for names in dict.fromkeys(frozenset(a.name for a in p.axes) for p in passes if p.axes):
        group = [i for i, p in enumerate(passes) if frozenset(a.name for a in p.axes) == names]
        while (found := pair(passes[group[0]].axes, set().union(*(indices(passes[i]) for i in group)))) is not None:
            x, y = found
            for i in group:
                axes = tuple(replace(a, size=x.size * y.size) if a.name == y.name else a
                             for a in passes[i].axes if a.name != x.name)
                passes[i] = without(replace(passes[i], axes=axes), x, cons)
    parallel = tuple(replace(p, axes=tuple(replace(a, kind="parallel") for a in p.axes)) for p in passes)
    return replace(joined, passes=parallel)


def reduced_over(k: Kernel) -> Kernel:
    """A reduction of one element has lost its axis: it gets one of one point."""
    return replace(k, passes=tuple(replace(p, axes=(Axis("one", 1),)) if p.reduces and not p.axes else p for p in k.passes))


def one_order(k: Kernel) -> Kernel:
    """Passes over the same axes walk them in one order: that of the pass that touches most memory."""
    best: dict[frozenset[str], tuple[int, tuple[str, ...]]] = {}
    for p in k.passes:
        names = tuple(a.name for a in p.axes)
        key = frozenset(names)
        score = len(loads(p.roots())) + 2 * len(p.stores)
        if key not in best or score > best[key][0]:
            best[key] = score, names
    return replace(k, passes=tuple(
        replace(p, axes=tuple(sorted(p.axes, key=lambda a: best[frozenset(b.name for b in p.axes)][1].index(a.name))))
        for p in k.passes))


# ---- facts of a kernel --------------------------------------------------------------------------------------------
def needs_wide(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether offsets may not fit i32: one reaches 2**31 elements, or so does what it is computed of, or a range of points,
    or any of these is not known."""
    for p in k.passes:
        if not known((*k.axes, *p.axes)) or max(points(p.axes), points(k.axes)) >= (1 << 31) - MARGIN:
            return True
    sizes = {a.name: a.size for p in k.passes for a in (*k.axes, *p.axes)}
    places = {(s.buffer, s.coords) for p in k.passes for s in p.stores} | {(e.name, e.attr) for e in loads(kernel_roots(k))}
    for name, at in places:
        b = buffers[name]
        if not all(isinstance(n, int) for n in (*b.shape, *b.stride)) or not all(fits_i32(c, sizes) for c in at):
            return True
        if b.kind == "local" and points(k.axes) * points([Axis("", n) for n in b.shape]) >= 1 << 31:
            return True
    return False


def fits_i32(at: Any, sizes: dict[str, Any]) -> bool:
    """Whether an index, each of its terms and each index within it are numbers of 31 bits. sizes: of its axes."""
    for x in (at, *(ix.Index(((atom, c),), 0) for atom, c in at.terms)):
        if not all(abs(v) < 1 << 31 for v in ix.bounds(x, sizes)):
            return False
    return all(fits_i32(ix.index(part), sizes) for atom, _ in at.terms for part in atom.parts
               if isinstance(part, ix.Index | ix.Atom))


def known(axes: tuple[Axis, ...]) -> bool:
    """Whether all sizes are numbers."""
    return all(isinstance(a.size, int) for a in axes)


def widest(k: Kernel, buffers: dict[str, Buffer]) -> int:
    """Bytes of the widest element that the kernel touches."""
    return max([itemsize(e.dtype) for e in loads(kernel_roots(k))]
               + [itemsize(buffers[s.buffer].dtype) for p in k.passes for s in p.stores], default=4)


def power(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class Overlap:
    """Whether two buffers of a plan may share bytes. offsets, slots: as in `Plan`; own: the kernel's own temps."""
    offsets: dict[str, int]
    slots: dict[str, int]
    buffers: dict[str, Buffer]
    own: frozenset[str] = frozenset()

    def __call__(self, a: str, b: str) -> bool:
        if a == b or a in self.slots and self.slots[a] == self.slots.get(b):
            return True
        if a not in self.offsets or b not in self.offsets:
            return False
        (a, m), (b, n) = ((self.offsets[x], self._bytes(x)) for x in (a, b))
        return a < b + n and b < a + m

    def _bytes(self, name: str) -> int:
        b = self.buffers[name]
        size = itemsize(b.dtype)
        return size * (1 + sum((n - 1) * s for n, s in zip(b.shape, b.stride) if n))


# ---- values instead of memory -------------------------------------------------------------------------------------
def forward(k: Kernel, buffers: dict[str, Buffer], cons: Cons, again: bool, overlap: Overlap) -> Kernel:
    """The kernel with loads of what an earlier pass stored at the same element replaced by the stored value.

    again: the value is computed again: not where it depends on a running result, or on memory that the kernel writes.
    """
    written = {s.buffer for p in k.passes for s in p.stores if buffers[s.buffer].kind != "local"}
    made: dict[str, tuple[Store, tuple[Axis, ...]]] = {}
    sizes = {a.name: a.size for p in k.passes for a in (*k.axes, *p.axes)}
    passes = []
    for p in k.passes:
        def on_load(e: Expr, coords: tuple, mask: Any, axes: tuple = p.axes, known: Any = made.copy()) -> Expr | None:
            s, own = known.get(e.name, (None, ()))
            return s.value if s is not None and mask is None and s.coords == coords and own in (axes, ()) else None
        p = Rewriter(cons, sizes, None, on_load).body(p)
        passes.append(p)
        scans = {r.name for r in p.reduces if r.running}
        for s in p.stores:
            made.pop(s.buffer, None)
            below = list(walk((s.value,)))
            if s.mode != "set" or s.mask is not None or any(e.kind == "ref" and e.name in scans for e in below):
                continue
            if again and any(overlap(e.name, w) for e in below if e.kind == "load" for w in written):
                continue
            made[s.buffer] = s, p.axes
    left = {e.name for p in passes for e in loads(p.roots())}
    gone = {n for n, b in buffers.items() if (b.kind == "local" or n in overlap.own) and n not in left}
    passes = [replace(p, stores=tuple(s for s in p.stores if s.buffer not in gone)) for p in passes]
    return replace(k, passes=tuple(p for p in passes if p.stores or p.reduces))


def kept(k: Kernel) -> int:
    """How many values of a whole row live from one pass to a later one."""
    seen: dict[Any, int] = {}
    live: set[Any] = set()
    for i, p in enumerate(k.passes):
        inner = {a.name for a in p.axes}
        for e in loads(p.roots()):
            if any(ix.variables(c) & inner for c in e.attr):
                if seen.setdefault((e, p.axes), i) < i:
                    live.add((e, p.axes))
    return max(1, len(live))


# ---- choices ------------------------------------------------------------------------------------------------------
def stretches(n: int, width: int, target: Target) -> tuple[Tile, ...]:
    """Tiles of `points`: 16 bytes a thread and load; small ranges in smaller pieces, so that every SM has some."""
    block = 2048 if width <= 2 else 1024
    while block > 128 and -(-n // block) < 2 * target.threads:
        block //= 2
    block = min(block, power(n))
    return tuple(Tile((("X", b),), min(8, max(1, b // per))) for b, per in dict.fromkeys(
        ((block, 256), (min(2 * block, power(n)), 256), (block, 128), (max(1, block // 2), 128))))


def squares(p: Pass) -> tuple[Tile, ...]:
    """Tiles of `tiles`: Y along the slower axis of the stores, X along the faster one."""
    y, x = (power(points([a])) for a in p.axes[-2:])
    shapes = ((64, 64, 8), (32, 64, 4), (32, 32, 4))
    if y < 32:
        shapes = ((y, 4096 // y, 8), (y, 2048 // y, 4), (y, 1024 // y, 4))
    elif x < 32:
        shapes = ((4096 // x, x, 8), (2048 // x, x, 4), (1024 // x, x, 4))
    return tuple(Tile((("Y", min(a, y)), ("X", min(b, x))), w) for a, b, w in shapes)


def spaces_of(k: Kernel) -> tuple[tuple[Axis, ...], ...]:
    """The distinct inner axes of passes, the largest first."""
    return tuple(sorted(dict.fromkeys(p.axes for p in k.passes if p.axes), key=lambda s: -points(s)))


def schedule_rows(k: Kernel, buffers: dict[str, Buffer], cons: Cons, target: Target, wide: bool,
                  overlap: Overlap, room: int) -> tuple[Kernel, CudaSchedule]:
    """Rows: persistent when a row fits the registers, else looped; split when rows are few and long."""
    near = forward(k, buffers, cons, False, overlap)
    spaces = spaces_of(near)
    rows, longest = points(k.axes), max((points(s) for s in spaces), default=1)
    sized = all(map(known, spaces))
    column = bool(k.axes) and column_axis(near) == k.axes[-1].name
    many = len(near.passes) > 1
    room //= max(1, widest(near, buffers) // 4)
    if sized and power(longest) * kept(near) <= (room if many else min(room, LOOP * 2)) and not column:
        tiles = row_tiles(rows, longest, target)
        return near, CudaSchedule("rows", blocks(tiles, spaces), tiles[0][0] == 1, False, wide, 1, spaces,
                                  barriers(near, overlap))
    if sized and column and power(longest) * 16 * kept(near) <= room // 4 and (many or longest <= 64):
        tiles = column_tiles(rows, longest, target)
        return near, CudaSchedule("rows", blocks(tiles, spaces), False, False, wide, 1, spaces, barriers(near, overlap))
    k = joined(forward(k, buffers, cons, True, overlap), overlap)
    spaces = spaces_of(k)
    x = min(COLUMNS, power(rows)) if column else 1
    work = longest * x
    programs = max(1, -(-rows // x))                         # none of a kernel without rows
    if known(k.axes) and sized and work >= LONG and programs < target.threads and can_split(k, buffers):
        parts = min(-(-4 * target.threads // programs), -(-work // (LONG // 4)), 1024)
        tiles = looped_tiles(x, -(-longest // parts), None)
        return k, CudaSchedule("split", blocks(tiles, spaces, True), x == 1, True, wide, parts, spaces)
    while column and x > 16 and -(-rows // x) < 2 * target.threads:
        x //= 2
    again = x == 1 and sum(bool(p.axes) for p in k.passes) > 1
    two = 2 * target.threads * sum(longest * itemsize(d) for d in read_again(k)) <= STAYS * target.cache_bytes
    tiles = looped_tiles(x, longest, (TWO_LOOPS if two else WIDE_LOOP) if again else None)
    return k, CudaSchedule("rows", blocks(tiles, spaces, True), x == 1, True, wide, 1, spaces, barriers(k, overlap))


def row_tiles(rows: int, longest: int, target: Target) -> list[tuple[int, int]]:
    """(rows a program, warps) of persistent rows, the choice first."""
    r = power(longest)
    x = 1
    if r < ROW:
        x = max(1, min(TILE // r, power(rows)))
        while x > 1 and -(-rows // x) < 2 * target.threads:
            x //= 2
    warps = max(1, min(MOST_WARPS, x * r // (256 if x > 1 or r <= 1024 else 512)))
    out = [(x, warps), (x, max(1, warps // 2)), (x, min(MOST_WARPS, warps * 2))]
    return list(dict.fromkeys(out + ([(x * 2, warps)] if x > 1 else [])))


def column_tiles(rows: int, longest: int, target: Target) -> list[tuple[int, int]]:
    """The same for columns that are reduced whole."""
    r = power(longest)
    x = max(16, min(COLUMNS, 4 * TILE // r))
    while x > 16 and -(-rows // x) < 2 * target.threads:
        x //= 2
    x = min(x, power(rows))
    warps = max(1, min(MOST_WARPS, x * r // 1024))
    return list(dict.fromkeys([(x, warps), (max(1, x // 2), max(1, warps // 2)), (x, min(MOST_WARPS, warps * 2))]))


def read_again(k: Kernel) -> list[str]:
    """The dtypes of what is read along the row by several passes."""
    seen: Counter[Expr] = Counter()
    for p in k.passes:
        inner = {a.name for a in p.axes}
        seen.update({e for e in loads(p.roots()) if any(ix.variables(c) & inner for c in e.attr)})
    return [e.dtype for e, n in seen.items() if n > 1]


def looped_tiles(x: int, longest: int, again: tuple[int, int] | None) -> list[tuple[int, int, int]]:
    """(rows, warps, inner points a turn) of loops. again: points and warps to begin with where passes read the row again."""
    out = []
    for size, warps in ((again,) if again else ()) + ((LOOP, 8), (2 * LOOP, 16), (LOOP // 2, 4)):
        r = max(1, min(power(longest), size // x))
        out.append((x, max(1, min(warps, x * r // 128)), r))
    return list(dict.fromkeys(out))


def blocks(tiles: list[tuple], spaces: tuple[tuple[Axis, ...], ...], looped: bool = False) -> tuple[Tile, ...]:
    """Tiles with a block for each space."""
    out = []
    for x, warps, *turn in tiles:
        sizes = [min(turn[0], power(points(s)) if known(s) else turn[0]) if looped else power(points(s)) for s in spaces]
        names = [("R" + (str(i) if i else ""), r) for i, r in enumerate(sizes)]
        out.append(Tile((("X", x), *names), warps))
    return tuple(dict.fromkeys(out))


def barriers(k: Kernel, overlap: Overlap) -> tuple[int, ...]:
    """Passes that must wait for the program's other threads."""
    out: list[int] = []
    stored: set[str] = set()
    read: dict[str, set[Any]] = {}
    for i, p in enumerate(k.passes):
        here: dict[str, set[Any]] = {}
        for e in loads(p.roots()):
            here.setdefault(e.name, set()).add((e.attr, p.axes))
        late = any(overlap(s.buffer, n) and at != {(s.coords, p.axes)} for s in p.stores for n, at in read.items())
        if late or stored & set(here):
            out.append(i)
            stored, read = set(), {}
        stored |= {s.buffer for s in p.stores}
        for n, at in here.items():
            read.setdefault(n, set()).update(at)
    return tuple(out)


def can_split(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether each pass can be a launch: no running results, nothing kept in a row's own memory."""
    if any(r.running for p in k.passes for r in p.reduces) or not any(p.reduces for p in k.passes):
        return False
    once = {s.buffer for p in k.passes if not p.axes for s in p.stores}
    if any(e.name in once for e in loads(kernel_roots(k))):
        return False
    return not any(buffers[e.name].kind == "local" for e in loads(kernel_roots(k)))

