"""Loops -> plan: how each kernel runs on a machine, as data that names no language.

For each kernel: offsets instead of coordinates; axes that are contiguous in memory are collapsed; loops are ordered so that the
innermost has stride 1; the axis that is vectorized; blocks for reductions of columns; tiles for transpositions; the axes that
threads share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.ir import Axis, Buffer, Kernel, LoopNest, Loops
from bytejit.codegen.loops.memory import Memory, plan_memory
from bytejit.codegen.loops.passes.fuse_kernels import flexible
from bytejit.codegen.loops.passes.write_inputs import write_inputs
from bytejit.codegen.loops.plan import Call, ExternCall, Machine, NestSchedule, Plan, Schedule
from bytejit.codegen.loops.simplify import Rewriter, cost, kernel_roots, known, points
from bytejit.codegen.loops.uses import reads, writes
from bytejit.common.dtypes import acc_dtype, itemsize
from bytejit.common.interrupts import poll

from .concatenated_parts import in_ranges

GRAIN = 32768  # additions: less work than this is not worth a thread
COLUMNS = 64  # elements of a block of columns: a few vectors, so that accumulators stay in registers
TILE = 32  # elements, along both axes, of a tile of a transposition
ACCUMULATORS = 4  # vectors of partial results of a reduction: one addition does not wait for the one before it
LONG = 65536  # elements: threads may share a row of at least so many


def schedule(loops: Loops, machine: Machine, memory: Memory | None = None, one: Callable | None = None) -> Plan:
    """The plan for a machine. memory: default `plan_memory`; one: the function that schedules a kernel, default for a CPU.
    Deterministic."""
    loops = write_inputs(loops) if memory is None else loops
    memory = memory or plan_memory(loops)
    steps: list[Any] = []
    for i, step in enumerate(loops.steps):
        poll()
        free = memory.free.get(i, ())
        if isinstance(step, Kernel):
            parts = [step] if one else in_ranges(step, loops.cons)
            for part in parts:
                kernel, sched = (one or schedule_kernel)(part, loops.buffers, loops.cons, machine)
                out = writes(part)
                near = [b for b in reads(part) if loops.buffers[b].kind != "local" and b not in out]
                done = free if part is parts[-1] else ()
                steps.append(Call(kernel, sched, tuple(near), tuple(b for b in out if loops.buffers[b].kind != "local"), done))
        else:
            steps.append(ExternCall(step, free))
    return Plan(
        loops.inputs,
        loops.buffers,
        tuple(steps),
        loops.outputs,
        loops.mutations,
        memory.offsets,
        memory.arena,
        machine.name,
        memory.slots,
        memory.slot_bytes,
        loops.symbols,
    )


# ---- offsets, and fewer axes -----------------------------------------------------------------------------------------
def flatten(k: Kernel, buffers: dict[str, Buffer], cons: Cons) -> Kernel:
    """The kernel with one coordinate for each load and store: the offset in elements."""
    sizes = {a.name: a.size for p in k.nests for a in (*k.axes, *p.axes)}

    def at(name: str, coords: tuple) -> tuple:
        return (ix.resimplify(ix.linear(coords, buffers[name].stride), sizes),)

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr:
        return cons.load(e.name, at(e.name, coords), e.dtype, mask, e.where)

    rewrite = Rewriter(cons, sizes, None, on_load)
    nests = []
    for p in k.nests:
        p = rewrite.body(p)
        nests.append(replace(p, stores=tuple(replace(s, coords=at(s.buffer, s.coords)) for s in p.stores)))
    return replace(k, nests=tuple(nests))


def indices(p: LoopNest) -> set[ix.Index]:
    """Every index in a nest: offsets of loads and stores, indices used as values."""
    found = {c for s in p.stores for c in s.coords}
    for e in walk(p.roots()):
        if e.kind == "load":
            found.update(e.attr)
        elif e.kind == "index":
            found.add(e.attr)
    return found


def pair(axes: tuple[Axis, ...], used: set[ix.Index]) -> tuple[Axis, Axis] | None:
    """Two axes (slow, fast) that can be collapsed: in every index they form one longer axis. None when there are none."""
    for y in axes:
        for x in axes:
            if x is y or x.kind != y.kind or x.kind == "scan":
                continue
            if all(i.coefficient(x.name) == i.coefficient(y.name) * y.size for i in used):
                if not any(i.within_atoms(a.name) for i in used for a in (x, y)):
                    return x, y
    return None


def collapse(k: Kernel, cons: Cons) -> Kernel:
    """The kernel with axes collapsed where all its offsets allow it: outer axes over all nests, inner ones within each nest."""
    while True:
        found = pair(k.axes, set().union(*map(indices, k.nests)))
        if found is None:
            break
        x, y = found
        k = replace(
            k,
            axes=tuple(replace(a, size=ix.size_of(x.size * y.size)) if a is y else a for a in k.axes if a is not x),
            nests=tuple(without(p, x, cons) for p in k.nests),
        )
    nests = []
    for p in k.nests:
        while (found := pair(p.axes, indices(p))) is not None:
            x, y = found
            axes = tuple(replace(a, size=ix.size_of(x.size * y.size)) if a is y else a for a in p.axes if a is not x)
            p = without(replace(p, axes=axes), x, cons)
        nests.append(p)
    return replace(k, nests=tuple(nests))


def without(p: LoopNest, x: Axis, cons: Cons) -> LoopNest:
    """The nest without index terms in x: after the collapse the terms of the other axis cover them."""
    return Rewriter(cons, {}, {x.name: ix.ZERO}).body(p)


def rename(k: Kernel, cons: Cons) -> Kernel:
    """The kernel with outer axes i0, i1, ..., inner axes j0, j1, ... and reductions m0, m1, ...: equal kernels get equal text.

    A name has one size in the whole kernel: nests share a name only for axes of the same size.
    """
    outer = {a.name: f"i{n}" for n, a in enumerate(k.axes)}
    refs: dict[str, str] = {}
    for p in k.nests:
        for r in p.reduces:
            refs.setdefault(r.name, f"m{len(refs)}")
    nests: list[LoopNest] = []
    sizes: dict[str, ix.Size] = {}
    for p in k.nests:
        names = outer | inner_names(p, sizes)
        body = Rewriter(cons, {}, {a: ix.var(n) for a, n in names.items()}, refs=refs).body(p)
        nests.append(replace(body, axes=tuple(replace(a, name=names[a.name]) for a in p.axes)))
    return replace(k, axes=tuple(replace(a, name=outer[a.name]) for a in k.axes), nests=tuple(nests))


def inner_names(p: LoopNest, sizes: dict[str, ix.Size]) -> dict[str, str]:
    """Names for a nest's own axes: j0, j1, ..., without those that have another size in `sizes`, to which they are added."""
    names: dict[str, str] = {}
    for a in p.axes:
        n = 0
        while f"j{n}" in names.values() or sizes.get(f"j{n}", a.size) != a.size:
            n += 1
        names[a.name] = f"j{n}"
        sizes[f"j{n}"] = a.size
    return names


