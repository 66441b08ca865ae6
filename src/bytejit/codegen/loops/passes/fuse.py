"""Fusion: small kernels of single ops become kernels that touch memory once.

1. `inline`: a pointwise kernel goes into its readers, where computing again costs less than memory.
2. `merge`: a kernel and a reader of its results that walk the same rows become one kernel of nests; so do kernels
that read
   the same elements. Values pass between nests in registers (the same nest), as refs (one a row), or in a row-local
   buffer.
Cost is bytes moved. A merge never closes a cycle through other steps. Neither makes a kernel of more than MOST_WORK, and of the
many that read a buffer only the nearest are tried: so the time of a compile grows as the graph does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace
from functools import partial

from bytejit.codegen.loops.ir import Extern, Kernel, Loops, updates
from bytejit.codegen.loops.simplify import (
    MOST_WORK,
    bytes_of,
    kernel_roots,
    points,
    work,
)
from bytejit.codegen.passes import Pass

from . import fuse_kernels
from .dependencies import Dependencies
from .inline import inline, transposes
from .side_by_side import side_by_side
from .split import split_axes
from .uses import drop_dead, reads, writes

FEW = 1 << 22  # points up to which few long rows are one kernel on a GPU: launches cost more than they gain
SMALL = 4096  # points: a kernel on parameters that may run before all others
NEAREST = 16  # steps on each side of a step, of those that read a buffer, with which it may become one


def merge_kernels(loops: Loops, launches: bool = False) -> Loops:
    """Kernels that share rows become one."""
    return Merger(loops, FEW if launches else 0).run()


def passes(launches: bool = False) -> tuple[Pass, ...]:
    """The passes over `Loops` before a schedule. launches: a kernel costs a launch (on a GPU), so that computing a parameter's
    few elements again at every point costs less than a kernel of their own."""
    return (
        Pass("drop_dead", drop_dead, "first: what nobody reads is no reader"),
        Pass("inline", partial(inline, launches=launches), "before split_axes: it looks at whole expressions"),
        Pass("split_axes", split_axes, "before merge: equal loops must look equal"),
        Pass("merge", partial(merge_kernels, launches=launches)),
        Pass("drop_merged", drop_dead, "values that merged kernels keep to themselves"),
        *((Pass("side_by_side", side_by_side, "last: the order of what is left"),) if launches else ()),
    )


def fuse(loops: Loops, launches: bool = False) -> Loops:
    """The same program in fewer kernels. Deterministic. launches: as in `passes`."""
    for step in FUSE_LAUNCHES if launches else FUSE:
        loops = step.run(loops)
    return loops


@dataclass
class StepNode:
    """A step while merging. work: at most so much; exact: it is the work."""

    id: int
    step: Kernel | Extern
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    work: int = 0
    exact: bool = False
    merges: int = 0  # number of nodes merged into it


class Merger:
    """Merges kernels pairwise, the pair that saves most bytes at each reader first, until no pair can."""

    def __init__(self, loops: Loops, few: int = 0):
        self.loops, self.few = loops, few  # few: as in `fuse_kernels.fuse_pair`
        self.buffers = dict(loops.buffers)
        self.nodes: dict[int, StepNode] = {}
        self.outputs = {r.view.buffer for r in loops.outputs if r.view is not None}
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}  # sorted
        self.sizes: dict[str, int] = {}  # bytes of buffers that were asked for
        self.failed: dict[tuple[int, int], tuple[int, int]] = {}  # a pair that did not merge -> the merges of each by then
        for i, step in enumerate(loops.steps):
            self.nodes[i] = StepNode(i, step, work=MOST_WORK + 1)
            self.learn(self.nodes[i])
        self.needs = self.link()

    def learn(self, node: StepNode) -> None:
        """Record what a new or changed node reads and writes."""
        node.reads, node.writes = set(reads(node.step)), set(writes(node.step))
        for b in node.reads:
            insort(self.readers.setdefault(b, []), node.id)
        for b in node.writes:
            self.maker[b] = node.id

    def forget(self, node: StepNode) -> None:
        """Remove what `learn` recorded."""
        for b in node.reads:
            found = self.readers[b]
            del found[bisect_left(found, node.id)]
        for b in node.writes:
            del self.maker[b]

    def link(self) -> Dependencies:
        """Link each step to the steps that it needs. Extern calls keep their order (some draw random numbers)."""
        last, before = None, {}
        for n in self.nodes.values():
            before[n.id] = {self.maker[b] for b in n.reads if b in self.maker} - {n.id}
            if isinstance(n.step, Extern):
                if last is not None:
                    before[n.id].add(last)
                last = n.id
        return Dependencies(before, before)

    def order(self) -> list[int]:
        """Ids in an order that runs; where free, the original one, after small kernels that need nothing: side by
        side they are one call."""
        done: set[int] = set()
        out: list[int] = []
        for root in sorted(self.nodes, key=lambda i: (not self.small(self.nodes[i]), i)):
            stack = [root]
            while stack:
                i = stack[-1]
                todo = self.needs.before[i] - done if i not in done else ()
                if not todo:
                    stack.pop()
                    if i not in done:
                        done.add(i)
                        out.append(i)
                else:
                    stack.extend(sorted(todo, reverse=True))
        return out

    def small(self, node: StepNode) -> bool:
        """Whether a step reads only inputs and does next to nothing (a scale of a layer's parameters); none that overwrites."""
        return (
            not self.needs.before[node.id]
            and isinstance(node.step, Kernel)
            and not updates(node.step)
            and all(points((*node.step.axes, *p.axes)) <= SMALL for p in node.step.nests)
        )

    def run(self) -> Loops:
        """The merged program."""
        changed = True
        while changed:
            changed = False
            for i in self.order():
                while i in self.nodes and self.grow(self.nodes[i]):
                    changed = True
        steps = tuple(self.nodes[i].step for i in self.order())
        return replace(self.loops, steps=steps, buffers=self.buffers)

    def grow(self, node: StepNode) -> bool:
        """Merges into `node` the kernel before (or beside) it that shares most bytes."""
        if not isinstance(node.step, Kernel) or updates(node.step):
            return False
        near = {self.maker[b] for b in node.reads if b in self.maker}
        near = near.union(*(self.nearest(self.readers[b], node.id) for b in node.reads)) - {node.id}
        scored = []
        for i in near:
            other = self.nodes[i]
            if self.failed.get((i, node.id)) == (other.merges, node.merges):
                continue
            if not isinstance(other.step, Kernel) or updates(other.step) or self.too_much(other, node):
                continue
            made, shared = other.writes & node.reads, other.reads & node.reads
            if made and not self.few and not fuse_kernels.flexible(node.step) and transposes(other.step, self.buffers):
                continue
            scored.append((-self.bytes(made) * 2 - self.bytes(shared), -i))
        for _, i in sorted(scored):
            other = self.nodes[-i]
            if not self.legal(other, node):
                continue
            if self.merge_pair(other, node):
                return True
            self.failed[other.id, node.id] = other.merges, node.merges
        return False

    def nearest(self, steps: list[int], step: int) -> list[int]:
        """The steps, in order, that are close to a given one."""
        if len(steps) <= 2 * NEAREST:
            return steps
        at = bisect_left(steps, step)
        return steps[max(0, at - NEAREST) : at + NEAREST + 1]

    def too_much(self, *nodes: StepNode) -> bool:
        """Whether two kernels are too large to be merged."""
        for node in nodes:
            if sum(n.work for n in nodes) <= MOST_WORK:
                return False
            if not node.exact:
                node.work, node.exact = work(kernel_roots(node.step)) if isinstance(node.step, Kernel) else 0, True
        return sum(n.work for n in nodes) > MOST_WORK

    def legal(self, other: StepNode, node: StepNode) -> bool:
        """Whether one step of both leaves no path out of it and back in. `other` must not need `node`."""
        return not self.needs.needs(other.id, node.id) and not self.needs.needs(node.id, other.id, apart=True)

    def bytes(self, names: set[str]) -> int:
        """Bytes of some buffers."""
        for n in names - self.sizes.keys():
            self.sizes[n] = bytes_of(self.buffers[n])
        return sum(self.sizes[n] for n in names)

    def merge_pair(self, first: StepNode, second: StepNode) -> bool:
        """One kernel of both, in the second's place; False when their rows do not meet."""
        both = {first.id, second.id}
        outside = {b for b in first.writes | second.writes if b in self.outputs or self.read_apart(b, both)}
        outside |= {b for b in first.writes | second.writes if not self.readers.get(b)}  # computed for its checks
        assert isinstance(first.step, Kernel) and isinstance(second.step, Kernel)
        merged = fuse_kernels.fuse_pair(first.step, second.step, self.buffers, outside, self.loops.cons, self.few)
        if merged is None:
            return False
        self.forget(first)
        self.forget(second)
        del self.nodes[first.id]
        second.step, made = merged
        self.buffers.update(made)
        for b in made:
            self.sizes.pop(b, None)
        self.learn(second)
        self.needs.join(first.id, second.id)
        second.merges += first.merges + 1
        second.work, second.exact = first.work + second.work, False
        return True

    def read_apart(self, buffer: str, both: set[int]) -> bool:
        """Whether a step other than these two reads a buffer."""
        return any(i not in both for i in self.readers.get(buffer, ()))


FUSE, FUSE_LAUNCHES = passes(), passes(True)
