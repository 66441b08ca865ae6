"""Parameters and gradients that are parts of one buffer: a model that is trained as one flat tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit


def flat(net: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Lets the parameters and their gradients of a module be parts of two buffers."""
    total = sum(p.numel() for p in net.parameters())
    values, grads, at = torch.empty(total), torch.zeros(total), 0
    for p in net.parameters():
        place = slice(at, at + p.numel())
        values[place] = p.data.reshape(-1)
        p.data, p.grad = values[place].view_as(p), grads[place].view_as(p)
        at += p.numel()
    return values, grads


def trained(what: str) -> tuple:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    values, grads = flat(net)
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    compiled = bytejit.compile(opt.step) if what == "optimizer" else opt.step

    def step(x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad(set_to_none=False)
        loss = net(x).square().mean()
        loss.backward()
        compiled()
        return loss.detach()

    step = bytejit.compile(step) if what == "step" else step
    losses = [step(torch.randn(3, 4)) for _ in range(3)]
    return losses, values, grads, [p._version for p in net.parameters()], [p.grad._version for p in net.parameters()]


@pytest.mark.parametrize("what", ["step", "optimizer"])
def test_trained_in_parts_of_a_buffer(what: str) -> None:
    """All is compiled: parts that lie beside each other are inputs of their own."""
    want = trained("")
    before = bytejit.counters["fallbacks"].total()
    torch.testing.assert_close(trained(what), want)
    assert bytejit.counters["fallbacks"].total() == before, bytejit.counters["fallbacks"]


def moved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(b.sum())
    b.mul_(a.mean())
    return a - b.sum()


def places(f: Callable, first: tuple, *others: tuple) -> list:
    """What is in the memory after calls with two parts of one buffer each: (begin, end) of one, of the other."""
    found = []
    for a, b in (first, *others):
        memory = torch.arange(12.0)
        result = f(memory[slice(*a)], memory[slice(*b)])
        found.append((result, memory))
    return found


APART, BESIDE, MET, SAME, GAPS = ((0, 4), (6, 10)), ((0, 4), (4, 8)), ((0, 4), (2, 6)), ((1, 5), (1, 5)), ((0, 8, 2), (1, 9, 2))


@pytest.mark.parametrize("calls", [(APART, BESIDE, MET, SAME, GAPS, APART), (MET, APART), (SAME, BESIDE), (GAPS, APART)])
def test_parts_that_meet(calls: tuple) -> None:
    """Parts that meet, in the first call or in a later one, are written as eager writes them."""
    torch.testing.assert_close(places(bytejit.compile(moved), *calls), places(moved, *calls))
