"""Buffers in which a module counts: the place in a queue, a flag that is set once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

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


def trained(kind: Callable, compiled: bool) -> tuple:
    torch.manual_seed(0)
    net = kind()
    f = bytejit.compile(net) if compiled else net
    losses = []
    for _ in range(14):
        losses.append(f(torch.randn(5, 4)))
        losses[-1].backward()
    return losses, net.state_dict(), [p.grad for p in net.parameters()]


@pytest.mark.parametrize("kind", [Queue, Initialised])
def test_counted_in_a_buffer(kind: Callable) -> None:
    """As eager, and no compile for each value: a value that keeps changing is read where the program reads it."""
    bytejit.reset()
    torch.testing.assert_close(trained(kind, True), trained(kind, False))
    counters = bytejit.counters
    assert not counters["fallbacks"] and counters["recompiles"].total() <= 4, counters["recompiles"]
    assert bool(counters["breaks"]) == (kind is Queue), counters["breaks"]