# ---- choices ---------------------------------------------------------------------------------------------------------
def votes(p: LoopNest, names: set[str]) -> dict[str, int]:
    """Axis -> how well the nest's accesses suit it as the innermost: accesses of stride 1 count for it, others against it, stores
    twice. Only accesses that depend on the most axes count: vectors of channel parameters are small beside an image."""
    found = dict.fromkeys(sorted(names), 0)
    accesses = [(s.coords[0], 2) for s in p.stores] + [(e.attr[0], 1) for e in p.loads]
    widest = max((len(ix.variables(at) & names) for at, _ in accesses), default=0)
    for at, weight in accesses:
        if len(ix.variables(at) & names) < widest:
            continue
        for name in found:
            c = at.coefficient(name)
            found[name] += 4 * weight if c == 1 else 0
            if c != 1 and name in ix.variables(at):
                found[name] -= weight
    return found


def best_axis(p: LoopNest, axes: tuple[Axis, ...]) -> str | None:
    """The best innermost axis by `votes`; among equals the longest. None without axes."""
    if not axes:
        return None
    score = votes(p, {a.name for a in axes})
    return max(axes, key=lambda a: (score[a.name], points([a]))).name


def by_stride(axes: tuple[Axis, ...], p: LoopNest) -> list[Axis]:
    """Axes with the largest stride first: of the nest's stores, else of its loads."""
    accesses = [s.coords[0] for s in p.stores] or [e.attr[0] for e in p.loads]
    return sorted(axes, key=lambda a: -max((abs(ix.hint(c.coefficient(a.name))) for c in accesses), default=0))


