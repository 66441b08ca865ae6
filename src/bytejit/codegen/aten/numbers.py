"""Numbers that a program wrote as 0-dim tensors on the CPU, in a graph on a GPU: `x[mask] = 5.0` makes one of 5.0.

They move to the GPU, where a kernel has them as constants. On the CPU each is a call through torch, and a graph with a
tensor on the CPU cannot be recorded.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from .graph import Aten
from .rewrite import copy_graph, spec_of

aten = torch.ops.aten
MADE = frozenset({aten.full.default, aten.scalar_tensor.default})
COPIED = frozenset({aten._to_copy.default, aten.clone.default})


def numbers_on_gpu(graph: Aten, device: torch.device) -> Aten:
    """The graph with its numbers on `device`; the same graph where it has none on the CPU."""
    if not _numbers(graph.graph):
        return graph
    new = copy_graph(graph.graph)
    for node in _numbers(new):
        node.meta["spec"] = replace(node.meta["spec"], device=device)
        if node.target in MADE or node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": device}
    return replace(graph, graph=new)


def _numbers(graph: fx.Graph) -> list[fx.Node]:
    """The calls that may move: 0-dim, on the CPU, of constants, read only by each other and by calls on the GPU."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        spec = spec_of(node)
        if node.op != "call_function" or spec is None or spec.shape or spec.device.type != "cpu":
            continue
        if node.target in MADE or node.target in COPIED and node.args[0] in found:
            found.add(node)
    for node in reversed(graph.nodes):
        if node in found and not all(user in found or _on_gpu(user) for user in node.users):
            found.discard(node)
    return [node for node in graph.nodes if node in found and not _reads_cpu(node, found)]


def _reads_cpu(node: fx.Node, found: set[fx.Node]) -> bool:
    return any(n not in found for n in node.all_input_nodes if spec_of(n) is not None)


def _on_gpu(node: fx.Node) -> bool:
    spec = spec_of(node)
    return spec is not None and spec.device.type == "cuda"
