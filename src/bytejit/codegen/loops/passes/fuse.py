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
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Axis, Buffer, Extern, Kernel, Loops, Store, View, updates
from bytejit.codegen.loops.simplify import (
    HEAVY,
    MOST_WORK,
    Rewriter,
    cost,
    drop_unused,
    innermost,
    kernel_roots,
    loads,
    may_raise,
    points,
    work,
    written,
)
from bytejit.codegen.passes import Pass
from bytejit.common.dtypes import DTYPES, itemsize

from . import fuse_kernels
from .split import split_axes

AGAIN = 24  # additions: work that hides behind the loads of a point
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


# ---- who reads what
# ---------------------------------------------------------------------------------------------------
def views_in(x: Any) -> list[View]:
    """Every View in nested extern arguments."""
    if isinstance(x, View):
        return [x]
    return [v for part in x for v in views_in(part)] if isinstance(x, tuple) else []


def reads(step: Kernel | Extern) -> list[str]:
    """Buffers a step reads, in first-use order, each once."""
    if isinstance(step, Extern):
        return list(dict.fromkeys(v.buffer for v in views_in((step.args, step.kwargs))))
    return list(dict.fromkeys([*(e.name for e in loads(kernel_roots(step))), *updates(step)]))


def writes(step: Kernel | Extern) -> list[str]:
    """Buffers a step makes."""
    return [o for o in step.outs if o] if isinstance(step, Extern) else written(step)


def drop_dead(loops: Loops) -> Loops:
    """Without kernels, stores and buffers that no output needs. Extern calls stay: lower kept only those that
    matter."""
    needed = {r.view.buffer for r in loops.outputs if r.view is not None}
    steps: list[Any] = []
    for step in reversed(loops.steps):
        if isinstance(step, Kernel):
            own = set(reads(step))
            left = drop_unused(step, lambda s: s.buffer in needed or s.buffer in own)
            if left is None or not any(b in needed for b in written(left)):
                continue
            step = left
        needed.update(reads(step))
        needed.update(writes(step))
        steps.append(step)
    needed.update(n for n in loops.inputs if n)
    return replace(loops, steps=tuple(reversed(steps)), buffers={n: b for n, b in loops.buffers.items() if n in needed})


# ---- 1. inlining
# --------------------------------------------------------------------------------------------------------
def pointwise_store(k: Any) -> Store | None:
    """The one store of a kernel that computes every element of one buffer on its own; else None."""
    if isinstance(k, Kernel) and len(k.nests) == 1 and not k.nests[0].axes and not k.nests[0].reduces:
        stores = k.nests[0].stores
        if len(stores) == 1 and stores[0].mode == "set" and stores[0].mask is None and not stores[0].over:
            if all(
                len(c.terms) <= 1
                and (c.value == 0 or c.terms and type(c.terms[0][0]) is ix.Var and c.terms[0][1] == 1 and not c.const)
                for c in stores[0].coords
            ):
                return stores[0]
    return None


def inline(loops: Loops, launches: bool = False) -> Loops:
    """Each pointwise kernel that is cheap to compute at its readers' loads goes there."""
    readers: dict[str, list[Kernel]] = {}
    pinned = {r.view.buffer for r in loops.outputs if r.view is not None}
    for step in loops.steps:
        for b in reads(step):
            if isinstance(step, Kernel):
                readers.setdefault(b, []).append(step)
            else:
                pinned.add(b)
        pinned.update(updates(step))
    sizes = {a.name: a.size for k in loops.steps if isinstance(k, Kernel) for a in all_axes(k)}
    inlined: dict[str, tuple[Kernel, Store]] = {}
    steps: list[Any] = []
    for step in loops.steps:
        if not isinstance(step, Kernel):
            steps.append(step)
            continue
        for name in too_much(step, inlined):
            steps.append(inlined.pop(name)[0])
        new = inline_into(step, inlined, loops.cons, sizes)
        store = pointwise_store(new)
        if store is not None and store.buffer not in pinned and loops.buffers[store.buffer].kind == "temp":
            if launches and free_again(new, store) or worth_inlining(new, store, readers.get(store.buffer, []), loops.buffers):
                inlined[store.buffer] = new, store
                continue
        steps.append(new)
    return replace(loops, steps=tuple(steps))


def all_axes(k: Kernel) -> list[Axis]:
    """Outer axes, then those of all nests."""
    return [*k.axes, *(a for p in k.nests for a in p.axes)]


