"""Small ATen graphs for the tests of codegen, made by running a function of aten calls on real tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bytejit.common.spec import Spec


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


def normalised(fn: Callable, *args: Any) -> torch.fx.Graph:
    """The ATen graph that bytejit makes of a function or module; what it reads from outside are inputs."""
    import bytejit
    from bytejit.codegen.aten.normalise import normalise
    from bytejit.fake.tensor import fake_like

    found: list[torch.fx.Graph] = []

    def backend(gm: torch.fx.GraphModule, examples: list) -> Callable:
        found.append(normalise(gm, [fake_like(x) for x in examples]).graph)
        return gm.forward

    with torch.no_grad():
        bytejit.compile(fn, backend=backend)(*args)
    return found[0]


def on_gpu(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The graph as if its tensors were on a GPU."""
    for node in graph.nodes:
        s = node.meta.get("spec")
        if isinstance(s, Spec):
            node.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    return graph


def stages(graph: Graph, threads: int = 2) -> tuple:
    """Loops, fused loops and plan of a graph; each checked."""
    from bytejit.codegen.cpu.schedule import schedule
    from bytejit.codegen.loops.check import check_loops, check_plan
    from bytejit.codegen.loops.lower import lower
    from bytejit.codegen.loops.passes.fuse import fuse
    from bytejit.codegen.loops.plan import Machine

    loops = check_loops(lower(graph))
    fused = check_loops(fuse(loops))
    return loops, fused, check_plan(schedule(fused, Machine(threads=threads)))


def same(
    fn: Callable,
    *args: Any,
    threads: int = 2,
    rtol: float | None = None,
    atol: float | None = None,
    decompositions: dict | None = None,
) -> tuple:
    """Asserts that fn's loops, fused loops and plan compute what eager computes, strides included; returns the three."""
    from interp import run

    made = stages(aten(fn, *args, decompositions=decompositions), threads)
    expected = fn(*args)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    for stage in made:
        got = run(stage, list(args))
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            low = b.dtype in (torch.bfloat16, torch.float16)
            torch.testing.assert_close(
                a, b, rtol=rtol or (2e-2 if low else None), atol=atol or (2e-2 if low else None), equal_nan=True
            )
            assert a.stride() == b.stride() or b.numel() < 2, f"stride {a.stride()}, eager {b.stride()}"
    return made
