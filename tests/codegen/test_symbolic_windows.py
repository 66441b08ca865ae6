"""Windows of symbolic size and place on temps of fixed size, which lie in the arena: library calls read them as tensors."""

from __future__ import annotations

import pytest
import torch
from marks import interpreted

import bytejit

WEIGHT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
BOTH = [
    pytest.param({}, id="cpp", marks=pytest.mark.cxx),
    pytest.param({"interpret": True}, id="triton", marks=[pytest.mark.triton, interpreted]),
]


def experts(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A mixture of experts, each of which takes as many rows as were sent to it."""
    parts = (x * 2).split(sizes)
    return torch.cat([part @ weight.t() for part, weight in zip(parts, WEIGHT)])


def halves(x: torch.Tensor, sizes: list[int]) -> tuple:
    """Windows at symbolic places, of symbolic and of fixed sizes, of one temp and of a product's result."""
    y, n = x.sin(), sizes[0] + 2
    z = y @ WEIGHT[0].t()
    return y[:n].t() @ y[:n], y[n : n + 2] @ y[n : n + 2].t(), y[n:].t() @ z[n:].cos()


@pytest.mark.parametrize("options", BOTH)
@pytest.mark.parametrize("f", [experts, halves])
def test_windows_of_symbolic_size(f, options) -> None:
    compiled = bytejit.compile(f, options=options)
    with torch.no_grad():
        for seed, sizes in enumerate(([3, 4, 5, 2], [2, 5, 4, 3], [3, 3, 6, 2], [2, 5, 4, 3], [5, 4, 3, 2])):
            x = torch.randn(14, 6, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x, sizes), f(x, sizes), rtol=1e-4, atol=1e-5)
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]
    assert sum(bytejit.counters["graphs"].values()) == 2
