"""Outputs computed from one another, with sizes that change; results whose elements share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def model(x: torch.Tensor, y: torch.Tensor) -> tuple:
    """As models with a head return them."""
    logits = NET(x)
    return F.cross_entropy(logits, y), logits


def numbers(x: torch.Tensor, y: torch.Tensor) -> tuple:
    """A number computed before the cut is used behind it, and returned."""
    n = x.shape[0] * 2
    h = NET[0](x)
    logits = NET[2](torch.cat([h, h]).view(n, 6))
    return F.cross_entropy(logits, y.repeat(2)) / n, logits, h, n


def expanded(x: torch.Tensor, y: torch.Tensor) -> tuple:
    h = NET[0](x)
    m = h.sum(1).view(-1, 1).expand(x.size(0), x.size(0))
    return h, m.sum() / x.shape[0] ** 0.5, m[: x.size(0) - 1]


def written(x: torch.Tensor, y: torch.Tensor) -> tuple:
    h = NET[:2](x)
    o = h.new_zeros(x.size(0) + 1, 6)
    o[1:] = h
    w = o.cumsum(0)
    return h, w, w.mean()


def trained(f: Callable, g: Callable) -> list:
    torch.manual_seed(0)
    found = []
    for n in (4, 5, 7, 2, 1):
        NET.zero_grad()
        x = torch.randn(n, 4, requires_grad=True)
        outs = g(x, torch.randint(0, 3, (n,)))
        sum((t * torch.randn_like(t)).sum() for t in outs if isinstance(t, torch.Tensor)).backward()
        found.append((outs, x.grad, [p.grad for p in NET.parameters()]))
    return found


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("f", [model, numbers, expanded, written])
def test_changing_batches(f: Callable, backend: str) -> None:
    """All is compiled: each part takes the numbers that its sizes are made of."""
    bytejit.reset()
    torch.testing.assert_close(trained(f, bytejit.compile(f, backend=backend)), trained(f, f), rtol=1e-4, atol=1e-5)
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]


SHARED = {
    "expanded": lambda x: (x * 2).view(-1, 1).expand(4, 4),
    "all of one": lambda x: x.sum().expand(3),
    "windows": lambda x: (x * 2).as_strided((3, 2), (1, 1)),
    "unfolded": lambda x: x.exp().unfold(0, 3, 1),
    "with others": lambda x: torch.broadcast_tensors(x.sin(), torch.ones(3, 4))[0],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", SHARED.values(), ids=SHARED)
def test_results_whose_elements_share_memory(f: Callable, dynamic: bool | None) -> None:
    """Each element has a gradient of its own."""
    found = []
    for g in (f, bytejit.compile(f, dynamic=dynamic)):
        x = torch.arange(4.0).requires_grad_()
        y = g(x)
        (y * torch.arange(1.0 + y.numel())[1:].view_as(y)).sum().backward()
        found.append((y, y.stride(), x.grad))
    torch.testing.assert_close(found[1], found[0])
