"""What of a graph on a GPU runs on the CPU first, or last, becomes a graph of its own. The GPU is pretended: specs say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graphs import aten

from bytejit.codegen.aten.batched_numbers import batch_numbers
from bytejit.codegen.aten.cpu_numbers import numbers_on_gpu
from bytejit.codegen.aten.cpu_part import cpu_part, cpu_rest
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.normalise import normalise
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
    part = found.before
    assert set(names(part.graph)) == set(ops) and len(part.outputs) == count
    part.graph.lint()
    found.first.graph.lint()
    made = [t if to is None else t.to(to[1]) for t, to in zip(run(part.graph, *[(X, Y)[i] for i in found.taken]), found.sent)]
    for a, b in zip(run(found.first.graph, X, Y, *made), run(whole.graph, X, Y), strict=True):
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


def compute_number(x):
    return x.to(torch.float64) / torch.sqrt(torch.full((), 64.0) * 3) + torch.ceil(torch.full((), 2.5)) ** 2


def compute_and_keep(x):
    scale = torch.sqrt(torch.full((), 3.0))
    return x.to(torch.float64) * scale, scale


@pytest.mark.parametrize(
    ("fn", "moved"), [(write_number, True), (keep_number, False), (compute_number, True), (compute_and_keep, False)]
)
def test_numbers_move_to_the_gpu(fn, moved) -> None:
    """A 0-dim tensor of a constant on the CPU is one on the GPU, where no output shows it."""
    made = mixed(fn, X)
    on_cpu = [n for n in made.graph.nodes if n.op == "call_function" and n.meta["spec"].device.type == "cpu"]
    assert on_cpu and all(n.meta["spec"].shape == () for n in on_cpu)
    found = numbers_on_gpu(made, torch.device("cuda", 0))
    left = [n for n in found.graph.nodes if n.op == "call_function" and n.meta["spec"].device.type == "cpu"]
    assert not left if moved else [n.meta["spec"] for n in left] == [n.meta["spec"] for n in on_cpu][-len(left) :]
    made_here = [n for n in found.graph.nodes if n.op == "call_function" and n.meta["spec"].shape == ()]
    assert {n.target for n in made_here} <= {torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default}
    assert all(n.meta["spec"].device.type == "cpu" for n in on_cpu)  # the graph given is as it was


# ---- numbers that are computed beside -------------------------------------------------------------------------------------
RATE = torch.tensor(0.125)


def count_steps(x, a, b, c, d, rate):
    """Counts in a tensor for each of four corrections, as an optimizer does; two numbers of each are for the GPU."""
    large = x.to(torch.float64)
    outs = []
    for step in (a, b, c, d):
        step.add_(1)
        power = 0.9**step
        outs.append(large * (1 - power) + rate / power)
    return outs


def count_alike(x, a, b, c, d, rate):
    """One of the four is computed in another way."""
    return [*count_steps(x, a, b, c, d, rate), x.to(torch.float64) * (a * 3)]


def count_and_show(x, a, b, c, d, rate):
    """A count is also returned, a tensor of the CPU."""
    return [*count_steps(x, a, b, c, d, rate), b, (c + 1)]


def count_in_two(x, a, b, c, d, rate):
    """The rate and what it meets have other dtypes."""
    large = x.to(torch.float64)
    rate = rate.half() * 3
    outs = []
    for step in (a, b, c, d):
        step.add_(1)
        outs.append(large * (rate / (1 - 0.9**step)))
    return outs


def counts_meet(x, a, b, c, d, rate):
    """Chains of two inputs are none."""
    return [x.to(torch.float64) * ((s * t).exp() + 1) for s, t in ((a, b), (c, d))]


COUNTS = {  # function -> how many rows go to the GPU, how many writes come last
    count_steps: (2, 4),
    count_alike: (0, 4),
    count_and_show: (0, 4),
    count_in_two: (1, 4),
    counts_meet: (0, 0),
}


@pytest.mark.parametrize("fn", COUNTS, ids=lambda fn: fn.__name__)
def test_counters(fn) -> None:
    """Chains that differ in their input only are one; their results go to the GPU together; inputs are written at the end."""
    steps = [torch.tensor(float(i + 1)) for i in range(4)]
    whole = normalised(fn, X, *steps, RATE)
    joined = batch_numbers(whole)
    joined.graph.lint()
    rows, writes = COUNTS[fn]
    chains = [n for n in joined.graph.nodes if n.op == "call_function" and n.meta["spec"].shape == (4,)]
    assert sum(n.meta["spec"].device.type == "cuda" for n in chains) == rows and bool(rows) == bool(chains)
    found = cpu_part(joined)
    given, wanted = [s.clone() for s in steps], [s.clone() for s in steps]
    want = run_aten(whole)(X, *wanted, RATE)
    if found is None:
        return
    assert (len(found.writes.mutations) if found.writes is not None else 0) == writes
    here = replace(found, sent=tuple(to and (torch.device("cpu"), to[1]) for to in found.sent))
    parts = (None if part is None else run_aten(part) for part in (found.before, found.writes))
    first = run_aten(found.first)

    def unread(*inputs):
        """The inputs that the graph on the GPU does not look at are not handed to it."""
        assert [i for i, t in enumerate(inputs) if t is None] == sorted(found.unread)
        return first(*(torch.zeros(()) if t is None else t for t in inputs))

    made = here.joined(unread, *parts)(X, *given, RATE)
    for a, b in zip(made, want, strict=True):
        assert torch.equal(a, b)
    assert given == wanted
