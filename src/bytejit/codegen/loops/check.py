"""Legality of loops and plans, with messages that name kernel, access and numbers. Always on in tests.

`check_loops(x)` and `check_plan(p)` return their argument, or raise Bug:
`k0 load p1: index 128*i0 + j0 reaches 8255, the buffer holds 8192`.
"""

from __future__ import annotations

from math import inf
from typing import Any

from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.plan import Call, Plan, Schedule
from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import DTYPES, NARROW, itemsize
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass

from . import index as ix
from .ir import Buffer, Kernel, LoopNest, Loops, View
from .memory import ALIGN, extent
from .uses import views_in


def check_loops(loops: Loops) -> Loops:
    """Checks that names are known, values are made before they are used, dtypes agree, and coordinates are within shapes.
    Raises: Bug."""
    known = {n for n in loops.inputs if n}
    for step in loops.steps:
        if isinstance(step, Kernel):
            check_kernel(step, loops.buffers, known, flat=False)
            known |= {s.buffer for p in step.nests for s in p.stores}
        else:
            _extern(step, loops.buffers, known)
            known |= {o for o in step.outs if o}
    _results(loops, known)
    return loops


def check_plan(plan: Plan) -> Plan:
    """Checks the same of a plan, where coordinates are offsets. Also: all temps are within the arena, calls list the buffers
    that their kernels touch, and schedules name axes of their kernels. Raises: Bug."""
    known = {n for n in plan.inputs if n}
    mutable = frozenset(n for m in plan.mutations if m.done and (n := plan.inputs[m.input]) is not None)
    for step in plan.steps:
        if isinstance(step, Call):
            check_kernel(step.kernel, plan.buffers, known, True, mutable)
            _call(step, plan.buffers)
            known |= set(step.writes)
        else:
            _extern(step.extern, plan.buffers, known)
            known |= {o for o in step.extern.outs if o}
        known -= set(step.free)
    _results(plan, known)
    for name, slot in plan.slots.items():
        if extent(plan.buffers[name]) not in plan.slot_bytes[slot]:
            raise Bug(f"{name} has {extent(plan.buffers[name])} bytes: slot {slot} is for {plan.slot_bytes[slot]}")
    for name, at in plan.offsets.items():
        if at % ALIGN or at + extent(plan.buffers[name]) > plan.arena:
            raise Bug(f"{name} at byte {at}, {extent(plan.buffers[name])} bytes: the arena holds {plan.arena}")
    return plan


def _results(program: Any, known: set[str]) -> None:
    for r in program.outputs:
        if r.view is not None:
            if r.view.buffer not in known:
                raise Bug(f"output {r.view} is never made")
            _window(r.view, program.buffers, "output")


def _window(v: View, buffers: dict[str, Buffer], what: str) -> None:
    b = buffers[v.buffer]
    if b.dtype not in DTYPES or 0 in v.shape:
        return
    last = ix.hint(v.offset + sum((n - 1) * s for n, s in zip(v.shape, v.stride)))
    room = ix.hint(1 + sum((n - 1) * s for n, s in zip(b.shape, b.stride)))
    if last >= room or ix.hint(v.offset) < 0:
        raise Bug(f"{what}: {v} reaches element {last}, {b!r} holds {room}")


def _extern(e: Any, buffers: dict[str, Buffer], known: set[str]) -> None:
    for v in views_in((e.args, e.kwargs)):
        if v.buffer not in known:
            raise Bug(f"{e.name} reads {v.buffer} before it is made")
        _window(v, buffers, e.name)
    for o in e.outs:
        if o and (buffers[o].kind == "extern") == e.into:
            raise Bug(f"{e.name}: {buffers[o]!r} and into={e.into} do not agree")


def _call(step: Call, buffers: dict[str, Buffer]) -> None:
    k, s = step.kernel, step.schedule
    touched = {x.buffer for p in k.nests for x in p.stores} | {
        e.name for p in k.nests for e in walk(p.roots()) if e.kind == "load"
    }
    listed = {*step.reads, *step.writes}
    touched = {b for b in touched if buffers[b].kind != "local"}
    if touched != listed:
        raise Bug(f"{k.name} touches {sorted(touched)}, its call lists {sorted(listed)}")
    if not isinstance(s, Schedule):
        s.check(k)
        return
    outer = [a.name for a in k.axes]
    if list(s.parallel) != outer[: len(s.parallel)] and not (not k.axes and len(k.nests) == 1):
        raise Bug(f"{k.name}: parallel axes {s.parallel} are not the first of {outer}")
    if len(s.nests) != len(k.nests):
        raise Bug(f"{k.name}: {len(s.nests)} scheduled nests, {len(k.nests)} in the kernel")
    for p, q in zip(k.nests, s.nests):
        if sorted(q.order) != sorted(a.name for a in p.axes):
            raise Bug(f"{k.name}: the order {q.order} does not name the axes of {p!r}")
        if q.vector is not None and q.vector != (s.block[0] if s.block else q.order[-1]):
            raise Bug(f"{k.name}: vector axis {q.vector} is not the innermost of {q.order}, block {s.block}")
    if s.block is not None and s.block[0] != outer[-1]:
        raise Bug(f"{k.name}: blocked axis {s.block[0]} is not the last of {outer}")