def schedule_kernel(k: Kernel, buffers: dict[str, Buffer], cons: Cons, machine: Machine) -> tuple[Kernel, Schedule]:
    """The kernel in its final loops, and how they run."""
    k = collapse(flatten(k, buffers, cons), cons)
    k = ordered(k) if any(a.kind == "scan" for a in k.axes) else order_pointwise(k) if flexible(k) else order_rows(k)
    k = rename(k, cons)
    block = column_block(k)
    nests = tuple(schedule_nest(k, p, block, machine) for p in k.nests)
    work = max(1, sum(points(p.axes) * max(1, cost(p.roots()) + len(p.loads)) for p in k.nests))
    rows = points(k.axes)
    parallel: tuple[str, ...] = tuple(a.name for a in k.axes)
    unit = work * (min(block[1], rows) if block else 1)
    split = 0
    if not k.axes and len(k.nests) == 1 and not k.nests[0].reduces and k.nests[0].axes:
        first = next(a for a in k.nests[0].axes if a.name == nests[0].order[0])
        parallel, unit = ((first.name,), max(1, work // max(1, points([first])))) if first.kind == "parallel" else ((), 1)
    elif rows < machine.threads and known(k.axes) and can_split(k, buffers):
        parallel, split = (), machine.threads
    if work * rows < 2 * GRAIN and known(a for p in k.nests for a in (*k.axes, *p.axes)):
        parallel, split = (), 0
    grain = max(1, -(-GRAIN // max(1, unit))) * (block[1] if block else 1)
    return k, Schedule(parallel, grain, nests, block, split)


def order_pointwise(k: Kernel, least: int = TILE) -> Kernel:
    """A kernel without inner axes: the axis of stride 1 becomes the nest's, with another one when the kernel transposes. least:
    as in `transposed`."""
    p = k.nests[0]
    if not k.axes:
        return k
    inner = best_axis(p, k.axes)
    axes = by_stride(k.axes, p)
    own = [a for a in axes if a.name == inner]
    other = None if inner is None else transposed(p, k.axes, inner, least)
    if other is not None:
        own = [a for a in axes if a.name == other] + own
    return replace(k, axes=tuple(a for a in axes if a not in own), nests=(replace(p, axes=tuple(own)),))


def ordered(k: Kernel) -> Kernel:
    """A kernel that writes at indices read from memory. Axes along which two points may write the same element become the nest's,
    with all axes after them: a nest runs in order, and the last write wins."""
    first = next(i for i, a in enumerate(k.axes) if a.kind == "scan")
    return replace(k, axes=k.axes[:first], nests=(replace(k.nests[0], axes=k.axes[first:]),))


def transposed(p: LoopNest, axes: tuple[Axis, ...], inner: str, least: int = TILE) -> str | None:
    """An axis along which some load has stride 1 that has a larger stride along `inner`; both have at least `least` elements.
    None when there is none."""
    sizes = {a.name: points([a]) if known([a]) else max(least, points([a])) for a in axes}
    for e in p.loads:
        if abs(ix.hint(e.attr[0].coefficient(inner))) > 1:
            for a in axes:
                if a.name != inner and e.attr[0].coefficient(a.name) == 1 and min(sizes[a.name], sizes[inner]) >= least:
                    return a.name
    return None


def order_rows(k: Kernel) -> Kernel:
    """A kernel of nests: an outer axis of stride 1 (columns) comes last; in a nest the axes of the largest strides come first."""
    column = column_axis(k)
    axes = [a for a in k.axes if a.name != column] + [a for a in k.axes if a.name == column]
    nests = []
    for p in k.nests:
        inner = best_axis(p, p.axes)
        rest = tuple(a for a in p.axes if a.name != inner)
        scans = any(a.kind == "scan" for a in p.axes)
        nests.append(p if scans else replace(p, axes=(*by_stride(rest, p), *(a for a in p.axes if a.name == inner))))
    return replace(k, axes=tuple(axes), nests=tuple(nests))


def column_axis(k: Kernel) -> str | None:
    """The outer axis that suits the accesses of the nests better as the innermost than the nests' own axes do; else None."""
    total: dict[str, int] = {}
    inner = 0
    for p in k.nests:
        if p.axes:
            score = votes(p, {a.name for a in (*k.axes, *p.axes)})
            for a in k.axes:
                total[a.name] = total.get(a.name, 0) + score[a.name]
            inner += max(score[a.name] for a in p.axes)
    sizes = {a.name: points([a]) for a in k.axes}
    good = [n for n, s in total.items() if s > max(0, inner) and sizes[n] >= 8]
    return max(good, key=lambda n: total[n]) if good else None


def column_block(k: Kernel) -> tuple[str, int] | None:
    """(axis, size of a block) of a kernel whose last axis is a column axis (see `order_rows`); else None."""
    if not k.axes or not any(p.axes for p in k.nests) or flexible(k) or column_axis(k) != k.axes[-1].name:
        return None
    if len(k.nests) == 1 and not k.nests[0].reduces:
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
    lanes = lanes if size >= lanes or not known(p.axes[-1:]) else 1
    many = ACCUMULATORS if p.reduces and size >= ACCUMULATORS * lanes else 1
    tile: tuple[tuple[str, int], ...] = ()
    if len(order) == 2 and flexible(replace(k, nests=(replace(p, axes=()),))) and not p.reduces and len(k.nests) == 1:
        tile = tuple((n, TILE) for n in order) if transposed(p, p.axes, order[-1]) == order[0] else ()
    return NestSchedule(order, order[-1] if lanes > 1 else None, lanes, many, tile)


def can_split(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether threads can share a row: it is long, and only the first nest reduces and it stores nothing."""
    if not k.nests or not k.nests[0].reduces or k.nests[0].stores:
        return False
    if any(p.reduces for p in k.nests[1:]) or any(a.kind == "scan" for p in k.nests for a in p.axes):
        return False
    if any(buffers[e.name].kind == "local" for e in walk(kernel_roots(k)) if e.kind == "load"):
        return False
    return points(k.nests[0].axes) >= LONG
