"""Places temporary buffers in one arena. Buffers share bytes if their lifetimes do not overlap. A result may overwrite an
operand that no later step reads.

A buffer lives from the step that makes it to the last step that reads it. The user's inputs are never reused; outputs are
allocated in each call.
"""

from __future__ import annotations

from dataclasses import field

from bytejit.codegen.ops.extern import is_window
from bytejit.common.dtypes import itemsize
from bytejit.common.light_dataclass import light_dataclass

from . import index as ix
from .ir import Buffer, Extern, Kernel, Loops, Store
from .uses import reads, writes

ALIGN = 64
PARTS = 8  # of a graph: what dies within one of them lies together in the blocks of a large arena


@light_dataclass(frozen=True)
class Memory:
    """offsets: byte offset in the arena of each temp buffer. arena: its size. inplace: result -> operand it
    overwrites.
    free: step position -> extern buffers that no later step reads. slots, slot_bytes: as in `Plan`, for temps of symbolic size.
    Units: bytes."""

    offsets: dict[str, int]
    arena: int
    inplace: dict[str, str]
    free: dict[int, tuple[str, ...]]
    slots: dict[str, int] = field(default_factory=dict)
    slot_bytes: tuple[tuple, ...] = ()

    def __repr__(self) -> str:
        return f"memory: {len(self.offsets)} temps in {self.arena} bytes, {len(self.inplace)} in place"


def extent(b: Buffer) -> ix.Size:
    """Bytes from the first to the last element; an index where a size is symbolic."""
    if 0 in b.shape:
        return 0
    return ix.size_of((1 + sum((n - 1) * s for n, s in zip(b.shape, b.stride))) * itemsize(b.dtype))


