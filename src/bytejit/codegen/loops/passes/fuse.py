"""Fusion: small kernels of single ops become kernels that touch memory once.

1. `inline`: a pointwise kernel moves into its readers, where computing its values again costs less than memory traffic.
2. `merge`: a kernel and a reader of its results that have the same outer axes become one kernel of several nests; so do
   kernels that read the same elements. Values pass between nests in registers (the same nest), as refs (one a row), or in a
   row-local buffer.
The cost is the number of bytes moved. A merge never makes a cycle of dependencies. No kernel grows above MOST_WORK or
MOST_NESTS, and of the steps that read a buffer only the nearest are tried, so that compile time grows linearly with the graph.
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
from bytejit.codegen.loops.uses import reads, writes
from bytejit.codegen.passes import Pass

from . import fuse_kernels
from .dead_steps import drop_dead
from .dependencies import Dependencies
from .inline import inline, leaves_rows, repeats, turned_axis
from .side_by_side import side_by_side
from .split import split_axes

MOST_NESTS = 32  # of a merged kernel: each merge, and the C++ compiler, goes through all of a kernel's
FEW = 1 << 22  # points: up to so many, kernels on few long rows are merged on a GPU, as separate launches would cost more
SMALL = 4096  # points: a kernel of at most so many that reads inputs only is moved to the front
NEAREST = 16  # of the steps that read a buffer, so many on each side of a step are tried as partners of a merge


def merge_kernels(loops: Loops, launches: bool = False) -> Loops:
    """Merges kernels that have the same outer axes. launches: as in `passes`."""
    return Merger(loops, FEW if launches else 0).run()


def passes(launches: bool = False) -> tuple[Pass, ...]:
    """The passes over `Loops` before scheduling. launches: each kernel costs a launch, as on a GPU: then computing the few
    elements of a parameter again at every point costs less than a kernel of their own."""
    return (
        Pass("drop_dead", drop_dead, "first: kernels whose results nobody reads do not count as readers"),
        Pass("inline", partial(inline, launches=launches), "before split_axes: it needs whole expressions"),
        Pass("split_axes", split_axes, "before merge: equal loops must look equal"),
        Pass("merge", partial(merge_kernels, launches=launches)),
        Pass("drop_merged", drop_dead, "buffers that only merged kernels used"),
        *((Pass("side_by_side", side_by_side, "last: it orders the kernels that are left"),) if launches else ()),
    )


def fuse(loops: Loops, launches: bool = False) -> Loops:
    """The same program in fewer kernels. Deterministic. launches: as in `passes`."""
    for step in FUSE_LAUNCHES if launches else FUSE:
        loops = step.run(loops)
    return loops


@dataclass
class StepNode:
    """A step while merging. work: an upper bound of its work (`simplify.work`); exact: whether it is the work itself."""

    id: int
    step: Kernel | Extern
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    work: int = 0
    exact: bool = False
    merges: int = 0  # number of nodes merged into it


class Merger:
    """Merges kernels pairwise until no pair can be merged. Each reader tries the pair first that saves most bytes."""

    def __init__(self, loops: Loops, few: int = 0):
        self.loops, self.few = loops, few  # few: as in `fuse_kernels.fuse_pair`
        self.buffers = dict(loops.buffers)
        self.nodes: dict[int, StepNode] = {}
        self.outputs = {r.view.buffer for r in loops.outputs if r.view is not None}
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}  # sorted
        self.sizes: dict[str, int] = {}  # bytes of buffers that were asked for
        self.failed: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # a pair that could not be merged -> how many merges each had by then
        for i, step in enumerate(loops.steps):
            self.nodes[i] = StepNode(i, step, work=MOST_WORK + 1)
            self.add_uses(self.nodes[i])
        self.needs = self.link()

    def add_uses(self, node: StepNode) -> None:
        """Record what a new or changed node reads and writes."""
        node.reads, node.writes = set(reads(node.step)), set(writes(node.step))
        for b in node.reads:
            insort(self.readers.setdefault(b, []), node.id)
        for b in node.writes:
            self.maker[b] = node.id

    def remove_uses(self, node: StepNode) -> None:
        """Remove what `add_uses` recorded."""
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
        """Ids in a topological order: small kernels that need no other step first, since neighbours run in one call; else the
        original order where dependencies allow it."""
        done: set[int] = set()
        out: list[int] = []
        for root in sorted(self.nodes, key=lambda i: (not self.small(self.nodes[i]), i)):
            stack = [root]
            while stack:
                i = stack[-1]
                todo = self.needs.needed(i) - done if i not in done else ()
                if not todo:
                    stack.pop()
                    if i not in done:
                        done.add(i)
                        out.append(i)
                else:
                    stack.extend(sorted(todo, reverse=True))
        return out

    def small(self, node: StepNode) -> bool:
        """Whether a step needs no other step, has little work (it scales a layer's parameters, say), and overwrites no buffer."""
        return (
            not self.needs.needed(node.id)
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
        """Merges into `node` the kernel that shares most bytes with it: one whose results it reads, or one that reads the same
        buffers. Returns whether there was one."""
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
            if made and not self.few and self.apart(other.step, node.step):
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

    def apart(self, first: Kernel, second: Kernel) -> bool:
        """Whether two kernels run along axes that do not go together, on a CPU."""
        if not fuse_kernels.flexible(second) and turned_axis(first, self.buffers) is not None:
            return True
        return leaves_rows(first, [second], self.buffers) or repeats(first, [second])

    def nearest(self, steps: list[int], step: int) -> list[int]:
        """The steps, in order, that are close to a given one."""
        if len(steps) <= 2 * NEAREST:
            return steps
        at = bisect_left(steps, step)
        return steps[max(0, at - NEAREST) : at + NEAREST + 1]

    def too_much(self, *nodes: StepNode) -> bool:
        """Whether two kernels are too large to be merged."""
        if sum(len(n.step.nests) for n in nodes if isinstance(n.step, Kernel)) > MOST_NESTS:
            return True
        for node in nodes:
            if sum(n.work for n in nodes) <= MOST_WORK:
                return False
            if not node.exact:
                node.work, node.exact = work(kernel_roots(node.step)) if isinstance(node.step, Kernel) else 0, True
        return sum(n.work for n in nodes) > MOST_WORK

    def legal(self, other: StepNode, node: StepNode) -> bool:
        """Whether merging both makes no cycle of dependencies. `other` must not need `node`."""
        return not self.needs.needs(other.id, node.id) and not self.needs.needs(node.id, other.id, indirect=True)

    def bytes(self, names: set[str]) -> int:
        """Bytes of some buffers."""
        for n in names:
            if n not in self.sizes:
                self.sizes[n] = bytes_of(self.buffers[n])
        return sum(self.sizes[n] for n in names)

    def merge_pair(self, first: StepNode, second: StepNode) -> bool:
        """Merges both kernels into one, in the second's place. Returns False when `fuse_pair` cannot."""
        both = {first.id, second.id}
        outside = {b for b in first.writes | second.writes if b in self.outputs or self.read_elsewhere(b, both)}
        outside |= {
            b for b in first.writes | second.writes if not self.readers.get(b)
        }  # it is computed for the checks of its indices
        assert isinstance(first.step, Kernel) and isinstance(second.step, Kernel)
        merged = fuse_kernels.fuse_pair(first.step, second.step, self.buffers, outside, self.loops.cons, self.few)
        if merged is None:
            return False
        self.remove_uses(first)
        self.remove_uses(second)
        del self.nodes[first.id]
        second.step, made = merged
        self.buffers.update(made)
        for b in made:
            self.sizes.pop(b, None)
        self.add_uses(second)
        self.needs.join(first.id, second.id)
        second.merges += first.merges + 1
        second.work, second.exact = first.work + second.work, False
        return True

    def read_elsewhere(self, buffer: str, both: set[int]) -> bool:
        """Whether a step other than these two reads a buffer."""
        return any(i not in both for i in self.readers.get(buffer, ()))


FUSE, FUSE_LAUNCHES = passes(), passes(True)
