"""Cuts a traced graph in two where an output that needs a gradient is computed from another such output.

Autograd must see them as results of two nodes: the program may run a backward pass from one to the other, register a hook on
it, or retain its gradient. The first part ends with the output that others are computed from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from bytejit.codegen.aten.mutation import CannotNormalise
from bytejit.common.graph_info import INFO, info_of
from bytejit.common.graph_modules import module_of
from bytejit.fake.tensor import Fake
from bytejit.shapes import symbols

SET_GRAD = torch._C._set_grad_enabled


class Dependent(CannotNormalise):
    """An output that needs a gradient is computed from another. node: where that one is made."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__("an output that needs a gradient is computed from another")
        self.node = node


@dataclass(frozen=True)
class Half:
    """One part. graph: its module; inputs: which values of the whole graph it takes, by name."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut_after(gm: fx.GraphModule, node: fx.Node) -> tuple[Half, Half]:
    """Both parts of a graph. Raises: CannotNormalise where ambient state is set in it, or where sizes are symbolic."""
    nodes = list(gm.graph.nodes)
    if any(symbolic(n.meta.get("val")) for n in nodes):
        raise CannotNormalise("an output that needs a gradient is computed from another, with symbolic sizes")
    calls = [n for n in nodes if n.op not in ("placeholder", "output")]
    at = calls.index(node) + 1
    early, late = calls[:at], calls[at:]
    early += [n for n in late if n.target is operator.getitem and n.args[0] in early]
    late = [n for n in late if n not in early]
    if not late:
        raise Dependent(node)
    for n in calls:
        if n.op != "call_method" and n.target is not SET_GRAD and "val" not in n.meta:
            raise CannotNormalise("an output that needs a gradient is computed from another, where a state is set")
    mode = next((n.args[0] for n in reversed(early) if n.target is SET_GRAD), info_of(gm).grad_at_start)
    wanted = fx.node.map_arg(nodes[-1].args[0], lambda n: n)
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    leaving = dict.fromkeys(n for n in wanted if isinstance(n, fx.Node) and n in early)
    crossing = dict.fromkeys(i for n in late for i in n.all_input_nodes if i in early)
    first = half(gm, early, [*leaving, *(n for n in crossing if n not in leaving)], info_of(gm).grad_at_start)
    last = [n for n in dict.fromkeys(wanted) if isinstance(n, fx.Node) and n in late]
    return first, half(gm, late, last, mode)


def symbolic(value: object) -> bool:
    """Whether a value of a node has symbols."""
    if isinstance(value, (tuple, list)):
        return any(map(symbolic, value))
    return symbols.any_symbolic(value.m.shape) if type(value) is Fake else symbols.is_symbolic(value)


def half(gm: fx.GraphModule, calls: Sequence[fx.Node], outputs: Sequence[fx.Node], mode: bool) -> Half:
    """The calls as a graph of their own. mode: whether gradients are on at its start."""
    own, graph, env = set(calls), fx.Graph(), {}
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    taken = dict.fromkeys(i for n in calls for i in n.all_input_nodes if i not in own)
    for n in taken:
        made = env[n] = graph.placeholder(n.name)
        made.meta.update(n.meta)
        if n.op != "placeholder":
            if not isinstance(n.meta.get("val"), torch.Tensor):
                raise CannotNormalise("an output that needs a gradient is computed from another, and no tensor between them")
            made.meta["autograd"] = (n.meta["val"].requires_grad, n.meta["val"].is_leaf)
    for n in calls:
        env[n] = graph.node_copy(n, env.__getitem__)
    graph.output(tuple(env[n] for n in outputs))
    module = module_of(graph, gm)
    weights = frozenset(i for i, n in enumerate(taken) if n in placeholders and placeholders.index(n) in info_of(gm).weights)
    module.meta[INFO] = replace(
        info_of(gm),
        needs_grad=any(n.meta["val"].requires_grad for n in outputs if isinstance(n.meta.get("val"), torch.Tensor)),
        grad_at_start=mode,
        weights=weights,
    )
    return Half(module, tuple(n.name for n in taken), tuple(n.name for n in outputs))


def joined(gm: fx.GraphModule, halves: tuple[Half, Half], first: Callable, second: Callable) -> Callable:
    """The whole graph's callable."""
    a, b = halves
    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    wanted = list(gm.graph.nodes)[-1].args[0]
    single = not isinstance(wanted, (tuple, list))

    def call(*inputs: object) -> object:
        known = dict(zip(names, inputs))
        known.update(zip(a.outputs, first(*[known[n] for n in a.inputs])))
        known.update(zip(b.outputs, second(*[known[n] for n in b.inputs])))
        found = tuple(known[n.name] if isinstance(n, fx.Node) else n for n in ((wanted,) if single else wanted))
        return found[0] if single else found

    return call
