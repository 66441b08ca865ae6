"""Graphs that write into inputs which need gradients, or do so afterwards: torch makes the writes, the rest is compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bytejit

from .beside import BACKENDS, beside

pytestmark = [pytest.mark.pairs, pytest.mark.parametrize("backend", BACKENDS)]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


# of (h, w): h is what an operation made of a leaf
def only_the_write(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return h.div_(10)


def activation(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As an activation in place that begins a graph after a break"""
    return (F.relu_(h) @ w).tanh()


def between(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = h * 3 + w.sin()
    h.addcmul_(w, w)
    return a, h, h.exp() * a.detach()


def through_a_view(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row, a = h[0], h * 2
    row.copy_(w[0] * 3)
    return row, a, h.square().sum(0)


def an_item(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h[1:, 0] = w.sum(1)[1:]
    return h.sigmoid()


def several(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        h[i] += w[i].exp()
        h.add_(h.mean(1, keepdim=True))
    return h.cos() @ w


def partly_without(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = w.sin()
    with torch.no_grad():
        h.mul_(2)
    h.add_(a)
    with torch.no_grad():
        h.clamp_(max=2)
        b = a + 1
    return h * b


def pieces(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = (h * w).chunk(2, 1)
    h.addcmul_(w, w)
    return a.sum(), b + h[:, :2]


def wrongly(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What the backward pass reads is written"""
    a = h.exp() * h
    h.add_(1)
    return a.sum() + h.sum()


FUNCTIONS = [only_the_write, activation, between, through_a_view, an_item, several, partly_without, pieces, wrongly]


def made(t: torch.Tensor) -> torch.Tensor:
    return t * 1.5


def part_of_another(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t * 2, t, t])[2:5]


def drive(f: Callable, x: torch.Tensor, w: torch.Tensor, history: Callable) -> object:
    h = history(x)
    outs = f(h, w)
    flat = (*outs, h) if isinstance(outs, tuple) else (outs, h)
    names = [type(t.grad_fn).__name__ for t in (h, h._base) if t is not None]
    sum(t.square().sum() for t in flat).backward()
    return flat, names, h._version, h._is_view()


@pytest.mark.parametrize("history", [made, part_of_another], ids=lambda f: f.__name__)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_of_a_result(f: Callable, history: Callable, backend: str) -> None:
    beside(
        backend, f, lambda: (leaf(3, 4), leaf(*(4, 4) if f in (activation, several) else (3, 4))), lambda *a: drive(*a, history)
    )


def test_a_buffer_that_gets_a_history(backend: str) -> None:
    """Rows of results in memory that the program made"""

    def f(out: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = h.tanh()
        before = out + 1
        out[1] = a[0]
        return a, before, out * 2

    def drive(f: Callable, h: torch.Tensor) -> object:
        out = torch.zeros(3, 4)
        found = f(out, h)
        asked = [t.requires_grad for t in (*found, out)]
        (out.sum() + found[2].sum()).backward()
        return found, asked, out

    beside(backend, f, lambda: (leaf(3, 4),), drive)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_parameter_without_gradients(create_graph: bool, backend: str) -> None:
    """A weight is normalised before it is used, as some models do in training"""

    def f(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            m.weight.div_(m.weight.norm(dim=1, keepdim=True))
            m.bias.detach().clamp_(-0.1, 0.1)
        return m(x).tanh()

    def drive(f: Callable, m: nn.Module, x: torch.Tensor) -> object:
        before = m.weight._version, m.bias._version
        out = f(m, x)
        (grad,) = torch.autograd.grad(out.square().sum(), m.weight, create_graph=create_graph)
        if create_graph:
            grad.square().sum().backward()
        return out, grad, m.weight._version - before[0], m.bias._version - before[1]

    beside(backend, f, lambda: (nn.Linear(4, 3), torch.randn(5, 4)), drive, torch_runs=2 * create_graph)


def test_an_activation_in_place_after_a_break(backend: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(4, 8), nn.Linear(8, 3), nn.LeakyReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            bytejit.graph_break()
            return self.b(self.act(h)).log_softmax(-1)

    def drive(f: Callable, m: nn.Module, x: torch.Tensor) -> object:
        out = f(m, x)
        out.square().sum().backward()
        return out

    beside(backend, lambda m, x: m(x), lambda: (Block(), torch.randn(5, 4)), drive)
