"""Graphs that set the seed of random numbers: torch sets it, what is before and behind it is compiled, and a seed that changes
is a symbol."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import bytejit

BACKENDS = [pytest.param("aot_eager"), pytest.param("inductor", marks=pytest.mark.cxx)]
WEIGHT = torch.ones(4, requires_grad=True)
Made = tuple[torch.Tensor, ...]


def at_the_start(x: torch.Tensor, seed: int) -> Made:
    torch.manual_seed(seed)
    return (x + torch.rand(4),)


def several(x: torch.Tensor, seed: int) -> Made:
    before = torch.rand(4) * x
    torch.manual_seed(seed + 7)
    between = F.dropout(x * before, 0.5)
    torch.manual_seed(0)
    return before, between, torch.randn(3)


def below_zero(x: torch.Tensor, seed: int) -> Made:
    torch.manual_seed(-seed)
    return (torch.randn(4) * x,)


def gradients(x: torch.Tensor, seed: int) -> Made:
    torch.manual_seed(seed)
    (grad,) = torch.autograd.grad(F.dropout(x * WEIGHT, 0.5).sum(), WEIGHT)
    return (grad,)


def followed(x: torch.Tensor, seed: int) -> Made:
    torch.manual_seed(seed)
    return (F.dropout(x * WEIGHT, 0.5),)


def followed_over_it(x: torch.Tensor, seed: int) -> Made:
    y = x * WEIGHT
    torch.manual_seed(seed)
    return (F.dropout(y, 0.5),)


def passes_over_it(x: torch.Tensor, seed: int) -> Made:
    """Left to torch"""
    y = x * WEIGHT
    torch.manual_seed(seed)
    z = F.dropout(y, 0.5)
    return (*torch.autograd.grad(z.sum(), WEIGHT), z.detach())


def written_over_it(x: torch.Tensor, seed: int) -> Made:
    """Left to torch"""
    y = x * WEIGHT
    torch.manual_seed(seed)
    return (F.dropout(y.mul_(2), 0.5),)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "f", [at_the_start, several, below_zero, gradients, followed, followed_over_it, passes_over_it, written_over_it]
)
def test_seeds_are_eagers(f: Callable, backend: str) -> None:
    bytejit.reset()
    bytejit.counters.clear()
    compiled, made = bytejit.compile(f, backend=backend), []
    for seed in range(2, 7):
        found = []
        for g in (f, compiled):
            torch.manual_seed(99)
            outs = g(torch.arange(1.0, 5), seed)
            grads = [torch.autograd.grad(t.sum(), WEIGHT)[0] for t in outs if t.requires_grad]
            found.append([*outs, *grads, torch.get_rng_state()])
        torch.testing.assert_close(found[1], found[0])
        made.append(sum(bytejit.counters["recompiles"].values()))
    assert made == [0, 1, 1, 1, 1]
    assert bool(bytejit.counters["fallbacks"]) == (f in (passes_over_it, written_over_it))
    assert not bytejit.counters["breaks"]
