"""Graphs that raise behind a write with gradients: what runs in their place has eager's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def behind_a_break(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The region that raises writes a tensor that a region before it has made."""
    c = x * 1
    c[~m] = 0
    c[m] += c.sum()
    q = x.clone()
    try:
        q[m] = torch.ones(int(m.sum()) + 1)
    except (RuntimeError, IndexError):
        q = q * 2
    return c, q


def given(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Also a tensor that gets its history by the write."""
    y, z = x * 2, torch.zeros(x.shape[1])
    bytejit.disable(lambda: None)()
    try:
        y.mul_(y.sum())
        z.add_(y[0])
        y.index_select(0, m.sum() + 100)
    except (RuntimeError, IndexError):
        pass
    return y, z + x[0]


def views(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The region that raises writes views of what was made before."""
    y = x.sin()
    row, rest = y[0], y[1:]
    bytejit.disable(lambda: None)()
    try:
        row.mul_(row.sum().detach())
        rest.add_(row.clone())
        rest.index_select(0, m.sum() + 100)
    except (RuntimeError, IndexError):
        pass
    return y * 1, rest.exp()


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [behind_a_break, given, views])
def test_gradients_are_those_of_one_run(program: Callable, backend: str) -> None:
    compiled = bytejit.compile(program, backend=backend)
    for n, rows in enumerate((6, 6, 9, 6)):
        found = []
        for f in (program, compiled):
            g = torch.Generator().manual_seed(n)
            x = torch.randn(rows, 5, generator=g).requires_grad_()
            outs = f(x, torch.randn(rows, 5, generator=g) > 0)
            found.append((*outs, *(torch.autograd.grad(t.square().sum(), x, retain_graph=True)[0] for t in outs)))
        for expected, got in zip(*found):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
