"""Sums at places that are the same for all points, of values that are: each point is added, on a GPU too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from marks import interpreted

import bytejit


def scattered(x: torch.Tensor) -> torch.Tensor:
    e = x[:1].expand(3)
    return e.scatter_add(-1, torch.zeros_like(e, dtype=torch.long), e)


def added(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5).index_add(0, torch.zeros(3, dtype=torch.long), x[:1].expand(3))


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(6, 7).index_add(1, torch.full((3,), 2), x.sum() * torch.ones(6, 3))


def a_number(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3).index_put((torch.zeros(300, dtype=torch.long),), x.sum(), accumulate=True)


def columns(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3, 50).index_put((torch.zeros(40, dtype=torch.long),), x[0] * 2, accumulate=True)


@interpreted
@pytest.mark.parametrize("f", [scattered, added, rows, a_number, columns])
def test_each_point_counts(f: Callable) -> None:
    torch.manual_seed(0)
    x = torch.randn(17)
    torch.testing.assert_close(bytejit.compile(f, options={"interpret": True})(x), f(x))
