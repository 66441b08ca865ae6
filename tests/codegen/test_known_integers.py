"""Floats that a C++ compiler knows, as integers: nan and what is too large become what the CPU's instruction makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def quotients(x: torch.Tensor) -> list[torch.Tensor]:
    """nan where x is False: of a bool there are two values, and what follows is known of each."""
    y = x / x
    return [y.to(t) for t in TYPES]


def infinities(x: torch.Tensor) -> list[torch.Tensor]:
    y = x / torch.zeros_like(x)
    return [(-y).to(t) for t in TYPES] + [y.to(t) for t in TYPES]


def in_float64(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.double() / x.double()
    return [y.to(t) for t in TYPES]


@pytest.mark.parametrize("f", [quotients, infinities, in_float64])
@pytest.mark.parametrize("n", [3, 64, 1000])
def test_as_eager(f: Callable, n: int) -> None:
    x = torch.arange(n) % 3 == 0
    for got, want in zip(bytejit.compile(f)(x), f(x), strict=True):
        assert torch.equal(got, want), got.dtype
