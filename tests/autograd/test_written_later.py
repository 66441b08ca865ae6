"""Inputs of a region that are written behind it: a pass through torch minds only those that results are computed from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bytejit

pytestmark = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])


def test_a_gradient_penalty_with_batch_norms(backend: str) -> None:
    """The second call writes the averages, which no result is computed from"""
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        called = bytejit.compile(critic, backend=backend) if compiles else critic
        real, made = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)
        first, second = called(real), called(made)
        (slope,) = torch.autograd.grad(first.sum(), real, create_graph=True)
        (first.mean() - second.mean() + (slope.norm(2, 1) - 1).pow(2).mean()).backward()
        results.append(([p.grad for p in critic.parameters()], [*critic.buffers()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


class SumAndDifference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b

    @staticmethod
    def backward(ctx: object, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return g + h, g - h


def test_an_output_that_was_not_used_of_an_autograd_function(backend: str) -> None:
    """The counter that was written before and behind a number that is read is no part of it"""

    def f(x: torch.Tensor, counter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counter.add_(1)
        y, z = SumAndDifference.apply(x * 1, x)
        counter.copy_(counter * 0.9)
        return y + y.sum().item() * 0.1, z

    results = []
    for g in (f, bytejit.compile(f, backend=backend)):
        x, counter = torch.arange(4.0).requires_grad_(), torch.ones(4)
        g(x, counter)[0].sum().backward()
        results.append((x.grad, counter))
    torch.testing.assert_close(*results)


def test_what_results_are_computed_from_may_not_change(backend: str) -> None:
    """Its value is gone: an error, no wrong gradient"""

    def f(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x + b).exp()

    x, b = torch.arange(4.0).requires_grad_(), torch.ones(4)
    y = bytejit.compile(f, backend=backend)(x, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
