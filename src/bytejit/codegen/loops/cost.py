"""What kernels and plans cost, before they run: bytes moved and operations. For explain, for choices, for bounds in
notes."""

from __future__ import annotations

from dataclasses import dataclass

from bytejit.codegen.loops.plan import Call, Plan
from bytejit.common.dtypes import itemsize

from . import index as ix
from .ir import Axis, Buffer, Kernel
from .simplify import cost, loads, points


@dataclass(frozen=True)
class Cost:
    """read, written: bytes of memory (a buffer read in several nests of a row counts once). work: additions."""

    read: int
    written: int
    work: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.read + other.read, self.written + other.written, self.work + other.work)

    def __repr__(self) -> str:
        return f"reads {self.read} B, writes {self.written} B, {self.work} operations"


def kernel_cost(k: Kernel, buffers: dict[str, Buffer]) -> Cost:
    """One run of a kernel. A buffer's bytes count at most once: rows stay in cache between nests; locals count
    nothing."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    work = 0
    for p in k.nests:
        axes = (*k.axes, *p.axes)
        work += points(axes) * cost(p.roots())
        for e in loads(p.roots()):
            _touch(read, buffers[e.name], e.attr, axes)
        for s in p.stores:
            _touch(written, buffers[s.buffer], s.coords, axes)
    for name in set(read) & set(written):
        del read[name]  # what a nest has just written is still there
    return Cost(sum(read.values()), sum(written.values()), work)


def _touch(table: dict[str, int], b: Buffer, coords: tuple, axes: tuple[Axis, ...]) -> None:
    """Adds the elements that one access reaches: no more than the points of the axes it depends on, nor than the
    buffer."""
    if b.kind == "local":
        return
    names = set().union(*(ix.variables(c) for c in coords)) if coords else set()
    indirect = any(True for _ in ix.values_in(coords))
    reached = points([a for a in axes if a.name in names or indirect]) * itemsize(b.dtype)
    whole = points([Axis("", n) for n in b.shape]) * itemsize(b.dtype)
    table[b.name] = min(max(table.get(b.name, 0), reached), whole)


def plan_cost(plan: Plan) -> Cost:
    """All kernels of a plan; extern calls are not counted."""
    total = Cost(0, 0, 0)
    for step in plan.steps:
        if isinstance(step, Call):
            total += kernel_cost(step.kernel, plan.buffers)
    return total