def lives(loops: Loops) -> dict[str, tuple[int, int]]:
    """First and last step position of each buffer that a step makes. Outputs live past the end. A buffer of which a library
    call returns a view lives as long as the view."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, step in enumerate(loops.steps):
        for b in writes(step):
            first.setdefault(b, i)
            last[b] = i
        for b in reads(step):
            last[b] = i
    for r in loops.outputs:
        if r.view is not None:
            last[r.view.buffer] = len(loops.steps)
    for step in reversed(loops.steps):  # a view of a view comes after it
        if isinstance(step, Extern) and not step.into and is_window(step.target):
            end = max((last[b] for b in writes(step)), default=0)
            last.update((b, max(last[b], end)) for b in reads(step))
    return {b: (i, last[b]) for b, i in first.items()}


def plan_memory(loops: Loops, unused: frozenset[str] = frozenset(), block: int = 0) -> Memory:
    """Offsets for all temps but `unused` ones. An arena of more than `block` bytes (0: none) is made of blocks: see `place`."""
    life = lives(loops)
    temps = [b for b in loops.buffers.values() if b.kind == "temp" and b.name in life and b.name not in unused]
    inplace = {made: over for made, over in in_place(loops, life).items() if not {made, over} & unused}
    root: dict[str, str] = {}
    for b in temps:
        root[b.name] = b.name
    for result, operand in inplace.items():  # in step order: chains end at their first buffer
        root[result] = root[operand]
    groups: dict[str, list[Buffer]] = {}
    for b in temps:
        groups.setdefault(root[b.name], []).append(b)
    when = {g: (min(life[b.name][0] for b in bs), max(life[b.name][1] for b in bs)) for g, bs in groups.items()}
    symbolic = {g: bs for g, bs in groups.items() if not all(isinstance(extent(b), int) for b in bs)}
    slots, slot_bytes = share_slots(symbolic, when)
    groups = {g: bs for g, bs in groups.items() if g not in symbolic}
    spans = {g: (max(int(extent(b)) for b in bs), *when[g]) for g, bs in groups.items()}
    places, arena = place(spans)
    if block and arena > block:
        places, arena = place(spans, block, max(1, len(loops.steps) // PARTS))
    offsets = {b.name: at for g, at in places.items() for b in groups[g]}
    free: dict[int, tuple[str, ...]] = {}
    for name, (_, end) in life.items():
        if loops.buffers[name].kind == "extern" and end < len(loops.steps):
            free[end] = (*free.get(end, ()), name)
    return Memory(offsets, arena, inplace, free, slots, slot_bytes)


def place(spans: dict[str, tuple[int, int, int]], block: int = 0, part: int = 0) -> tuple[dict[str, int], int]:
    """Returns where each group of temps lies, and the bytes of all. spans: bytes, first and last step of a group. The largest are
    placed first, each at the lowest offset that is free during its whole lifetime.

    block: no group crosses a multiple of this many bytes, except larger ones, which begin at a multiple. With blocks, the
    groups that live longest are placed first, so that a block holds groups that die at about the same time. part: the steps
    within which lifetimes count as equal.
    """
    placed: list[tuple[int, int, int, int]] = []
    places: dict[str, int] = {}

    def fitted(at: int, size: int) -> int:
        """The first offset from `at` where so many bytes may lie."""
        return -(-at // block) * block if block and at // block != (at + size - 1) // block else at

    def turn(g: str) -> tuple:
        size, start, end = spans[g]
        return -(end // part) if part else 0, -size, start, g

    for g in sorted(spans, key=turn):
        size, start, end = spans[g]
        at = 0
        for low, high, s, e in placed:
            if s <= end and start <= e and low < at + size and at < high:
                at = fitted(high, size)
        places[g] = at
        placed.append((at, at + -(-size // ALIGN) * ALIGN, start, end))
        placed.sort()
    return places, max((p[1] for p in placed), default=0)


def share_slots(
    groups: dict[str, list[Buffer]],
    when: dict[str, tuple[int, int]],
) -> tuple[dict[str, int], tuple[tuple, ...]]:
    """A slot for each buffer of symbolic size: a slot that is free by then, of the same or (by the hints) the nearest size, else
    a new one."""
    slots: dict[str, int] = {}
    ends: list[int] = []
    sizes: list[dict] = []
    for g in sorted(groups, key=lambda g: (when[g][0], -max(ix.hint(extent(b)) for b in groups[g]), g)):
        start, end = when[g]
        wanted = dict.fromkeys(map(extent, groups[g]))
        most = max(map(ix.hint, wanted))
        free = [i for i, last in enumerate(ends) if last < start]
        best = min(
            free, key=lambda i: (not wanted.keys() <= sizes[i].keys(), abs(max(map(ix.hint, sizes[i])) - most)), default=None
        )
        if best is None:
            best = len(ends)
            ends.append(0)
            sizes.append({})
        ends[best] = end
        sizes[best].update(wanted)
        slots.update((b.name, best) for b in groups[g])
    return slots, tuple(map(tuple, sizes))


def in_place(loops: Loops, life: dict[str, tuple[int, int]]) -> dict[str, str]:
    """Result -> the operand that it may overwrite, which no later step reads: element by element, or row by row."""
    found: dict[str, str] = {}
    for i, step in enumerate(loops.steps):
        if not isinstance(step, Kernel):
            continue
        written = writes(step)
        read = (loops.buffers[n] for n in reads(step) if n not in written)
        dying = [a for a in read if a.kind == "temp" and life[a.name][1] == i]
        for at, p in enumerate(step.nests):
            for s in p.stores:
                b = loops.buffers[s.buffer]
                if b.kind != "temp" or life[b.name][0] != i:
                    continue
                operand = next((a for a in dying if same_size(a, b) and overwritable(step, a, b, s, at)), None)
                if operand is not None:
                    found[b.name] = operand.name
                    dying.remove(operand)
    return found


def same_size(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers have the same number of elements, and elements of the same size."""
    return extent(a) == extent(b) and itemsize(a.dtype) == itemsize(b.dtype)


def overwritable(k: Kernel, a: Buffer, b: Buffer, s: Store, at: int) -> bool:
    """Whether all loads of `a` come before (in the row's earlier nests) or at the same element as the store to `b`."""
    outer = {axis.name for axis in k.axes}
    alike = (a.shape, a.stride) == (b.shape, b.stride)
    for i, p in enumerate(k.nests):
        for e in p.loads:
            if e.name != a.name:
                continue
            if i > at:
                return False
            if i < at:
                if not (alike and e.mask is None and same_row(e.attr, s.coords, outer)):
                    return False
            elif not (e.attr == s.coords if alike else ix.linear(e.attr, a.stride) == ix.linear(s.coords, b.stride)):
                return False
    return s.mask is None and s.mode == "set"


def same_row(load: tuple, store: tuple, outer: set[str]) -> bool:
    """Whether a load of an earlier nest reads only elements that the same row overwrites: their coordinates along the outer
    axes are equal."""
    rows: set[str] = set()
    for c, d in zip(load, store):
        if ix.variables(c) & outer or ix.variables(d) & outer:
            if c != d:
                return False
            rows |= ix.variables(d)
    return outer <= rows