def check_kernel(
    k: Kernel, buffers: dict[str, Buffer], known: set[str], flat: bool, mutable: frozenset[str] = frozenset()
) -> None:
    """Checks one kernel. mutable: inputs that it may write. Raises: Bug."""
    refs: dict[str, str] = {}
    made = set(known)
    for p in k.nests:
        axes = (*k.axes, *p.axes)
        names = [a.name for a in axes]
        if len(set(names)) != len(names):
            raise Bug(f"{k.name}: an axis occurs twice in {names}")
        loops = _LoopsAround(k, p, {a.name: a.size for a in axes}, flat)
        scans = {r.name: r.dtype for r in p.reduces if r.running}
        inside = made | {s.buffer for s in p.stores}
        for e in walk(p.roots()):
            _expr(loops, e, buffers, inside, refs | scans)
        for s in p.stores:
            if s.over and (flat or s.over not in known):
                raise Bug(
                    f"{k.name} stores to {s.buffer} over {s.over}, which {'has no place yet' if flat else 'is not made before'}"
                )
            if s.buffer not in buffers:
                raise Bug(f"{k.name} stores to {s.buffer}, which is not declared")
            b = buffers[s.buffer]
            if b.kind in ("input", "extern") and b.name not in mutable:
                raise Bug(f"{k.name} stores to {b!r}, which it may not write")
            if s.value.dtype != b.dtype:
                raise Bug(f"{k.name} store {b.name}: the value {s.value!r} has another dtype than {b!r}")
            _coords(loops, "store", b, s.coords)
            made.add(s.buffer)
        refs |= {r.name: r.dtype for r in p.reduces if not r.running}  # a scan is read in its own nest only


@light_dataclass(frozen=True)
class _LoopsAround:
    """The loops around what is checked: a kernel, one of its nests, the sizes of all axes. flat: coordinates are offsets."""

    kernel: Kernel
    nest: LoopNest
    sizes: dict[str, Any]
    flat: bool


def _expr(at: _LoopsAround, e: Expr, buffers: dict[str, Buffer], made: set[str], refs: dict[str, str]) -> None:
    k = at.kernel
    if e.kind == "load":
        if e.name not in buffers or e.name not in made and buffers[e.name].kind != "input":
            raise Bug(f"{k.name} loads {e.name} before it is made")
        b = buffers[e.name]
        if b.dtype != e.dtype:
            raise Bug(f"{k.name} load {b.name}: {e!r} has another dtype than {b!r}")
        _coords(at, "load", b, e.attr, masked=e.mask is not None)
    elif e.kind == "ref":
        if refs.get(e.name) != e.dtype:
            raise Bug(f"{k.name} {at.nest!r}: ref {e.name} ({e.dtype}) is no reduction made before; these are: {refs}")
    elif e.kind == "op":
        row = table().by_name.get(e.name)
        if row is None or row.kind != "pointwise":
            raise Bug(f"{k.name}: op {e.name} has no row of kind pointwise")
        if len(e.args) != row.arity:
            raise Bug(f"{k.name}: {e.name} takes {row.arity} operands, has {len(e.args)}")
        _dtypes(k, e)
    elif e.kind == "index":
        _axes(at, e.attr, "index")


def _dtypes(k: Kernel, e: Expr) -> None:
    """f16 and bf16 are only loaded, stored, widened and narrowed; the operands of an op have one dtype."""
    kinds = [a.dtype for a in (e.args[1:] if e.name == "select" else e.args)]
    if e.name in ("to", "narrow"):
        return
    if len(set(kinds)) > 1 or e.dtype in NARROW or kinds and kinds[0] in NARROW:
        raise Bug(f"{k.name}: {e.name} of {kinds} makes {e.dtype}: operands need one dtype, and neither f16 nor bf16")
    if e.name == "select" and e.args[0].dtype != "b8":
        raise Bug(f"{k.name}: the condition of select is {e.args[0].dtype}, not b8")


def _axes(at: _LoopsAround, x: Any, what: str) -> None:
    unknown = ix.variables(x) - set(at.sizes)
    if unknown:
        raise Bug(f"{at.kernel.name} {what}: {x} uses {sorted(unknown)}, the loops are {sorted(at.sizes)}")


def _coords(at: _LoopsAround, what: str, b: Buffer, coords: tuple, masked: bool = False) -> None:
    k, sizes, flat = at.kernel, at.sizes, at.flat
    if len(coords) != (1 if flat else len(b.shape)):
        raise Bug(f"{k.name} {what} {b.name}: {len(coords)} coordinates for {b!r}")
    if 0 in sizes.values() or not all(isinstance(s, int) for s in (*b.shape, *sizes.values())):
        return
    room = (int(extent(b)) // itemsize(b.dtype),) if flat else b.shape
    for c, size in zip(coords, room):
        _axes(at, c, f"{what} {b.name}")
        low, high = ix.bounds(c, sizes)
        if (
            not masked
            and (low < 0 or high >= size)
            and high < inf
            and not any(type(a) is ix.Mod or type(a) is ix.Div for a in ix.atoms(c))
        ):
            raise Bug(f"{k.name} {what} {b.name}: index {c} reaches {low if low < 0 else high}, the buffer holds {size}")
