"""Which of a node's inputs a running backward pass is for.

torch runs a node where something behind it is asked for. It does not know that a result of a region may lead to some of the
region's inputs only, nor does it say whether a pass is for a result itself (`torch.autograd.grad(loss, result)`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import GradientEdge, Node

from bytejit.compat.pass_frames import asked_for

from .freed import freed_of
from .leaf_order import ACCUMULATES

NONE: frozenset[int] = frozenset()


def not_asked_for(ctx: FunctionCtx, inputs: Sequence[int]) -> frozenset[int]:
    """The inputs, of those that autograd follows, whose gradients the running pass does not need."""
    asked = asked_for()
    if asked is None:
        return frozenset(i for i, (node, _) in zip(inputs, ctx.next_functions) if not runs(node))
    if not asked:  # all leaves
        return NONE
    with torch._C.DisableTorchFunction():  # the program's subclasses and modes are not told
        ends = {_edge_of(t) for t in asked}
    return frozenset(i for i, edge in zip(inputs, ctx.next_functions) if not _comes_to(ends, edge))


def is_for_all(ctx: FunctionCtx, edges: Sequence[int]) -> bool:
    """Whether the running pass goes on to all these edges of a node. False where torch refuses to say, which is slow."""
    following = ctx.next_functions
    try:
        return all(torch._C._will_engine_execute_node(following[k][0]) for k in edges)
    except RuntimeError:
        return False


def _edge_of(asked: torch.Tensor | GradientEdge) -> tuple[object, int]:
    """A node and which of its results; of a leaf, the leaf itself."""
    if isinstance(asked, GradientEdge):
        return asked.node, asked.output_nr
    return (id(asked), 0) if asked.grad_fn is None else (asked.grad_fn, asked.output_nr)


def _comes_to(ends: set[tuple[object, int]], edge: tuple[Node | None, int]) -> bool:
    """Whether the running pass comes from an edge to one of the ends."""
    seen, open_edges = set(), [edge]
    while open_edges:
        edge = node, place = open_edges.pop()
        if node is None or edge in seen:
            continue
        leaf = node.variable if node.name() == ACCUMULATES else None
        if edge in ends or leaf is not None and (id(leaf), 0) in ends:
            return True
        seen.add(edge)
        if leaf is None and runs(node):
            freed, following = freed_of(node), node.next_functions
            open_edges += [e for i, e in zip(freed.inputs, following) if freed.reach[place] >> i & 1] if freed else following
    return False


def runs(node: Node) -> bool:
    """Whether torch runs a node in the running pass."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient `torch.autograd.grad` returns: torch refuses to say so. Some 30 us
        return True
