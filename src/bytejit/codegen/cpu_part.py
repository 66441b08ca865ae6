"""The part of a graph on a GPU that runs on the CPU before it (`torch.cos(x).cuda()`), as a graph of its own: fused kernels in
C++ instead of a library call an op. What the CPU computes from results of the GPU stays in the graph, through torch."""
from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import fx

from ..spec import Spec
from .aten import Aten, Value
from .recorder import SEEDED, is_view
from .rewrite import at_hints, copy_graph

LEAST_POINTS = 4096      # elements of the largest tensor computed: fewer are not worth kernels
LEAST_OPS = 2            # one op is torch's own kernel


def cpu_part(aten: Aten) -> tuple[Aten, tuple[int, ...], Aten] | None:
    """(the part, the positions of the inputs that it takes, the graph without it); None where there is none worth it.

    The part answers a tuple, which the graph without it takes after its own inputs.
    """
    nodes = list(aten.graph.nodes)
    inside = _inside(nodes)
    made = _exported(nodes, inside)
    work = [n for n in inside if not _shared(n)]
    if aten.constants or not made or len(work) < LEAST_OPS or max(map(_points, work)) < LEAST_POINTS:
        return None
    inputs = [n for n in nodes if n.op == "placeholder"]
    taken = tuple(i for i, n in enumerate(inputs)
                  if not isinstance(n.meta.get("spec"), Spec) or any(u in inside for u in n.users))
    part = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in nodes:
        if n in inside or n.op == "placeholder" and inputs.index(n) in taken:
            env[n] = part.node_copy(n, env.__getitem__)
    part.output(tuple(env[n] for n in made))
    return Aten(part, tuple(map(Value, range(len(made))))), taken, replace(aten, graph=_without(aten.graph, inside, made))


def _inside(nodes: list[fx.Node]) -> set[fx.Node]:
    """Calls on the CPU that need nothing of the GPU, draw no numbers, and that the graph does not answer as they are."""
    answered = {a for a in nodes[-1].args[0] if isinstance(a, fx.Node)}
    inside: set[fx.Node] = set()
    for n in nodes:
        if n.op != "call_function" or n in answered or not _on_cpu(n) or SEEDED in getattr(n.target, "tags", ()):
            continue
        if all(a in inside or a.op == "placeholder" and _on_cpu(a) for a in n.all_input_nodes):
            inside.add(n)
    while True:                                  # what is handed on must be a tensor of its own
        left = {n for n in inside if not (_shared(n) and any(u not in inside for u in n.users))
                and all(a in inside or a.op == "placeholder" for a in n.all_input_nodes)}
        if left == inside:
            return inside
        inside = left


def _shared(n: fx.Node) -> bool:
    """Whether a value is no tensor in memory of its own."""
    return n.target is operator.getitem or is_view(n.target) or not isinstance(n.meta.get("spec"), Spec)


def _exported(nodes: Iterable[fx.Node], inside: set[fx.Node]) -> list[fx.Node]:
    return [n for n in nodes if n in inside and any(u not in inside for u in n.users)]


def _on_cpu(n: fx.Node) -> bool:
    """Whether all that a node yields is on the CPU; sizes are anywhere."""
    def on(spec: Any) -> bool:
        if isinstance(spec, (tuple, list)):
            return all(map(on, spec))
        return not isinstance(spec, Spec) or spec.device.type == "cpu"
    return on(n.meta.get("spec"))


def _points(n: fx.Node) -> int:
    spec = n.meta.get("spec")
    return math.prod(at_hints(spec).shape) if isinstance(spec, Spec) else 0


def _without(graph: fx.Graph, inside: set[fx.Node], made: list[fx.Node]) -> fx.Graph:
    """A copy of the graph where these values are inputs, after the others."""
    new = copy_graph(graph)
    same = dict(zip(graph.nodes, new.nodes))
    last = [n for n in new.nodes if n.op == "placeholder"][-1]
    for i, old in enumerate(made):
        with new.inserting_after(last):
            last = new.placeholder(f"from_cpu_{i}")
        node = same[old]
        last.meta.update(node.meta)
        node.replace_all_uses_with(last, propagate_meta=False)
    for old in reversed([n for n in graph.nodes if n in inside]):
        new.erase_node(same[old])
    return new
