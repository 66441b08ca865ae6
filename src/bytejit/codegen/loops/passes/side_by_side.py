"""Small kernels that need nothing of each other stand side by side, so that a GPU can be given them in one launch.

The weights that autocast makes narrow, the products of one row by three matrices, the updates of small parameters: each keeps a
part of the GPU busy for less time than a launch takes. A kernel moves up to the nearest such kernel before it, past steps that
touch nothing of what it touches. What it makes lives longer by that, so neither it nor the way is long.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bytejit.codegen.loops.ir import Buffer, Extern, Kernel, Loops
from bytejit.codegen.loops.simplify import bytes_of, kernel_roots, known, may_raise

from .uses import reads, writes

SMALL = 24 << 20  # bytes that a kernel reads and writes: more keep a GPU busy by themselves
WAY = 48  # groups that a kernel may move past
MOST = 16  # kernels of a group


@dataclass
class KernelGroup:
    """Steps that need nothing of each other; one step that is no small kernel is a group by itself."""

    open: bool
    steps: list[Kernel | Extern] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def add(self, step: Kernel | Extern) -> None:
        """One more step."""
        self.steps.append(step)
        self.reads.update(reads(step))
        self.writes.update(writes(step))

    def touches(self, step: Kernel | Extern) -> bool:
        """Whether a step has to stay behind this group."""
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
    """The last group that a small kernel may join."""
    for group in reversed(groups[-WAY:]):
        if group.touches(step):
            return None
        if group.open and len(group.steps) < MOST:
            return group
    return None


def is_small(step: Kernel | Extern, buffers: dict[str, Buffer]) -> bool:
    """Whether a step is a kernel of known and little work that cannot raise."""
    if not isinstance(step, Kernel) or may_raise(kernel_roots(step)):
        return False
    if not all(known((*step.axes, *p.axes)) for p in step.nests):
        return False
    touched = [buffers[name] for name in {*reads(step), *writes(step)}]
    return all(isinstance(n, int) for b in touched for n in b.shape) and sum(map(bytes_of, touched)) <= SMALL
