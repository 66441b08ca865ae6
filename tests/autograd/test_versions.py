"""Between the two passes the program writes what eager saved, or it goes backward twice: errors and gradients of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit


class Queue(nn.Module):
    """Reads a buffer after it has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("kept", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(x)
        return (self.weight * self.kept).sum()


class Scaled(Queue):
    """Reads a buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * self.kept * x).sum()


def written_result(op: Callable, write: Callable) -> Callable:
    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        y = compiled(op)(w)
        write(y)
        y.sum().backward()
        return w.grad

    return program


def forward_twice(compiled: Callable) -> object:
    net = compiled(Queue())
    first, second = net(torch.ones(3)), net(torch.ones(3))
    (first + second).backward()
    return net.weight.grad


def forward_once(compiled: Callable) -> object:
    net = compiled(Queue())
    for _ in range(2):
        net(torch.ones(3)).backward()
    return net.weight.grad


def buffer_between(compiled: Callable) -> object:
    net = compiled(Scaled())
    loss = net(torch.ones(3))
    net.kept.mul_(2)
    loss.backward()
    return net.weight.grad


def statistics_between(compiled: Callable) -> object:
    """Batch norm changes its statistics behind autograd's back."""
    net = compiled(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    x = torch.linspace(-1, 1, 12).view(4, 3)
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(3))
        net[0].bias.zero_()
    first, second = net(x).pow(2).mean(), net(x * x).pow(3).mean()
    (first + second).backward()
    return net[0].weight.grad, net[1].running_mean


def other_output(compiled: Callable) -> object:
    """The output that is written has no part in what is differentiated."""
    w = torch.linspace(0.5, 1.5, 4).requires_grad_()
    a, b = compiled(lambda w: (w.relu(), w * 3))(w)
    a.detach().zero_()
    b.sum().backward()
    return w.grad


def twice(op: Callable, retain: bool = False) -> Callable:
    def program(compiled: Callable) -> object:
        w = torch.linspace(0.5, 1.5, 4).requires_grad_()
        loss = compiled(op)(w).sum()
        loss.backward(retain_graph=retain)
        loss.backward()
        return w.grad

    return program


PROGRAMS: dict[str, Callable] = {
    "exp written": written_result(lambda w: w.exp(), lambda y: y.add_(1)),
    "relu written": written_result(lambda w: (w * 2).relu(), lambda y: y.mul_(3)),
    "relu written through its detached twin": written_result(lambda w: w.relu(), lambda y: y.detach().zero_()),
    "softmax written in part": written_result(lambda w: w.softmax(0), lambda y: y[:1].zero_()),
    "product written": written_result(lambda w: w * 2 + 1, lambda y: y.add_(1)),
    "leaky relu written": written_result(lambda w: F.leaky_relu(w * 2), lambda y: y.mul_(3)),
    "forward twice": forward_twice,
    "forward once a step": forward_once,
    "buffer between": buffer_between,
    "statistics between": statistics_between,
    "another output": other_output,
    "backward twice": twice(lambda w: w.sin() * w),
    "backward twice of a multiple": twice(lambda w: w * 2),
    "backward twice of a sum": twice(lambda w: w + 1),
    "backward twice with the graph kept": twice(lambda w: w * 2, True),
}


def outcome(program: Callable, compiled: Callable) -> object:
    """What it returns; or the kind of its error, with the words up to what only eager's own nodes are called."""
    try:
        return program(compiled)
    except RuntimeError as e:
        return str(e).partition(": [")[0][:200]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    want = outcome(PROGRAMS[name], lambda f: f)
    got = outcome(PROGRAMS[name], lambda f: bytejit.compile(f, backend=backend))
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want)
