"""Recordings of whole training steps: gradients are made in the memory of those that they take the place of, where nobody
holds these. Against eager, on a pretended device."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import nn

import bytejit
from bytejit.codegen.emit import operands
from bytejit.codegen.emit.grad_memory import GradMemory, old_grads
from bytejit.common.holders import is_only_a_grad
from bytejit.kernels import cuda_graphs, other_streams
from tests.kernels.test_training_recordings import Net, Pretended, data

Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, int], object]
kept: list[object] = []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    kept.clear()
    yield Pretended(monkeypatch)
    bytejit.reset()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def reads_old_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    before = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    return before, step(model, optimizer, x, turn)


def returns_old_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    before = [p.grad for p in model.parameters()]
    return before, step(model, optimizer, x, turn)


def keeps_an_old_gradient(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    model.before = model.first.weight.grad
    return step(model, optimizer, x, turn)


def returns_new_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    return step(model, optimizer, x, turn), [p.grad for p in model.parameters()]


def adds_to_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def fills_with_zeros(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, turn: int) -> object:
    optimizer.zero_grad(set_to_none=False)
    return adds_to_gradients(model, optimizer, x, turn)


STEPS = [
    step,
    reads_old_gradients,
    returns_old_gradients,
    keeps_an_old_gradient,
    returns_new_gradients,
    adds_to_gradients,
    fills_with_zeros,
]


# ---- what the program does between two steps ----------------------------------------------------------------------------
Between = Callable[[nn.Module, object, int], object]


def nothing(model: nn.Module, result: object, turn: int) -> None:
    pass


def keeps_results(model: nn.Module, result: object, turn: int) -> object:
    kept.append(result)
    return kept


def keeps_gradients(model: nn.Module, result: object, turn: int) -> object:
    if turn % 3 == 0:
        kept.extend(p.grad for p in model.parameters())
    return kept


def keeps_a_window(model: nn.Module, result: object, turn: int) -> object:
    kept.append(model.first.weight.grad[1:])
    return kept


def keeps_an_array(model: nn.Module, result: object, turn: int) -> object:
    kept.append(model.first.weight.grad.numpy())
    return [torch.from_numpy(a) for a in kept]


def keeps_memory(model: nn.Module, result: object, turn: int) -> object:
    kept.append(model.first.weight.grad.untyped_storage())
    return [torch.empty(0, device=s.device).set_(s) for s in kept]


def keeps_another_tensor_on_it(model: nn.Module, result: object, turn: int) -> object:
    kept.append(model.first.weight.grad.detach())
    return kept


def exchanges(model: nn.Module, result: object, turn: int) -> None:
    a, b = model.norm.weight, model.norm.bias
    a.grad, b.grad = b.grad, a.grad


def lets_go(model: nn.Module, result: object, turn: int) -> None:
    if turn % 4 == 3:
        for p in model.parameters():
            p.grad = None


def one_memory_for_all(model: nn.Module, result: object, turn: int) -> object:
    sizes = [p.numel() for p in model.parameters()]
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    for p, part in zip(model.parameters(), flat.split(sizes)):
        p.grad = part.view_as(p)
    kept.append(flat)
    return kept


def changes(model: nn.Module, result: object, turn: int) -> None:
    model.first.weight.grad.mul_(2)
    model.last.weight.data.sub_(0.01 * model.last.weight.grad)


BETWEEN = [
    nothing,
    keeps_results,
    keeps_gradients,
    keeps_a_window,
    keeps_an_array,
    keeps_memory,
    keeps_another_tensor_on_it,
    exchanges,
    lets_go,
    one_memory_for_all,
    changes,
]


# each way of a step, and each thing between two, with some of the others: all pairs are run on a GPU
PAIRS = [(step, b) for b in BETWEEN] + [(f, b) for f in STEPS[1:] for b in (nothing, keeps_gradients)]
each_pair = pytest.mark.parametrize(("fn", "between"), PAIRS, ids=lambda f: f.__name__)


def trained(model: nn.Module, fn: Step, between: Between, turns: int) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    kept.clear()
    out = []
    for turn in range(turns):
        result = fn(model, optimizer, data(turn), turn)
        seen = between(model, result, turn)
        out.append(copy.deepcopy((result, seen, [p.grad for p in model.parameters()])))
        del result, seen
    return out


@each_pair
def test_as_eager(device: Pretended, fn: Step, between: Between) -> None:
    torch.manual_seed(0)
    eager = Net()
    mine = copy.deepcopy(eager)
    want = trained(eager, fn, between, 12)
    got = trained(mine, bytejit.compile(fn, fullgraph=True), between, 12)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(mine.state_dict()), dict(eager.state_dict()), rtol=1e-3, atol=1e-4)
    if between is not one_memory_for_all or fn not in (adds_to_gradients, fills_with_zeros):  # which write to parts of one memory
        assert sum(device.replays.values()), device.told
        assert not bytejit.counters["fallbacks"]


@each_pair
def test_plain_calls(fn: Step, between: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients too are made in the memory of the old ones"""
    monkeypatch.setattr(operands, "GRAD_LEAST", 0)
    made = []
    again = GradMemory.again
    monkeypatch.setattr(GradMemory, "again", lambda *given: (made.append(again(*given)), made[-1])[1])
    torch.manual_seed(0)
    eager = Net()
    mine = copy.deepcopy(eager)
    kept.clear()
    want = trained(eager, fn, between, 6)
    got = trained(mine, bytejit.compile(fn, fullgraph=True), between, 6)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if fn is step and between in (nothing, keeps_results):
        assert sum(t is not None for t in made) >= 5  # from the second step on


