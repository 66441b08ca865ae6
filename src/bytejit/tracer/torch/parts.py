"""Extracts nodes of a traced graph as a graph of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bytejit.common.graph_modules import module_of


def taken_by(inside: Sequence[torch.fx.Node], results: Sequence[torch.fx.Node] = ()) -> list[torch.fx.Node]:
    """The values that these nodes, and results that are none of them, need from elsewhere."""
    held = set(inside)
    return [n for n in dict.fromkeys([*(i for n in inside for i in n.all_input_nodes), *results]) if n not in held]


def part_of(taken: Sequence[torch.fx.Node], inside: Sequence[torch.fx.Node], output: object) -> torch.fx.GraphModule:
    """A graph that takes `taken`, computes `inside` and returns `output`, nested tuples of nodes and constants."""
    part = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for n in taken:
        copies[n] = part.placeholder(n.name)
        copies[n].meta.update(n.meta)
    for n in inside:
        copies[n] = part.node_copy(n, copies.__getitem__)
    part.output(torch.fx.node.map_arg(output, copies.__getitem__))
    return module_of(part)
