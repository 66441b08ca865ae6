"""Recordings of forward and backward passes, a model alone in training, against eager: on a pretended device, where a replay
runs the graph again into the memory of its outputs."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import types
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import bytejit
from bytejit.backends.cpu import CpuTarget
from bytejit.common.boxed import inner
from bytejit.common.graph_info import info_of
from bytejit.kernels import cuda_capture, cuda_graphs, training_recordings
from bytejit.kernels.cuda_graphs import HANDING, Policy, replayed
from bytejit.kernels.training_recordings import BackwardReplayer, ForwardReplayer

Step = Callable[[nn.Module, torch.optim.Optimizer, int], object]


def address_of(t: torch.Tensor) -> torch.Tensor:
    """A tensor as a recording knows it: by its address, without keeping its memory."""
    whole = t.untyped_storage()
    memory = (ctypes.c_char * whole.nbytes()).from_address(whole.data_ptr())
    return torch.frombuffer(memory, dtype=t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())


class Pretended:
    """A GPU that is none. replayers: in the order in which they were made; replays: of forward and backward passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replayers: list[cuda_graphs.Replayer] = []
        self.replays = {ForwardReplayer: 0, BackwardReplayer: 0, cuda_graphs.Replayer: 0}
        self.told: list[str] = []
        self.pool = cuda_capture.Pool(None, None, None)
        self.lent: list[list[torch.Tensor]] = []  # of each recording: its gradients in the pool
        stream = types.SimpleNamespace(cuda_stream=1)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(cuda_graphs, "warm_call", lambda call, inputs, *rest: call(*inputs))
        monkeypatch.setattr(cuda_graphs, "pool_of", lambda device, stream: self.pool)
        monkeypatch.setattr(training_recordings, "side_of", lambda device, stream: None)
        monkeypatch.setattr(cuda_capture, "allocating", contextlib.nullcontext)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 1, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
        monkeypatch.setattr(cuda_graphs, "on_cpu", lambda t: False)
        monkeypatch.setattr(cuda_graphs, "GAIN", float("inf"))
        monkeypatch.setattr(cuda_graphs.Replayer, "wait", lambda replayer: None)
        monkeypatch.setattr(cuda_graphs.Replayer, "capture", lambda *given: self.capture(*given))
        monkeypatch.setattr(cuda_graphs, "exchange_fill", lambda: None)
        monkeypatch.setattr(CpuTarget, "replay", lambda target, gm, aten, call: self.replay(gm, aten, call))

    def replay(self, gm: torch.fx.GraphModule, aten: object, call: Callable) -> Callable:
        info = info_of(gm)
        written = frozenset(m.input for m in aten.mutations)
        policy = Policy("forced", 0, info.weights, written, tell=self.told.append, new_grads=info.new_grads)
        made = replayed(call, policy, info.replayer)
        self.replayers.append(made)
        return made

    def capture(self, replayer: cuda_graphs.Replayer, lane: object, state: object, given: list) -> tuple:
        outside = replayer.outside(lane, state)
        given = [address_of(t) if isinstance(t, torch.Tensor) else t for t in given]
        apart = [t.clone() if i in replayer.policy.written else t for i, t in enumerate(given)]
        recorded = outside.through(replayer.call)
        text = inner(recorded)
        if text.__defaults__ is not None:  # on a CPU the memory that is kept is of another kind
            text.__defaults__ = tuple(outside.kept if isinstance(d, defaultdict) else d for d in text.__defaults__)
        outside.kept = None
        result = outside.moved_out(recorded(*apart), apart)
        lent = [result[o].detach() for o, _ in replayer.policy.new_grads if result[o].untyped_storage()._cdata in outside.lent]
        number = len(self.lent)
        self.lent.append(lent)

        def replay() -> None:
            self.replays[type(replayer)] += 1
            for t in [t for later in self.lent[number:] for t in later]:  # what else lies there is made first
                t.fill_(float("nan"))  # gradients of earlier recordings were in use when memory was chosen
            for out, again in zip(result, replayer.call(*given), strict=True):
                if isinstance(out, torch.Tensor):
                    out.copy_(again)

        replayer.policy.say("recorded")
        return types.SimpleNamespace(replay=replay), result, outside


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    yield Pretended(monkeypatch)
    bytejit.reset()


class Net(nn.Module):
    """Statistics that the forward pass writes, much that is saved, few results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Wide(nn.Module):
    """Results as large as what is saved: they are handed out as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


place = {0: "cpu"}  # where data lie: tests/cuda runs the same steps on a GPU


def data(turn: int) -> torch.Tensor:
    return torch.randn(12, 6, generator=torch.Generator().manual_seed(turn)).to(place[0])


