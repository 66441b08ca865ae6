"""Concatenations with a common beginning: the longer one is made from the shorter one and the rest.

    c4 = cat([a, b, c, d])        c5 = cat([a, b, c, d, e])   ->   c5 = cat([c4, e])

A network whose layers each read all before them (densenet) then reads two parts an element, not one for each layer.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from .rewrite import aten, spec_or_none

FEW = 3  # parts: so many are read in one kernel for less than it costs to store them first


def share_concatenations(graph: fx.Graph, choices: Any = None) -> None:
    """Changes `graph`."""
    made: dict[tuple[int, tuple[fx.Node, ...]], fx.Node] = {}
    lengths: set[int] = set()
    for node in graph.nodes:
        spec = spec_or_none(node)
        if node.op != "call_function" or node.target is not aten.cat.default or spec is None or not alike(node):
            continue
        parts, dim = tuple(node.args[0]), dim_of(node, len(spec.shape))
        for n in sorted((n for n in lengths if n < len(parts)), reverse=True):
            first = made.get((dim, parts[:n]))
            if first is not None:
                node.args = ([first, *parts[n:]], dim)
                break
        if len(parts) >= FEW:
            made.setdefault((dim, parts), node)
            lengths.add(len(parts))


def dim_of(node: fx.Node, rank: int) -> int:
    """The dimension that a concatenation of so many dimensions joins, from 0 on."""
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    return dim % max(1, rank)


def alike(node: fx.Node) -> bool:
    """Whether all parts of a concatenation are tensors of its dtype and number of dimensions."""
    spec = spec_or_none(node)
    parts = [spec_or_none(part) for part in node.args[0]]
    return spec is not None and all(
        p is not None and p.dtype is spec.dtype and len(p.shape) == len(spec.shape) and p.device == spec.device for p in parts
    )
