"""A loop that returns its states beside what it writes at each step: the graph is cut where a state is an output, and what only
its parts see is no output"""

from __future__ import annotations

import pytest
import torch

import bytejit

from .beside import BACKENDS

STEPS = 10  # more writes than are cut out of a graph


def scanned(key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = torch.zeros_like(key)
    total, many, most = torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0]) - 9
    decay = -torch.exp(decay)
    for i in range(key.shape[1]):
        now = torch.maximum(most, key[:, i] + 1)
        old, new = torch.exp(most - now), torch.exp(key[:, i] + 1 - now)
        out[:, i] = (old * total + new * value[:, i]) / (old * many + new)
        now = torch.maximum(most + decay, key[:, i])
        old, new = torch.exp(most + decay - now), torch.exp(key[:, i] - now)
        total, many, most = old * total + new * value[:, i], old * many + new, now
    return out, total, most, many


def grads(f, of: tuple[int, ...], kept: bool = False) -> list[torch.Tensor]:
    """Gradients of sums of some outputs; of what one output is computed from another of too."""
    make = torch.Generator().manual_seed(0)
    leaves = [torch.randn(2, STEPS, 3, generator=make).requires_grad_() for _ in range(2)]
    leaves.append(torch.randn(3, generator=make).requires_grad_())
    outputs = f(*leaves)
    loss = sum((outputs[i] * (i + 1.5)).square().sum() for i in of)
    wrt = [*leaves, outputs[2]] if kept else leaves
    return [*outputs, *torch.autograd.grad(loss, wrt, allow_unused=True)]


@pytest.mark.pairs
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of", [(2,), (0, 1, 2, 3)])
@pytest.mark.parametrize("kept", [False, True])
def test_states_of_a_loop_that_writes(backend: str, of: tuple[int, ...], kept: bool) -> None:
    compiled = bytejit.compile(scanned, backend=backend, fullgraph=True)
    for got, want in zip(grads(compiled, of, kept), grads(scanned, of, kept), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)
    assert not bytejit.counters["fallbacks"], bytejit.counters