def plainly(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> torch.Tensor:
    optimizer.zero_grad()
    out = model(data(turn))
    out.square().mean().backward()
    optimizer.step()
    return out.detach().clone()


kept: list[torch.Tensor] = []


def results_that_are_kept(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> list[torch.Tensor]:
    optimizer.zero_grad()
    kept.append(model(data(turn)))
    kept[-1].square().mean().backward()
    optimizer.step()
    return [t.detach().clone() for t in kept]


def gradients_that_are_kept(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> list[torch.Tensor]:
    optimizer.zero_grad()
    model(data(turn)).square().mean().backward()
    kept.extend(p.grad for p in model.parameters())
    optimizer.step()
    return [t.clone() for t in kept]


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    for k in range(3):
        model(data(3 * turn + k)).square().mean().backward()
    optimizer.step()


def added_to_zeros(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    model(data(turn)).square().mean().backward()
    optimizer.step()


def two_forward_passes_first(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    one, two, three = model(data(turn)), model(data(turn + 100)), model(data(turn + 200))
    two.square().mean().backward()
    one.sin().mean().backward()
    three.cos().mean().backward()
    optimizer.step()


def backward_twice(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    out = model(data(turn))
    loss = out.square().mean()
    loss.backward(retain_graph=True)
    model(data(turn + 1)).sin().mean().backward()
    loss.backward()
    optimizer.step()


def backward_never_or_late(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    optimizer.zero_grad()
    out = model(data(turn))
    if turn % 3 == 0:
        kept.append(out)
    elif turn % 3 == 1:
        (kept.pop().square() + out).mean().backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> torch.Tensor:
    optimizer.zero_grad()
    model(data(turn)).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    return norm


def written_results(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> torch.Tensor:
    optimizer.zero_grad()
    out = model(data(turn))
    out.mul_(2).square().mean().backward()
    optimizer.step()
    return out.detach().clone()


def weights_that_are_replaced(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    plainly(model, optimizer, turn)
    if turn == 9:
        with torch.no_grad():
            for p in model.parameters():
                p.data = p.data.clone() * 0.5


def evaluated_between(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> torch.Tensor:
    plainly(model, optimizer, turn)
    with torch.no_grad():
        return model(data(turn)).clone()


STEPS = [
    plainly,
    results_that_are_kept,
    gradients_that_are_kept,
    accumulated,
    added_to_zeros,
    two_forward_passes_first,
    backward_twice,
    backward_never_or_late,
    clipped,
    written_results,
    weights_that_are_replaced,
    evaluated_between,
]


def trained(model: nn.Module, step: Step, turns: int) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    kept.clear()
    return [step(model, optimizer, turn) for turn in range(turns)]


# where results are as large as what is saved, what matters is who keeps them; a GPU runs all pairs
PAIRS = [(step, Net) for step in STEPS] + [(step, Wide) for step in (plainly, results_that_are_kept, written_results)]


@pytest.mark.parametrize(("step", "kind"), PAIRS, ids=lambda x: x.__name__)
def test_as_eager(device: Pretended, step: Step, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    eager = kind()
    mine = copy.deepcopy(eager)
    turns = 50 if step is backward_never_or_late else 20
    want = trained(eager, step, turns)
    got = trained(bytejit.compile(mine, mode="reduce-overhead"), step, turns)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(mine.state_dict()), dict(eager.state_dict()), rtol=1e-3, atol=1e-4)
    assert device.replays[ForwardReplayer] and device.replays[BackwardReplayer], device.told
    assert not bytejit.counters["fallbacks"]


def test_one_recording_of_each_pass_is_enough(device: Pretended) -> None:
    """A program that holds its last results while the next step runs."""
    torch.manual_seed(0)
    trained(bytejit.compile(Net(), mode="reduce-overhead"), lambda *given: plainly(*given), 20)
    states = [s for r in device.replayers for lane in r.lanes.values() for s in lane.sized.values()]
    assert [len(s.recordings) for s in states] == [1, 1] and device.replays[BackwardReplayer]


def test_what_is_saved_of_a_step_that_is_alive_is_not_overwritten(device: Pretended) -> None:
    torch.manual_seed(0)
    model = bytejit.compile(Net(), mode="reduce-overhead")
    batches = [data(turn) for turn in range(12)]  # no two at one address: none is read in place, so nothing is recorded again
    for x in batches:
        model(x).square().mean().backward()
    alive = [model(x) for x in batches[: HANDING + 2]]
    forward = next(r for r in device.replayers if type(r) is ForwardReplayer)
    (state,) = forward.lanes[1].sized.values()
    assert len(state.recordings) == HANDING + 1 and [r.held([]) for r in state.recordings] == [True] * HANDING + [False]
    del alive
    assert not any(r.held([]) for r in state.recordings)