@pytest.mark.parametrize("between", [nothing, keeps_results, lets_go, changes], ids=lambda f: f.__name__)
def test_one_recording_is_enough(device: Pretended, between: Between) -> None:
    torch.manual_seed(0)
    trained(Net(), bytejit.compile(step, fullgraph=True), between, 12)
    made = [len(s.recordings) for r in device.replayers for lane in r.lanes.values() for s in lane.sized.values()]
    assert max(made) == 1, made


# ---- several recordings in one pool ---------------------------------------------------------------------------------
def looks(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x).sum(1)


@pytest.mark.parametrize("first", ["looks", "steps"])
@pytest.mark.parametrize("lets_go", [False, True])
def test_graphs_that_take_turns(device: Pretended, first: str, lets_go: bool) -> None:
    """Two networks with a step each, and one that is only looked at: gradients stay until the next step of their own network,
    whatever was recorded before or after, and whatever runs in between"""

    def seen(compiled: Callable) -> list:
        torch.manual_seed(0)
        one, two = Net(), Net()
        steps = [(m, torch.optim.SGD(m.parameters(), 0.1), compiled(copied_function(step))) for m in (one, two)]
        look, other_look, out = compiled(copied_function(looks)), compiled(copied_function(looks)), []
        for turn in range(18):
            for m, optimizer, fn in steps if first == "steps" or turn >= 5 else ():
                out.append(fn(m, optimizer, data(turn), turn))
                out.append([p.grad.clone() for m, _, _ in steps for p in m.parameters() if p.grad is not None])
            if lets_go and turn % 5 == 4:
                one.zero_grad()
            if first == "looks" or turn >= 7:
                out += [look(one, data(turn)).clone(), other_look(two, data(turn)).clone()]
            out.append([p.grad.clone() for m, _, _ in steps for p in m.parameters() if p.grad is not None])
        return out

    want = seen(lambda f: f)
    got = seen(lambda f: bytejit.compile(f, fullgraph=True))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    anew = sum(t == "recorded again: gradients of another graph lay in its memory" for t in device.told)
    assert device.replays[cuda_graphs.Replayer] > 20 and anew <= 4, device.told


def test_sizes_that_take_turns(device: Pretended) -> None:
    """Steps of one network on batches of two sizes, and gradients of both that are kept for a while"""

    def seen(fn: Callable) -> list:
        torch.manual_seed(0)
        model, out, held = Net(), [], []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for turn in range(30):
            out.append(fn(model, optimizer, data(turn)[: 12 if turn % 3 else 7], turn))
            if turn % 7 == 2:
                held = [p.grad for p in model.parameters()]
            out.append([g.clone() for g in held])
        return out

    want = seen(step)
    got = seen(bytejit.compile(copied_function(step), fullgraph=True))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert device.replays[cuda_graphs.Replayer] > 10, device.told


def copied_function(fn: Callable) -> Callable:
    """The same function with code of its own: it is compiled by itself."""
    return types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


