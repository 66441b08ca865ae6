"""Buffers in which a module counts: the place in a queue, a flag that is set once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import bytejit


class Queue(nn.Module):
    """Keys of earlier batches, as contrastive learning keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.register_buffer("queue", torch.zeros(4, 60))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def put(self, keys: torch.Tensor) -> None:
        at, n = int(self.place), keys.shape[0]
        self.queue[:, at : at + n] = keys.T
        self.place[0] = (at + n) % 60

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.encoder(x)
        found = keys @ self.queue.clone().detach()
        self.put(keys.detach())
        return found.sum()


class Initialised(nn.Module):
    """Takes its scale from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("done", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.done.item() == 0:
            self.scale.copy_(1 / x.std(0))
            self.done.fill_(1)
        return (x * self.scale * self.weight).sum()


class Averaged(nn.Module):
    """Layers that read a number of theirs: how many batches they have seen, a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=None))
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x) * float(self.scale)
        with torch.no_grad():
            self.scale.mul_(1.5)
        self.seen = self.seen + 1
        return y.sigmoid().pow(2).sum() / self.seen.item() + float(self.scale)


def trained(kind: Callable, compiled: bool) -> tuple:
    torch.manual_seed(0)
    net = kind()
    f = bytejit.compile(net) if compiled else net
    losses = []
    for _ in range(14):
        losses.append(f(torch.randn(5, 4)))
        losses[-1].backward()
    return losses, net.state_dict(), [p.grad for p in net.parameters()]


class Mean(nn.Module):
    """Keeps the mean of its weights, as AveragedModel does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.mean = AveragedModel(self.net)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 3 == 0:  # compiles again
            x = x.cos()
        self.mean.update_parameters(self.net)
        with torch.no_grad():
            self.net.weight.mul_(1.5)
        return (self.net(x) + self.mean(x)).sum()


@pytest.mark.parametrize("kind", [Queue, Initialised, Averaged, Mean])
def test_counted_in_a_buffer(kind: Callable) -> None:
    """As eager, without a break, and no compile for each value: a value that keeps changing is an input of the graph."""
    bytejit.reset()
    torch.testing.assert_close(trained(kind, True), trained(kind, False))
    counters = bytejit.counters
    assert not counters["fallbacks"] and counters["recompiles"].total() <= 4, counters["recompiles"]
    assert not counters["breaks"], counters["breaks"]


X = torch.arange(6.0)


def writes_between(x: torch.Tensor, n: torch.Tensor) -> tuple:
    before = n.item() + 1
    n.add_(2)
    between = float(n)
    n.mul_(3)
    return x * before + between, before, between, int(n)


def breaks_later(x: torch.Tensor, n: torch.Tensor) -> tuple:
    v = float(n)
    n.add_(2)
    y = x / v
    print(end="")
    return y + v, v, n.item()


def of_one_memory(x: torch.Tensor, n: torch.Tensor) -> tuple:
    n[0].add_(1)
    v = float(n.view(2)[0])
    n.mul_(2)
    return x * v, v, float(n[0])


def other_data(x: torch.Tensor, n: torch.Tensor) -> tuple:
    n.data = n + 4
    return x * float(n), int(n)


def as_a_size(x: torch.Tensor, n: torch.Tensor) -> tuple:
    n.add_(1)
    return x[: n.item()] * 2, x[int(n) :].sum()


@pytest.mark.parametrize(
    ("f", "first", "most"),
    [
        (writes_between, torch.tensor(1.5), 1),
        (writes_between, torch.tensor(1), 3),
        (writes_between, torch.tensor(250, dtype=torch.uint8), 3),
        (breaks_later, torch.tensor(1.5), 3),
        (of_one_memory, torch.tensor([1.0, 2.0]), 4),
        (other_data, torch.tensor(1.5), 3),
        (other_data, torch.tensor(1), 4),
        (as_a_size, torch.tensor(0), 3),
    ],
)
def test_a_number_read_from_a_tensor(f: Callable, first: torch.Tensor, most: int) -> None:
    """The value at the place where it is read, whatever is written before and after, without a compile for each value."""
    bytejit.reset()
    compiled = bytejit.compile(f, backend="eager")
    ours, theirs = first.clone(), first.clone()
    for _ in range(7):
        torch.testing.assert_close(compiled(X, ours), f(X, theirs), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert bytejit.counters.total("graphs") <= most, bytejit.counters


def test_a_place_that_several_functions_ask_for() -> None:
    """What one function has found to count is not tried value by value in another, which has another name for the module."""
    bytejit.reset()
    net = Queue()
    first = bytejit.compile(lambda net: net.queue * int(net.place))
    second = bytejit.compile(lambda module: module.queue + int(module.place))
    for n in range(12):
        net.place.fill_(n)
        (first if n < 4 else second)(net)
    assert bytejit.counters["recompiles"].total() <= 2, bytejit.counters["recompiles"]


def test_a_sample_of_what_was_kept() -> None:
    """random.sample and its like break the graph once; nothing of them is compiled."""
    bytejit.reset()

    def replay(kept: list) -> torch.Tensor:
        x = torch.stack(random.sample(kept, 3)).sum(0)
        random.shuffle(kept)
        return x * random.choice(kept) + random.choices(kept, k=2)[1]

    compiled, found = bytejit.compile(replay), []
    for f in (replay, compiled):
        random.seed(0)
        kept = [torch.full((3,), float(i)) for i in range(5)]
        found.append([f(kept) for _ in range(12)])
    torch.testing.assert_close(found[1], found[0])
    assert not [place for place in bytejit.counters["recompiles"] if "random.py" in place]
