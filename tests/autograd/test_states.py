"""A loop that returns its states beside what it writes at each step: the graph is cut where a state is an output, and what only
its parts see is no output"""

from __future__ import annotations

import pytest
import torch

import bytejit

from .beside import BACKENDS

STEPS = 4


def scanned(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = torch.zeros_like(key)
    total, most = torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0]) - 9
    for i in range(key.shape[1]):
        now = torch.maximum(most, key[:, i])
        total = torch.exp(most - now) * total + torch.exp(key[:, i] - now) * value[:, i]
        out[:, i] = total.sin()
        most = now
    return out, total, most


def grads(f, of: tuple[int, ...], kept: bool = False) -> list[torch.Tensor]:
    """Gradients of sums of some outputs; of what one output is computed from another of too."""
    make = torch.Generator().manual_seed(0)
    leaves = [torch.randn(2, STEPS, 3, generator=make).requires_grad_() for _ in range(2)]
    outputs = f(*leaves)
    loss = sum((outputs[i] * (i + 1.5)).square().sum() for i in of)
    wrt = [*leaves, outputs[2]] if kept else leaves
    return [*outputs, *torch.autograd.grad(loss, wrt, allow_unused=True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("kept", [False, True])
def test_states_of_a_loop_that_writes(backend: str, of: tuple[int, ...], kept: bool) -> None:
    compiled = bytejit.compile(scanned, backend=backend, fullgraph=True)
    for got, want in zip(grads(compiled, of, kept), grads(scanned, of, kept), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)
    assert not bytejit.counters["fallbacks"], bytejit.counters
