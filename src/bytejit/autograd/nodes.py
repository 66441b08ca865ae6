"""Nodes of the graphs of both passes: what they are computed from, and copies."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from bytejit.codegen.ops.calls import is_view

aten = torch.ops.aten


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all nodes that they are computed from."""
    seen: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += n.all_input_nodes
    return seen


def placed(graph: fx.Graph, node: fx.Node, name: str = "") -> fx.Node:
    """A placeholder with the name and the spec of `node`."""
    made = graph.placeholder(name or node.name)
    if "spec" in node.meta:
        made.meta["spec"] = node.meta["spec"]
    return made


def copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A copy of a node's value in memory of its own."""
    made = graph.call_function(aten.clone.default, (node,))
    made.meta.update(spec=node.meta["spec"], where=node.meta.get("where"))
    return made


def is_view_node(n: fx.Node) -> bool:
    """Whether a call makes a view."""
    return n.op == "call_function" and hasattr(n.target, "_schema") and is_view(n.target)


def base_of(n: fx.Node) -> fx.Node:
    """The node that is no view and that a node is a view of."""
    while is_view_node(n):
        n = n.all_input_nodes[0]
    return n
