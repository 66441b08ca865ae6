"""Small ATen graphs for the tests of codegen, made by running a function of aten calls on real tensors."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bytejit.spec import Spec


@dataclass(frozen=True)
class Graph:
    """What lower reads of an `Aten`."""
    graph: torch.fx.Graph
    outputs: tuple = ()
    mutations: tuple = ()


def spec_of(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return Spec.of(x)
    return tuple(map(spec_of, x)) if isinstance(x, (tuple, list)) else x


class _Specs(torch.fx.Interpreter):
    def run_node(self, n: torch.fx.Node) -> Any:
        out = super().run_node(n)
        n.meta["spec"] = spec_of(out)
        return out


def aten(fn: Callable, *args: Any, decompositions: dict | None = None) -> Graph:
    """fn as a functional ATen graph over args; output is a flat tuple. fn must not mutate."""
    def flat(*a: Any) -> Any:
        out = fn(*a)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)
    with torch.no_grad():
        gm = make_fx(flat, decompositions, tracing_mode="real")(*args)
        _Specs(gm).run(*args)
    output = next(n for n in gm.graph.nodes if n.op == "output")
    output.args = (tuple(output.args[0]),)
    return Graph(gm.graph)
