"""Fusion: small kernels of single ops become kernels that touch memory once.

1. `inline`: a pointwise kernel goes into its readers, where computing again costs less than memory.
2. `merge`: a kernel and a reader of its results that walk the same rows become one kernel of nests; so do kernels
that read
   the same elements. Values pass between nests in registers (the same nest), as refs (one a row), or in a row-local
   buffer.
Cost is bytes moved. A merge never closes a cycle through other steps. Neither makes a kernel of more than MOST_WORK: so the
time of a compile grows as the graph does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from bytejit.codegen.loops.ir import Axis, Extern, Kernel, Loops, updates
from bytejit.codegen.loops.simplify import (
    MOST_WORK,
    kernel_roots,
    points,
    work,
)
from bytejit.codegen.passes import Pass
from bytejit.common.dtypes import DTYPES, itemsize

from . import fuse_kernels
from .inline import inline, transposes
from .split import split_axes
from .uses import drop_dead, reads, writes

FEW = 1 << 22  # points up to which few long rows are one kernel on a GPU: launches cost more than they gain
SMALL = 4096  # points: a kernel on parameters that may run before all others


def merge(loops: Loops, launches: bool = False) -> Loops:
    """Kernels that share rows become one."""
    return Merger(loops, FEW if launches else 0).run()


def passes(launches: bool = False) -> tuple[Pass, ...]:
    """The passes over `Loops` before a schedule. launches: a kernel costs a launch (on a GPU), so that computing a parameter's
    few elements again at every point costs less than a kernel of their own."""
    return (
        Pass("drop_dead", drop_dead, "first: what nobody reads is no reader"),
        Pass("inline", partial(inline, launches=launches), "before split_axes: it looks at whole expressions"),
        Pass("split_axes", split_axes, "before merge: equal loops must look equal"),
        Pass("merge", partial(merge, launches=launches)),
        Pass("drop_merged", drop_dead, "last: values that merged kernels keep to themselves"),
    )


def fuse(loops: Loops, launches: bool = False) -> Loops:
    """The same program in fewer kernels. Deterministic. launches: as in `passes`."""
    for step in FUSE_LAUNCHES if launches else FUSE:
        loops = step.run(loops)
    return loops


@dataclass
class Node:
    """A step while merging. before: ids of the nodes it needs."""

    id: int
    step: Kernel | Extern
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    above: int = 0  # bit set of all nodes it needs, directly or not
    work: int = 0
    merges: int = 0  # how many nodes have become part of it


class Merger:
    """Merges kernels pairwise, the pair that saves most bytes at each reader first, until no pair can."""

    def __init__(self, loops: Loops, few: int = 0):
        self.loops, self.few = loops, few  # few: as in `rows.merge`
        self.buffers = dict(loops.buffers)
        self.nodes: dict[int, Node] = {}
        self.outputs = {r.view.buffer for r in loops.outputs if r.view is not None}
        self.maker: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        self.failed: dict[tuple[int, int], tuple[int, int]] = {}  # a pair that did not merge -> the merges of each by then
        for i, step in enumerate(loops.steps):
            self.nodes[i] = Node(i, step)
            self.learn(self.nodes[i])
        self.link()

    def learn(self, node: Node) -> None:
        """Notes what a new or changed node reads and writes."""
        node.reads, node.writes = set(reads(node.step)), set(writes(node.step))
        node.work = work(kernel_roots(node.step)) if isinstance(node.step, Kernel) else 0
        for b in node.reads:
            self.readers.setdefault(b, set()).add(node.id)
        for b in node.writes:
            self.maker[b] = node.id

    def forget(self, node: Node) -> None:
        """Takes back what `learn` noted."""
        for b in node.reads:
            self.readers[b].discard(node.id)
        for b in node.writes:
            del self.maker[b]

    def link(self) -> None:
        """Who needs whom; extern calls keep their order (some draw random numbers)."""
        last = None
        for n in self.nodes.values():
            n.before = {self.maker[b] for b in n.reads if b in self.maker} - {n.id}
            if isinstance(n.step, Extern):
                if last is not None:
                    n.before.add(last)
                last = n.id
        for i in self.order():
            for b in self.nodes[i].before:
                self.nodes[i].above |= self.nodes[b].above | 1 << b

    def relink(self, first: Node, second: Node) -> None:
        """Who needs whom after the first has become part of the second. One look at each node: no search of the graph."""
        both = {first.id, second.id}
        gone, here = 1 << first.id, 1 << second.id
        second.before = (second.before | first.before) - both
        second.above = (second.above | first.above) & ~(gone | here)
        for n in self.nodes.values():
            if n.above & (gone | here) and n is not second:
                n.above = (n.above | second.above | here) & ~gone
                if first.id in n.before:
                    n.before = n.before - {first.id} | {second.id}

    def order(self) -> list[int]:
        """Ids in an order that runs; where free, the original one, after small kernels that need nothing: side by
        side they are one call."""
        done: set[int] = set()
        out: list[int] = []
        for root in sorted(self.nodes, key=lambda i: (not self.small(self.nodes[i]), i)):
            stack = [root]
            while stack:
                i = stack[-1]
                todo = self.nodes[i].before - done if i not in done else ()
                if not todo:
                    stack.pop()
                    if i not in done:
                        done.add(i)
                        out.append(i)
                else:
                    stack.extend(sorted(todo, reverse=True))
        return out

    def small(self, node: Node) -> bool:
        """Whether a step reads only inputs and does next to nothing (a scale of a layer's parameters); none that overwrites."""
        return (
            not node.before
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

    def grow(self, node: Node) -> bool:
        """Merges into `node` the kernel before (or beside) it that shares most bytes."""
        if not isinstance(node.step, Kernel) or updates(node.step):
            return False
        near = {self.maker[b] for b in node.reads if b in self.maker}
        near = near.union(*(self.readers[b] for b in node.reads)) - {node.id}
        scored = []
        for i in near:
            other = self.nodes[i]
            if other.work + node.work > MOST_WORK or self.failed.get((i, node.id)) == (other.merges, node.merges):
                continue
            if not isinstance(other.step, Kernel) or updates(other.step) or not self.legal(other, node):
                continue
            made, shared = other.writes & node.reads, other.reads & node.reads
            if made and not self.few and not fuse_kernels.flexible(node.step) and transposes(other.step, self.buffers):
                continue
            scored.append((-self.bytes(made) * 2 - self.bytes(shared), -i))
        for _, i in sorted(scored):
            other = self.nodes[-i]
            if self.merge(other, node):
                return True
            self.failed[other.id, node.id] = other.merges, node.merges
        return False

    def legal(self, other: Node, node: Node) -> bool:
        """Whether one step of both leaves no path out of it and back in. `other` must not need `node`."""
        if other.above >> node.id & 1:
            return False
        return not any(self.nodes[b].above >> other.id & 1 for b in node.before if b != other.id)

    def bytes(self, names: set[str]) -> int:
        """Bytes of some buffers."""
        total = 0
        for n in names:
            b = self.buffers[n]
            total += points([Axis("", s) for s in b.shape]) * (itemsize(b.dtype) if b.dtype in DTYPES else 8)
        return total

    def merge(self, first: Node, second: Node) -> bool:
        """One kernel of both, in the second's place; False when their rows do not meet."""
        both = {first.id, second.id}
        outside = {b for b in first.writes | second.writes if b in self.outputs or self.readers.get(b, both) - both}
        assert isinstance(first.step, Kernel) and isinstance(second.step, Kernel)
        merged = fuse_kernels.merge(first.step, second.step, self.buffers, outside, self.loops.cons, self.few)
        if merged is None:
            return False
        self.forget(first)
        self.forget(second)
        del self.nodes[first.id]
        second.step, made = merged
        self.buffers.update(made)
        self.learn(second)
        self.relink(first, second)
        second.merges += first.merges + 1
        return True


FUSE, FUSE_LAUNCHES = passes(), passes(True)
