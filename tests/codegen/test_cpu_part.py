"""What of a graph on a GPU runs on the CPU first becomes a graph of its own. The GPU is pretended: specs say so."""
from __future__ import annotations

import pytest
import torch
from graphs import aten

from bytejit.codegen.aten import Aten
from bytejit.codegen.cpu_part import cpu_part
from bytejit.codegen.fuse import fuse
from bytejit.codegen.loops import Kernel
from bytejit.codegen.lower import lower
from bytejit.codegen.rewrite import copy_graph
from bytejit.spec import Spec

MOVE = torch.ops.aten._to_copy.default


def mixed(fn, *args):
    """The graph of a function whose `.to(torch.float64)` stands for `.cuda()`: what needs it is on the GPU."""
    made = aten(fn, *args)
    graph = copy_graph(made.graph)
    for n in graph.nodes:
        spec = n.meta.get("spec")
        moved = n.op == "call_function" and (n.target is MOVE or any(
            a.meta["spec"].device.type == "cuda" for a in n.all_input_nodes if isinstance(a.meta.get("spec"), Spec)))
        if isinstance(spec, Spec) and moved:
            n.meta["spec"] = Spec(spec.shape, spec.stride, spec.dtype, torch.device("cuda", 0))
    return Aten(graph, tuple(made.outputs), tuple(made.mutations))


def run(graph: torch.fx.Graph, *args):
    return torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)


def names(graph: torch.fx.Graph) -> list[str]:
    return [n.target.__name__.split(".")[0] for n in graph.nodes if n.op == "call_function"]


X, Y = torch.randn(100, 80), torch.randn(100, 80)
CASES = {
    "one value": (lambda x, y: (torch.cos(x) * 2 + y).to(torch.float64) + 1, ["cos", "mul", "add"], 1),
    "two values": (lambda x, y: ((z := torch.cos(x) + y).to(torch.float64), z.exp().to(torch.float64)),
                   ["cos", "add", "exp"], 2),
    "one input": (lambda x, y: (x.sin().exp()).to(torch.float64) + y.to(torch.float64), ["sin", "exp"], 1),
    "a view at its end": (lambda x, y: (x.sin() * y).t().to(torch.float64), ["sin", "mul"], 1),
    "a view within": (lambda x, y: ((x * 2).t() + y.t()).to(torch.float64), ["mul", "t", "t", "add"], 1),
    "also answered": (lambda x, y: ((z := x.sin() * y), (z + 1).exp().to(torch.float64)), ["sin"], 0),
    "several results": (lambda x, y: (x.exp().max(1)[0] + y.sum(1)).to(torch.float64),
                        ["exp", "max", "getitem", "sum", "add"], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_part_before(name: str) -> None:
    fn, ops, count = CASES[name]
    whole = mixed(fn, X, Y)
    found = cpu_part(whole)
    if not count:
        assert found is None
        return
    part, taken, rest = found
    assert set(names(part.graph)) == set(ops) and len(part.outputs) == count
    part.graph.lint()
    rest.graph.lint()
    made = run(part.graph, *[(X, Y)[i] for i in taken])
    for a, b in zip(run(rest.graph, X, Y, *made), run(whole.graph, X, Y), strict=True):
        assert torch.equal(a, b)
    assert sum(isinstance(s, Kernel) for s in fuse(lower(part)).steps) <= 2


@pytest.mark.parametrize("fn", [
    lambda x, y: x.sin().to(torch.float64), lambda x, y: (x[0, 0] * 2 + 1).to(torch.float64) + y.to(torch.float64),
    lambda x, y: (torch.rand_like(x) + 1).to(torch.float64), lambda x, y: (x.to(torch.float64) + 1).exp()],
    ids=["one op", "small", "random", "nothing before"])
def test_what_is_not_worth_it(fn) -> None:
    assert cpu_part(mixed(fn, X, Y)) is None
