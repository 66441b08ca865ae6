"""Numbers that are read out of tensors and only kept: the region goes on, and its exit reads them"""

import copy
import dataclasses
import math
from collections import defaultdict

import pytest
import torch
from torch import nn

import bytejit

from . import targets
from .harness import F, I, Spec, case, check, program


@program(F(3, 4), graphs=1, total=4, calls=8)
def test_a_log():
    """`losses.append(loss.item())`, `total += loss.item()`, `log[key] = ...`: one graph, whatever the numbers are"""
    log, losses = defaultdict(list), []

    class State:
        total, count, best, name = 0.0, 0, float("inf"), ""

    state = State()

    def step(x):
        loss = x.square().sum()
        losses.append(loss.item())
        state.total += loss.item()
        state.count += (x > 0).sum().item()
        state.best = min(state.best, float(loss))
        state.name = f"{loss.item():.3f} {loss:.1f} {loss} {loss.item()!r:>20}" + f"{float(loss):.2f}"
        log["loss"].append(loss.detach().cpu().item())
        log["any"].append((x > 0).any().item())
        return x + 1, {"loss": loss.item(), "mean": state.total / 4}

    return step, lambda: (losses, dict(log), vars(state))


@case(F(3, 4), graphs=1)
def test_types_of_numbers(x):
    """float, int, bool and complex, of every width, and nan and infinity"""
    y = x.sum()
    widths = [y.to(d).item() for d in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64)]
    return widths, (y * math.nan).item(), (y.abs() * math.inf).item(), y.to(torch.complex64).item(), x.argmax().item()


@case(F(3, 4), graphs=1)
def test_conversions(x):
    """float(), int(), bool(), tolist() and NumPy's item()"""
    hits = (x > 0).sum()
    return float(x.sum()), int(hits), float(hits), bool((x > 0).any()), x[0].tolist(), hits.tolist(), x.max().numpy().item()


@case(F(4, 2), 3, graphs=1)
def test_arithmetic(x, n):
    """Arithmetic and comparisons that cannot raise wait as well, with the types and the rounding of Python's"""
    rows = [r.sum().item() for r in x]
    hits = [(r > 0).sum().item() for r in x]
    whole = (
        sum(hits),
        hits[0] - hits[1],
        hits[0] * 2,
        hits[1] // 3,
        hits[2] % 2,
        hits[0] / 7,
        -hits[1],
        +hits[2],
    )
    real = sum(rows), sum(rows) / len(rows), rows[0] * n, n - rows[1], rows[2] / 4, rows[0] // 2, rows[1] % 2.5, hits[0] * 0.5
    called = max(rows), min(rows[0], 1.5), round(rows[0], 2), round(hits[1]), abs(rows[1]), float(hits[0]), int(hits[1])
    asked = rows[0] > 0, hits[0] == n, rows[0] != rows[1], math.isnan(rows[2]), bool(rows[0]), isinstance(rows[0], float)
    truths = (x > 0).any().item() + 1, (x > 0).all().item() == 1
    return whole, real, called, asked, truths


@dataclasses.dataclass
class Result:
    loss: float
    parts: list


@case(F(3, 4), graphs=1)
def test_one_number_in_several_places(x):
    """Structures of numbers: one object is one object, copies are copies"""

    loss = x.sum().item()
    made = Result(loss, [loss, x.mean().item()])
    return dataclasses.asdict(made), copy.deepcopy(made.parts), made.loss is loss, loss is None


@program(F(3, 4), graphs=1)
def test_training_step():
    """A training step that logs: loss and norm are read before and after the backward pass"""
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.fill_(0.25), net.bias.zero_()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        seen.append(loss.item())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        seen.append({"norm": norm.item(), "loss": float(loss)})
        return loss.detach()

    return step, lambda: (seen, [p.detach().clone() for p in net.parameters()])


@case(F(3, 4, grad=True))
def test_read_and_returned(x):
    """What is read is returned as well, with its history"""
    y = x.square().sum()
    return y.item(), y, x.mean().item()