# ---- calls that fail ------------------------------------------------------------------------------------------------
def reads_a_row(table: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return table[at].sum()


def factors(table: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(torch.eye(4) * (3 - at)).sum()


def divides(table: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return (at // (at - 7)).sum()


@pytest.mark.parametrize("fails", [reads_a_row, factors, divides], ids=lambda f: f.__name__)
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_call_that_fails(fails: Callable, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the step before are there, as in eager"""
    monkeypatch.setattr(operands, "GRAD_LEAST", 0)

    def step(table: nn.Parameter, w: nn.Parameter, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        loss = (x @ w).relu().sum() + (table * x[0, 0]).square().sum()
        more = fails(table, x, at) if when == "before" else 0
        new = torch.autograd.grad(loss, (table, w))
        more = fails(table, x, at) if when == "between" else more
        table.grad, w.grad = new
        return (loss + more + (fails(table, x, at) if when == "after" else 0)).detach()

    def seen(fn: Callable) -> list:
        torch.manual_seed(0)
        table, w, out = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(4, 4)), []
        for turn in range(3):
            out.append(fn(table, w, torch.randn(3, 4), torch.tensor(turn)))
        with pytest.raises((IndexError, RuntimeError)) as raised:
            fn(table, w, torch.randn(3, 4), torch.tensor(7))
        return [*out, table.grad, w.grad], raised.type

    want = seen(step)
    for _ in range(2):  # planned now, and read from disk
        got = seen(bytejit.compile(step))
        torch.testing.assert_close(got[0], want[0])
        assert got[1] is want[1]
        bytejit.reset()


# ---- large gradients on a CPU -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("lets_go", [(), range(20), range(4, 9)], ids=["never", "always", "a while"])
def test_memory_of_large_gradients(lets_go: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They need new memory neither where they replace others nor where the program lets go of them"""
    monkeypatch.setattr(operands, "GRAD_LEAST", 0)
    monkeypatch.setattr(operands, "LARGE", 0)

    def backward(w: nn.Parameter, x: torch.Tensor) -> None:
        w.grad = torch.autograd.grad((w * x).tanh().sum(), w)[0]

    compiled, places, others = bytejit.compile(backward), list[int](), list[torch.Tensor]()
    w = nn.Parameter(torch.ones(64, 64))
    for turn in range(20):
        if turn in lets_go:
            w.grad = None
        compiled(w, torch.full((64, 64), float(turn)))
        torch.testing.assert_close(w.grad, turn * (1 - torch.full((64, 64), float(turn)).tanh() ** 2))
        places.append(w.grad.data_ptr())
        others.append(torch.zeros(64, 64))  # takes the place of memory that is not kept
    assert len(set(places)) <= 3, places


# ---- who holds a gradient -------------------------------------------------------------------------------------------
def place(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def test_a_gradient_that_only_its_parameter_holds() -> None:
    p, own = nn.Parameter(torch.zeros(3)), torch.zeros(3)
    assert not is_only_a_grad(p, place(own))
    p.grad = own.detach()
    assert is_only_a_grad(p, place(own))
    assert not is_only_a_grad(p, place(torch.zeros(3)))
    for hold in (lambda g: g, lambda g: [g], lambda g: g.view(1, 3), lambda g: (g * p).sum(), torch.utils.dlpack.to_dlpack):
        held = hold(p.grad)
        assert not is_only_a_grad(p, place(own)), held
        del held
        assert is_only_a_grad(p, place(own))


def test_a_gradient_that_another_stream_works_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which nobody but the allocator knows, once the program has let go of it."""
    monkeypatch.setattr(operands, "GRAD_LEAST", 0)
    other_streams.interposed()
    compiled, model = bytejit.compile(step, fullgraph=True), Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for turn in range(3):
        compiled(model, optimizer, data(turn), turn)
    weight = model.first.weight
    for streamed in (False, True):
        before = weight.grad.data_ptr()
        if streamed:
            with pytest.raises(NotImplementedError, match="CPU"):  # noted on its way to the tensor's own device
                weight.grad.record_stream(torch.Stream(stream_id=3, device_index=0, device_type=1))
        assert bool(old_grads([weight], 0)) is not streamed
        compiled(model, optimizer, data(5), 5)
        assert (weight.grad.data_ptr() == before) is not streamed
