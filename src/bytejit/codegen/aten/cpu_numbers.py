"""Numbers of a program that torch made 0-dim tensors on the CPU, in a graph on a GPU: `x[mask] = 5.0` makes one of 5.0.

What is computed from such numbers alone is a number, too: `torch.sqrt(torch.tensor(64.0) * 3)`. They move to the GPU, where a
kernel has them as constants. On the CPU each is a call through torch, and a graph with a tensor on the CPU cannot be recorded.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .graph import Aten
from .recorder import SEEDED
from .rewrite import copy_graph, drop_dead, is_cpu_number, spec_or_none

aten = torch.ops.aten
MADE = frozenset({aten.full.default, aten.scalar_tensor.default})
COPIED = frozenset({aten._to_copy.default, aten.clone.default})
# types of arguments other than tensors that hold no size of the call
WRITTEN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def numbers_on_gpu(graph: Aten, device: torch.device) -> Aten:
    """The graph with its numbers on `device`; the same graph where it has none on the CPU."""
    if not any(n.target in MADE and is_cpu_number(n) for n in graph.graph.nodes):
        return graph
    new = copy_graph(graph.graph)
    _compute(new)
    for node in _numbers(new):
        node.meta["spec"] = replace(node.meta["spec"], device=device)
        if node.target in MADE or node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": device}
    return replace(graph, graph=new)


def _compute(graph: fx.Graph) -> None:
    """Replace pointwise calls on known numbers by their results, which torch computes here."""
    values: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_cpu_number(node) or not _known(node, values):
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = value = node.target(*args, **kwargs)
        if node.target not in MADE | COPIED and not value.is_complex():
            node.args, node.kwargs = ([], value.item()), {"dtype": value.dtype, "device": value.device}
            node.target = aten.full.default
    drop_dead(graph)


def _known(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    """Whether a call's value follows from the numbers known so far: no sizes of the call, no random numbers."""
    tags = getattr(node.target, "tags", ())
    simple = node.target in MADE | COPIED or torch.Tag.pointwise in tags and SEEDED not in tags
    given = tree_leaves((node.args, node.kwargs))
    return simple and all(a in values if isinstance(a, fx.Node) else type(a) in WRITTEN for a in given)


def _numbers(graph: fx.Graph) -> list[fx.Node]:
    """The calls that may move: 0-dim, on the CPU, of constants, read only by each other and by calls on the GPU."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or not is_cpu_number(node):
            continue
        if node.target in MADE or node.target in COPIED and node.args[0] in found:
            found.add(node)
    for node in reversed(graph.nodes):
        if node in found and not all(user in found or _on_gpu(user) for user in node.users):
            found.discard(node)
    return [node for node in graph.nodes if node in found and not _reads_cpu(node, found)]


def _reads_cpu(node: fx.Node, found: set[fx.Node]) -> bool:
    return any(n not in found for n in node.all_input_nodes if spec_or_none(n) is not None)


def _on_gpu(node: fx.Node) -> bool:
    spec = spec_or_none(node)
    return spec is not None and spec.device.type == "cuda"