@case(F(3, 4), breaks=False)
def test_changed_afterwards(x):
    """A tensor that is written after the read: the number is that of before"""
    y = x * 2
    first, view = y[0, 0].item(), y.view(-1)
    view[0] = 7
    before = x.sum().item()
    x.zero_()
    return first, y[0, 0].item(), before, x.sum().item()


@program(F(4, 3), graphs=1)
def test_statistics_of_a_batch_norm():
    """Numbers of buffers that a batch norm writes: before it, and behind it"""
    norm = nn.BatchNorm1d(3)

    def f(x):
        before = norm.running_mean.sum().item(), norm.num_batches_tracked.item()
        return norm(x), before, norm.running_mean.sum().item(), norm.running_mean[0].item(), norm.num_batches_tracked.item()

    return f, lambda: norm.running_var


@program(F(4, 80))
def test_statistics_that_are_written_behind_the_read():
    """A number of a view of a large buffer, which a batch norm then writes"""
    norm = nn.BatchNorm1d(80)
    return lambda x: (norm.running_mean[3].item(), norm(x), norm.running_mean[3].item())


@case(F(2, 3), graphs=1)
def test_products_of_integers(x):
    """Products of integers, which grow, and floats"""
    n, product, scale = (x > -9).sum().item(), 1, 1.0
    for _ in range(40):
        product, scale = product * n, scale * x.mean().item()
    return product, scale, 100.0 * sum([n, n]) / 3, (n + n) / 7


@case(F(2, 3))
def test_integers_that_no_float_holds(x):
    """An integer beyond a float's range, and a float: as in eager, an error"""
    big = 10**300 * (x > -9).sum().item()
    try:
        return x + 1, big * 10**20 * 0.5
    except OverflowError as e:
        return str(e)


@program(F(4))
def test_aliases_that_are_written():
    """The memory of one argument is written through another"""

    def f(x, y):
        first = x[0].item()
        y.zero_()
        return first, x[0].item()

    return lambda x: (f(x, x.view(2, 2)), x)


@case(F(3, 4), I(3))
def test_numbers_that_decide(x, ids):
    """A branch, a size, a key, a loop or an operand: the graph breaks"""
    found = {}
    if x.sum().item() > 0:
        x = x + 1
    scale = x.mean().item()
    x = x * scale
    n = (x > 0).sum().item()
    x = torch.cat([x.flatten()[:n], torch.full((2,), scale)])
    found[n] = ids[: int((ids > 3).sum())]
    for _ in range(int((ids > 3).sum())):
        x = x - 0.5
    return x, found, math.exp(scale), f"{scale:.0f}", n in found, [10, 11, 12, 13][min(n, 3)]


class Loss(float):
    pass


@case(F(4))
def test_a_subclass_of_float(x):
    """A number of a class of the program's, made of one that is read"""
    return Loss(x.sum().item()), x + 1


@case(F(4))
def test_errors_of_numbers(x):
    """What raises, raises as in eager"""
    try:
        x.item()
    except RuntimeError as e:
        first = type(e)
    try:
        int(x.sum() * math.nan)
    except ValueError as e:
        second = str(e)
    try:
        1 / (x.sum() * 0).item()
    except ZeroDivisionError as e:
        return first, second, str(e)


@pytest.mark.skipif(targets.TARGET != "bytejit", reason="what is asked of bytejit")
def test_a_loop_that_decides_late_is_one_graph():
    """What sums numbers of tensors up in a loop and decides by the sum has one graph before the decision."""

    def f(x):
        total = 0.0
        for row in x:
            total += row.sum().item()
        return x + 1 if total > 0 else x - 1

    report = bytejit.explain(f, torch.ones(4, 2))
    assert len(report.break_reasons) == 1 and len(report.graphs) == 2


@pytest.mark.parametrize("turns", [3, 50])
def test_a_long_loop_is_not_one_graph(turns):
    """A loop that reads in each turn is one graph while that is small; else each turn is a graph, which serves all of them."""
    counter, weight = targets.Counter(), torch.ones(2, 2)

    def f(batches):
        total, log = 0.0, []
        for x in batches:
            y = x
            for _ in range(5):
                y = (y @ weight).relu() / 2
            total += y.mean().item()
            log.append(y.max().item())
        return total / len(batches), log

    compiled = targets.compiled(f, counter)
    for _ in range(2):
        batches = [torch.rand(3, 2) for _ in range(turns)]
        assert compiled(batches) == f(batches)
    if targets.TARGET == "bytejit":
        sizes = [sum(n.op.startswith("call") for n in gm.graph.nodes) for gm in counter.graphs]
        assert len(sizes) == 1 if turns == 3 else len(sizes) <= 6 and max(sizes) <= 20


