"""Graphs that set a tensor's `data`: teachers that follow their students, steps written by hand, memory that changes hands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bytejit

from ..autograd.beside import BACKENDS, beside

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def call(f: Callable, *args: object) -> object:
    return f(*args)


def teacher(student: nn.Module, teacher: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Moved towards its student, then asked; the loss goes backward to the student."""
    with torch.no_grad():
        for p, q in zip(student.parameters(), teacher.parameters()):
            q.data = q.data * 0.9 + p.data * 0.1
        want = teacher(x)
    return F.mse_loss(student(x), want), want


def networks() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    return a, b.requires_grad_(False), torch.randn(5, 4)


def backward(f: Callable, *args: object) -> object:
    outs = f(*args)
    outs[0].backward()
    return outs


def differentiated(f: Callable, *args: object) -> object:
    """A gradient of a gradient, which is computed from the teacher as it was in the forward pass."""
    outs = f(*args)
    (grad,) = torch.autograd.grad(outs[0], args[0].weight, create_graph=True)
    grad.square().sum().backward()
    return grad


@pytest.mark.parametrize("drive, torch_runs", [(backward, 0), (differentiated, 3)], ids=["backward", "differentiated"])
def test_a_teacher(drive: Callable, torch_runs: int, backend: str) -> None:
    beside(backend, teacher, networks, drive, steps=3, torch_runs=torch_runs)


def test_a_step_by_hand(backend: str) -> None:
    def step(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = m(x).square().mean()
        loss.backward()
        for p in m.parameters():
            p.data = p.data - 0.1 * p.grad
            p.grad = None
        return loss.detach()

    beside(backend, step, lambda: (nn.Linear(4, 3), torch.randn(5, 4)), call, steps=3)


def views_before_and_after(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    before = x[1:]
    x.data = y * 2
    before.add_(10)
    x.add_(1)
    after = x * x
    x.data = after
    x.mul_(0.5)
    return x, before, after


def of_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    x.add_(1)
    return x * y


def of_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.cat([y, x])
    x.data = z[1:5]
    z.mul_(2)
    return z


def of_one_made_inside(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x + 1
    w = z * 2
    z.data = y.clone()
    return z * w, w


def kept_apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Under no_grad, of a tensor with gradients."""
    with torch.no_grad():
        x.data = y * 3
        return x.data + x.detach()


PROGRAMS = [views_before_and_after, of_another, of_a_part, of_one_made_inside, kept_apart]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_memory(f: Callable, backend: str) -> None:
    shared = int(f is of_another)  # in the second call, where a written input has another one's memory
    beside(backend, f, lambda: (torch.randn(4), torch.randn(4)), call, steps=2, torch_runs=shared)


def test_a_leaf(backend: str) -> None:
    beside(backend, kept_apart, lambda: (torch.randn(4, requires_grad=True), torch.randn(4)), call, steps=2)


def then_read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y * 2
    return (x * y).sum()


def moved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = x.data * 0.9 + x.detach()[0]
    return (x * y).sin().sum()


def of_another_shape(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = x.data.repeat(2)
    return (x * x).sum() + y.sum()


def whole_steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x.data = x.data - 0.1 * y
        (x * y).sin().sum().backward()
    return (x * y).sum()


def read_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Left to torch: its backward pass reads what eager has saved before the assignment."""
    a = (x * x).sin()
    x.data = x.data + y
    return (a + x * y).sum()


def written_behind(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Left to torch behind the assignment: the tensor has the memory of another."""
    x.data = y
    x.data.add_(1)
    return (x * y).sum()


FOLLOWED = {then_read: 0, moved: 0, of_another_shape: 0, whole_steps: 0, read_before: 1, written_behind: 1}


@pytest.mark.parametrize("f", FOLLOWED, ids=lambda f: f.__name__)
def test_gradients_of_what_was_set(f: Callable, backend: str) -> None:
    """A leaf that is set, and computed from afterwards."""

    def drive(f: Callable, *args: torch.Tensor) -> torch.Tensor:
        out = f(*args)
        out.backward()
        return out

    inputs = lambda: (torch.randn(4, requires_grad=True), torch.randn(4))  # noqa: E731
    beside(backend, f, inputs, drive, steps=1 if f is of_another_shape else 2, torch_runs=None if FOLLOWED[f] else 0)
    assert bool(bytejit.counters["fallbacks"]) == bool(FOLLOWED[f])
