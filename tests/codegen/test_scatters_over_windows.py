"""Writes over a part of windows, which share memory: eager copies them as they lie, so that a write shows in several."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def diagonal(x: torch.Tensor) -> torch.Tensor:
    w = x.cummax(0)[0].unfold(-2, 2, 1)
    return w.diagonal_scatter(torch.ones_like(w.diagonal()))


def selected(x: torch.Tensor) -> torch.Tensor:
    w = x.unfold(0, 3, 1)
    return w.select_scatter(torch.full_like(w[1], 7), 0, 1)


def sliced(x: torch.Tensor) -> torch.Tensor:
    w = (x * 2).unfold(0, 3, 2)
    return w.slice_scatter(torch.zeros_like(w[:2]), 0, 0, 2) + 1


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(5, 4).select_scatter(torch.full((4,), 3, dtype=x.dtype), 0, 1)


@pytest.mark.parametrize("f", [diagonal, selected, sliced, expanded])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_as_eager(f: Callable, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(-9, 10, (33, 4)).to(dtype)
    got, want = bytejit.compile(f)(x), f(x)
    assert torch.equal(got, want) and got.stride() == want.stride()
