"""The order in which a backward pass comes to the leaves: what hooks of parameters' gradients see.

Torch's engine takes what can run next out of a heap, in which all leaves are equal and before anything else. A compiled region
is one node: all of its leaves are put into the heap at once. So the node's inputs are arranged such that the leaves leave the
heap in the order in which they do where each operation has a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.fake.tensor import Fake

ACCUMULATES = "torch::autograd::AccumulateGrad"


class Heap:
    """What libstdc++'s `std::priority_queue`, the engine's, does: the order of equals is its own."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, Any]] = []  # (rank, item): the highest leaves first

    def push(self, rank: float, item: object) -> None:
        self.rows.append((rank, item))
        self._rise(len(self.rows) - 1)

    def pop(self) -> Any:
        """The first item, which leaves."""
        rows = self.rows
        first, moved = rows[0], rows.pop()
        if rows:
            hole, right, n = 0, 2, len(rows)
            while right < n:
                child = right - 1 if rows[right][0] < rows[right - 1][0] else right
                rows[hole], hole, right = rows[child], child, 2 * child + 2
            if right == n:
                rows[hole], hole = rows[n - 1], n - 1
            rows[hole] = moved
            self._rise(hole)
        return first[1]

    def _rise(self, at: int) -> None:
        rows = self.rows
        while at and rows[(at - 1) // 2][0] < rows[at][0]:
            up = (at - 1) // 2
            rows[at], rows[up] = rows[up], rows[at]
            at = up


def order_of_leaves(primals: Sequence[Fake], leaves: Sequence[tuple[int, Fake]]) -> tuple[int, ...]:
    """The inputs that are leaves, in the order in which a backward pass from all results reaches them. leaves: (input, its
    fake) for each input that needs a gradient."""
    inputs = {id(leaf): i for i, leaf in leaves if leaf.grad_fn is None}
    roots = list(dict.fromkeys(p.grad_fn for p in primals))
    waits, todo, seen = Counter[torch.autograd.graph.Node](), list(roots), set(roots)
    while todo:
        for following, _ in todo.pop().next_functions:
            if following is not None:
                waits[following] += 1
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    heap, found = Heap(), []
    for root in roots:
        if not waits[root]:
            heap.push(root._sequence_nr(), root)
    while heap.rows:
        node = heap.pop()
        if node.name() == ACCUMULATES:
            found.append(inputs.get(id(node.variable)))
        for following, _ in node.next_functions:
            waits[following] -= 1
            if following is not None and not waits[following]:
                heap.push(float("inf") if following.name() == ACCUMULATES else following._sequence_nr(), following)
    return tuple(i for i in found if i is not None)


def arranged(inputs: Sequence[int], order: Sequence[int]) -> list[int]:
    """The followed inputs as the node takes them: the leaves so that torch comes to them in `order`, then the others."""
    followed = set(inputs)
    leaves = [i for i in order if i in followed]
    first = set(leaves)
    found = [*leaves, *(i for i in inputs if i not in first)]
    heap = Heap()
    for at in range(len(found)):
        heap.push(float(at < len(leaves)), at)
    for i in leaves:
        found[heap.pop()] = i
    return found
