"""Leaves that a graph makes and returns: what is computed from them goes back to them, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .beside import BACKENDS, beside


def zeros(x: torch.Tensor) -> tuple:
    z = torch.zeros(4).requires_grad_()
    return (x + z).exp().sum(), z


def argument(x: torch.Tensor) -> tuple:
    z = torch.zeros_like(x, requires_grad=True)
    return z, ((x - z) ** 2).mean()


def cut_off(x: torch.Tensor) -> tuple:
    """Of a computed value, beside its own history."""
    h = x.tanh()
    z = h.clone().detach().requires_grad_()
    return h.sum() + (z * x).sum(), z


def alone(x: torch.Tensor) -> tuple:
    return x.exp().sum(), torch.ones(2, 4)[:, ::2].clone().requires_grad_()


def several(x: torch.Tensor) -> tuple:
    a = x.detach().exp().requires_grad_()
    b = (a * 2).detach().requires_grad_()
    return (a * b * x).sum(), a, b


def only(x: torch.Tensor) -> tuple:
    return (x.detach() * 2).requires_grad_(), x * 2


def drive(f: Callable, x: torch.Tensor) -> list:
    outs = f(x)
    sum(t.sum() * 1.0 for t in outs).backward()
    return [[t.detach() for t in outs], [(t.is_leaf, t.requires_grad, t.grad if t.is_leaf else None) for t in outs]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("f", [zeros, argument, cut_off, alone, several, only])
def test_made_leaves(f: Callable, backend: str) -> None:
    def inputs() -> tuple:
        return (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(),)

    beside(backend, f, inputs, drive)
