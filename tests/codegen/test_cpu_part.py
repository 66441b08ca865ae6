"""What of a graph on a GPU runs on the CPU first, or last, becomes a graph of its own. The GPU is pretended: specs say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graphs import aten

from bytejit.codegen.aten.cpu_part import cpu_part, cpu_rest
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.aten.numbers import numbers_on_gpu
from bytejit.codegen.aten.rewrite import copy_graph
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_like

MOVE = torch.ops.aten._to_copy.default


BACK = (torch.float32, torch.float16)


def mixed(fn, *args, made=None):
    """The graph of a function whose `.to(torch.float64)` stands for `.cuda()`: what needs it is on the GPU, up to a `.to` of
    fewer bits, which stands for `.cpu()`."""
    made = made or aten(fn, *args)
    graph = copy_graph(made.graph)
    for n in graph.nodes:
        spec = n.meta.get("spec")
        moved = n.op == "call_function" and (
            n.target is MOVE
            and spec.dtype not in BACK
            or n.target is not MOVE
            and any(a.meta["spec"].device.type == "cuda" for a in n.all_input_nodes if isinstance(a.meta.get("spec"), Spec))
        )
        if isinstance(spec, Spec) and moved:
            n.meta["spec"] = Spec(spec.shape, spec.stride, spec.dtype, torch.device("cuda", 0))
    return replace(made, graph=graph) if type(made) is Aten else Aten(graph, (), ())


def normalised(fn, *args):
    """The same, with the outputs as the function returns them."""
    gm = torch.fx.symbolic_trace(fn)
    return mixed(fn, made=normalise(gm, [fake_like(a) for a in args]))


def run(graph: torch.fx.Graph, *args):
    return torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)


def names(graph: torch.fx.Graph) -> list[str]:
    return [n.target.__name__.split(".")[0] for n in graph.nodes if n.op == "call_function"]


X, Y = torch.randn(100, 80), torch.randn(100, 80)
CASES = {
    "one value": (lambda x, y: (torch.cos(x) * 2 + y).to(torch.float64) + 1, ["cos", "mul", "add"], 1),
    "two values": (lambda x, y: ((z := torch.cos(x) + y).to(torch.float64), z.exp().to(torch.float64)), ["cos", "add", "exp"], 2),
    "one input": (lambda x, y: (x.sin().exp()).to(torch.float64) + y.to(torch.float64), ["sin", "exp"], 1),
    "a view at its end": (lambda x, y: (x.sin() * y).t().to(torch.float64), ["sin", "mul"], 1),
    "a view within": (lambda x, y: ((x * 2).t() + y.t()).to(torch.float64), ["mul", "t", "t", "add"], 1),
    "also answered": (lambda x, y: ((z := x.sin() * y), (z + 1).exp().to(torch.float64)), ["sin"], 0),
    "several results": (
        lambda x, y: (x.exp().max(1)[0] + y.sum(1)).to(torch.float64),
        ["exp", "max", "getitem", "sum", "add"],
        1,
    ),
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


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x.sin().to(torch.float64),
        lambda x, y: (x[0, 0] * 2 + 1).to(torch.float64) + y.to(torch.float64),
        lambda x, y: (torch.rand_like(x) + 1).to(torch.float64),
        lambda x, y: (x.to(torch.float64) + 1).exp(),
    ],
    ids=["one op", "small", "random", "nothing before"],
)
def test_what_is_not_worth_it(fn) -> None:
    assert cpu_part(mixed(fn, X, Y)) is None


# ---- what runs on the CPU last --------------------------------------------------------------------------------------------
def there(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64) * 2


LATER = {
    "one value": (lambda x, y: (there(x).float() + 1).exp(), ["add", "exp"], 1),
    "with an input": (lambda x, y: (there(x).float() + y).exp() * 3, ["add", "exp", "mul"], 1),
    "two values, one used twice": (
        lambda x, y: (((z := there(x).float()) + 1).exp(), (there(y).float() - z).sin() * z),
        ["add", "exp", "sub", "sin", "mul"],
        2,
    ),
    "and others": (lambda x, y: ((t := there(x)), x, (t.float() + y).exp(), t.sum(), x[1:], 7), ["add", "exp"], 1),
    "what is handed over is answered": (lambda x, y: ((z := there(x).float()), (z + 1).exp(), z.t()), ["add", "exp"], 1),
    "views of results": (lambda x, y: ((z := (there(x).float() + 1).exp()), z.t(), z[1:]), ["add", "exp"], 1),
    "a view on the way": (lambda x, y: (there(x).float().t() + 1).exp(), ["add", "exp"], 1),
    "nothing of the gpu": (lambda x, y: (there(x), (y + 1).exp()), ["add", "exp"], 0),
    "needed there too": (
        lambda x, y: ((z := there(x).float() + 1).to(torch.float64) * 2, (z.exp() + 1).sin()),
        ["exp", "add", "sin"],
        1,
    ),
    "several results": (lambda x, y: ((there(x).float() + y).max(1)[0] + 1, y), ["add", "max", "getitem", "add"], 1),
}


@pytest.mark.parametrize("name", LATER)
def test_the_part_after(name: str) -> None:
    fn, ops, given = LATER[name]
    whole = normalised(fn, X, Y)
    found = cpu_rest(whole)
    assert set(ops) <= set(names(found.after.graph)) <= {*ops, "t", "permute", "transpose"} and found.given == given
    found.first.graph.lint()
    found.after.graph.lint()
    assert all(n.meta["spec"].device.type == "cpu" for n in found.after.graph.nodes if isinstance(n.meta.get("spec"), Spec))
    made, want = found.joined(run_aten(found.first), run_aten(found.after), whole.single)(X, Y), fn(X, Y)
    assert isinstance(made, tuple) == isinstance(want, tuple)
    for a, b in zip(made, want, strict=True) if isinstance(want, tuple) else [(made, want)]:
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert torch.equal(a, b) and a.dtype == b.dtype and (a is X) == (b is X)
    if name == "views of results":
        assert len({t.untyped_storage()._cdata for t in made}) == 1
    assert sum(isinstance(s, Kernel) for s in fuse(lower(found.after)).steps) <= 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: there(x).float().exp(),
        lambda x, y: (there(x[:4]).float() + 1).exp(),
        lambda x, y: torch.rand_like(there(x).float()) + 1,
        lambda x, y: (there(x).float() + 1).exp().to(torch.float64),
        lambda x, y: (y.copy_((there(x).float() + 1).exp()), y.sin())[1],
    ],
    ids=["one op", "small", "random", "nothing after", "writes an input"],
)
def test_what_is_not_worth_it_after(fn) -> None:
    assert cpu_rest(normalised(fn, X, Y)) is None


def write_number(x):
    y = x.to(torch.float64)
    return torch.where(y > 3, torch.full((), 5.0), y) * torch.scalar_tensor(2)


def keep_number(x):
    number = torch.full((), 2.0)
    return x.to(torch.float64) * number, number


@pytest.mark.parametrize(("fn", "moved"), [(write_number, True), (keep_number, False)])
def test_numbers_move_to_the_gpu(fn, moved) -> None:
    """A 0-dim tensor of a constant on the CPU is one on the GPU, where no output shows it."""
    made = mixed(fn, X)
    on_cpu = [n for n in made.graph.nodes if n.op == "call_function" and n.meta["spec"].device.type == "cpu"]
    assert on_cpu and all(n.meta["spec"].shape == () for n in on_cpu)
    found = numbers_on_gpu(made, torch.device("cuda", 0))
    left = [n for n in found.graph.nodes if n.op == "call_function" and n.meta["spec"].device.type == "cpu"]
    assert not left if moved else [n.name for n in left] == [n.name for n in on_cpu]
    assert all(n.meta["spec"].device.type == "cpu" for n in on_cpu)  # the graph given is as it was