def test_a_helper_that_reads_for_many():
    """A function that reads a tensor, called at several places with much between them, is in no loop."""
    counter, weight, log = targets.Counter(), torch.ones(2, 2), []

    def note(x):
        log.append(x.mean().item())

    def f(x):
        note(x)
        for _ in range(100):
            x = (x @ weight).tanh()
        note(x)
        return x

    compiled = targets.compiled(f, counter)
    assert torch.equal(compiled(torch.ones(2, 2)), f(torch.ones(2, 2)))
    assert log[:2] == log[2:]
    if targets.TARGET == "bytejit":
        assert counter.count == 1


def test_unread_number_costs_nothing():
    """A number that nothing keeps is no output of the graph."""
    counter = targets.Counter()

    def f(x):
        x.sum().item()
        return x + 1

    assert torch.equal(targets.compiled(f, counter)(torch.ones(2)), torch.ones(2) + 1)
    if targets.TARGET == "bytejit":
        assert [len(n.args[0]) for gm in counter.graphs for n in gm.graph.nodes if n.op == "output"] == [1]


def test_only_read_needs_no_backward():
    """An output that the exit only reads a number out of is given without its history."""
    counter = targets.Counter()
    weight = nn.Parameter(torch.ones(3))

    def f(x):
        return (x * weight).sum().item()

    assert targets.compiled(f, counter)(torch.ones(3)) == 3.0
    if targets.TARGET == "bytejit":
        (graph,) = counter.graphs
        assert not any(out.requires_grad for out in graph.forward(weight, torch.ones(3)))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("number", [2.5, 7, True], ids=str)
@pytest.mark.parametrize("read", [lambda s: s.item(), lambda s: s.item() * 2, float, int], ids=["item", "twice", "float", "int"])
def test_number_of_a_region_without_operations(read, number, backend):
    """A number is read before a break, and nothing is computed"""

    def kept(x, s):
        outs = []
        for g in (lambda: read(s), lambda: x.split(0)):
            try:
                r = g()
                outs.append(r if isinstance(r, (torch.Tensor, int, float)) else str(r))
            except Exception as e:
                outs.append(str(e))
        return outs, x + 1

    def branched(x, s):
        n = read(s)
        log = [n]
        print("a break")
        return n, log, x * (2 if n > 2 else 3)

    for f in (kept, branched):
        check(f, F(4), Spec(lambda r: torch.tensor(number) * (r.call + 1)), calls=4, backend=backend)


PLACES = {
    "item": lambda w, n: w[n],
    "part": lambda w, n: w[n:],
    "slice": lambda w, n: w[slice(0, n)],
    "range": lambda w, n: [*range(n)],
    "unread range": lambda w, n: range(n),
    "pop": lambda w, n: w.pop(n),
    "insert": lambda w, n: w.insert(n, 1) or w,
    "enumerate": lambda w, n: list(enumerate(w, n)),
    "tuple": lambda w, n: (1, 2, 3)[n],
    "method": lambda w, n: w.__getitem__(n),
    "text": lambda w, n: "abcdef"[n],
    "repeat": lambda w, n: w * n,
    "places": lambda w, n: w.index(4, n),
    "float": lambda w, n: w[float(n)],
    "math": lambda w, n: math.comb(5, n),
    "zeros": lambda w, n: torch.zeros(n),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_handler_of_type_errors_around_a_number(name):
    """A number that is read later is an integer for what wants one: no TypeError is caught that eager does not raise"""

    def f(x):
        n, w = int(x.abs().argmax()) % 3, [5, 3, 4, 4]
        try:
            return x * 2, PLACES[name](w, n)
        except (TypeError, IndexError, ValueError) as e:
            return x + 1, type(e).__name__, str(e)

    check(f, F(4), calls=3, backend="eager")