def too_much(k: Kernel, inlined: dict[str, tuple[Kernel, Store]]) -> list[str]:
    """Inlined buffers that k has no room for: they are stored after all."""
    found = [e.name for e in loads(kernel_roots(k)) if e.name in inlined]
    if not found:
        return []
    total, out = work(kernel_roots(k)), []
    for name in dict.fromkeys(found):
        more = found.count(name) * work((inlined[name][1].value,))
        if total + more > MOST_WORK:
            out.append(name)
        else:
            total += more
    return out


def inline_into(k: Kernel, inlined: dict[str, tuple[Kernel, Store]], cons: Cons, sizes: dict[str, Any]) -> Kernel:
    """k with every load of an inlined buffer replaced by its expression."""
    ops: list[str] = []
    memo: dict[Any, Rewriter] = {}

    def on_load(e: Expr, coords: tuple, mask: Any) -> Expr | None:
        if e.name not in inlined:
            return None
        maker, store = inlined[e.name]
        ops.extend(o for o in maker.ops if o not in ops)
        key = (e.name, coords, id(mask))
        if key not in memo:
            axes = {s.terms[0][0].parts[0]: c for s, c in zip(store.coords, coords) if s.terms}
            memo[key] = Rewriter(cons, sizes, axes, None, mask)
        return memo[key](store.value)

    if not any(e.name in inlined for e in loads(kernel_roots(k))):
        return k
    rewrite = Rewriter(cons, sizes, None, on_load)
    return replace(k, nests=tuple(rewrite.body(p) for p in k.nests), ops=(*ops, *k.ops))


def free_again(k: Kernel, store: Store) -> bool:
    """Whether a small kernel's elements cost next to nothing at any number of points that wait for memory."""
    return (
        points(k.axes) <= SMALL
        and cost((store.value,)) <= AGAIN
        and not may_raise((store.value,))
        and len(loads((store.value,))) <= 5
    )


def worth_inlining(k: Kernel, store: Store, readers: list[Kernel], buffers: dict[str, Buffer]) -> bool:
    """Whether computing k's element at every load of it costs less than storing and loading it."""
    value_cost = cost((store.value,))
    sources = loads((store.value,))
    if may_raise((store.value,)) and len(readers) > 1:
        return False
    if not sources:
        return value_cost <= 30
    if len(readers) > 1:
        return value_cost < HEAVY and len(sources) <= 1
    times = 0.0
    for reader in readers:
        for p in reader.nests:
            at = {e.attr for e in loads(p.roots()) if e.name == store.buffer}
            own = [a for a in (*reader.axes, *p.axes)]
            inner = innermost(reader, p, buffers)
            for coords in at:
                free = [a for a in own if any(a.name in ix.variables(c) for c in coords)]
                hoisted = inner is not None and all(a.name != inner for a in free) and value_cost <= 40
                times += points(free if hoisted else own)
    return times <= max(1, points(k.axes)) * 1.01 or value_cost < HEAVY


# ---- 2. merging
# ---------------------------------------------------------------------------------------------------------
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


class Merger:
    """Merges kernels pairwise, the pair that saves most bytes at each reader first, until no pair can."""

    def __init__(self, loops: Loops, few: int = 0):
        self.loops, self.few = loops, few  # few: as in `rows.merge`
        self.buffers = dict(loops.buffers)
        self.nodes: dict[int, Node] = {}
        self.outputs = {r.view.buffer for r in loops.outputs if r.view is not None}
        self.maker: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        self.failed: set[tuple[int, int]] = set()
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
        self.close()

    def close(self) -> None:
        """Recomputes `above` of every node, in an order that runs."""
        for i in self.order():
            n = self.nodes[i]
            above = 0
            for b in n.before:
                above |= self.nodes[b].above | 1 << b
            n.above = above

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
            if other.work + node.work > MOST_WORK or (i, node.id) in self.failed:
                continue
            if not isinstance(other.step, Kernel) or updates(other.step) or not self.legal(other, node):
                continue
            made, shared = other.writes & node.reads, other.reads & node.reads
            scored.append((-self.bytes(made) * 2 - self.bytes(shared), -i))
        for _, i in sorted(scored):
            if self.merge(self.nodes[-i], node):
                return True
            self.failed.add((-i, node.id))
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
        second.before = (second.before | first.before) - both
        for n in self.nodes.values():
            if first.id in n.before:
                n.before = n.before - {first.id} | ({second.id} if n is not second else set())
        self.failed = {pair for pair in self.failed if second.id not in pair}
        self.close()
        return True


FUSE, FUSE_LAUNCHES = passes(), passes(True)
