"""Moves small independent kernels next to each other, so that a GPU can run them in one launch.

Examples are the weights that autocast converts, the products of one row by three matrices, and the updates of small parameters.
Each occupies a part of the GPU for less time than a launch takes. A kernel moves up to the nearest such kernel before it, past
steps that it does not depend on. Its results live longer then, so that only small kernels move, and not far.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bytejit.codegen.loops.ir import Buffer, Extern, Kernel, Loops
from bytejit.codegen.loops.simplify import bytes_of, kernel_roots, known, may_raise
from bytejit.codegen.loops.uses import reads, writes

SMALL = 24 << 20  # bytes that a kernel reads and writes: more keep a GPU busy by themselves
WAY = 48  # at most so many groups does a kernel move past
MOST = 16  # at most so many kernels form a group


@dataclass
class KernelGroup:
    """Steps that do not depend on each other. open: all are small kernels, and others may join; else it is one other step."""

    open: bool
    steps: list[Kernel | Extern] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def add(self, step: Kernel | Extern) -> None:
        """Adds a step."""
        self.steps.append(step)
        self.reads.update(reads(step))
        self.writes.update(writes(step))

    def touches(self, step: Kernel | Extern) -> bool:
        """Whether a step has to stay after this group."""
        made = set(writes(step))
        return not self.writes.isdisjoint(reads(step)) or not made.isdisjoint(self.reads | self.writes)


def side_by_side(loops: Loops) -> Loops:
    """The same steps in another order."""
    groups: list[KernelGroup] = []
    for step in loops.steps:
        small = is_small(step, loops.buffers)
        place = nearest(groups, step) if small else None
        if place is None:
            groups.append(place := KernelGroup(small))
        place.add(step)
    return replace(loops, steps=tuple(step for group in groups for step in group.steps))


def nearest(groups: list[KernelGroup], step: Kernel | Extern) -> KernelGroup | None:
    """The last group that a small kernel may join; None when there is none."""
    for group in reversed(groups[-WAY:]):
        if group.touches(step):
            return None
        if group.open and len(group.steps) < MOST:
            return group
    return None


def is_small(step: Kernel | Extern, buffers: dict[str, Buffer]) -> bool:
    """Whether a step is a kernel of constant sizes that reads and writes few bytes and cannot raise."""
    if not isinstance(step, Kernel) or may_raise(kernel_roots(step)):
        return False
    if not all(known((*step.axes, *p.axes)) for p in step.nests):
        return False
    touched = [buffers[name] for name in {*reads(step), *writes(step)}]
    return all(isinstance(n, int) for b in touched for n in b.shape) and sum(map(bytes_of, touched)) <= SMALL
