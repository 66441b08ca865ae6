"""Layers of torch whose C++ takes plain sizes only, or another library where sizes are plain: batches that change."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit


@pytest.mark.parametrize(
    ("kind", "bidirectional", "train", "backend"),
    [  # all pairs of two values
        (nn.LSTM, False, True, "inductor"),
        (nn.LSTM, False, False, "eager"),
        (nn.LSTM, True, True, "eager"),
        (nn.LSTM, True, False, "inductor"),
        (nn.GRU, False, True, "eager"),
        (nn.GRU, False, False, "inductor"),
        (nn.RNN, True, True, "inductor"),
        (nn.RNN, True, False, "eager"),
    ],
)
def test_recurrent_layers_under_autocast(kind: type, bidirectional: bool, train: bool, backend: str) -> None:
    """oneDNN's LSTM is cast as a whole, and takes plain sizes only. Where it has none for the CPU, both raise"""
    layer = kind(8, 16, bidirectional=bidirectional, batch_first=True)
    compiled = bytejit.compile(layer, backend=backend)
    if kind is nn.LSTM and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        for f in (layer, compiled):
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
                with pytest.raises(RuntimeError, match="could not create a primitive"):
                    f(torch.ones(2, 6, 8))
        return
    for batch in (2, 3, 5):
        results = []
        for f in (layer, compiled):
            x = torch.linspace(-1, 1, batch * 48).view(batch, 6, 8).requires_grad_(train)
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
                y, state = f(x)
            results.append([y, *(state if isinstance(state, tuple) else (state,))])
            if train:
                results[-1] += torch.autograd.grad(y.float().square().sum(), (x, *layer.parameters()))
        for got, want in zip(results[1], results[0], strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2 * want.abs().max().item())


@pytest.mark.parametrize(
    ("spatial", "align", "cast"),
    [((5, 7), False, True), ((5, 7), True, False), ((3, 4, 5), False, False), ((3, 4, 5), True, True)],
)
def test_grids_of_matrices(spatial: tuple[int, ...], align: bool, cast: bool) -> None:
    n = len(spatial)

    def grid(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, list(x.shape), align_corners=align)

    compiled = bytejit.compile(grid, fullgraph=True)
    for batch in (2, 3, 5):
        theta = torch.randn(batch, n, n + 1, requires_grad=True)
        x, results = torch.empty(batch, 3, *spatial), []
        for f in (grid, compiled):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                y = f(theta, x)
            results.append((y, *torch.autograd.grad((y.float() * torch.arange(y.numel()).view_as(y)).sum(), theta)))
        assert results[1][0].dtype == results[0][0].dtype
        torch.testing.assert_close(results[1], results[0], rtol=2e-2 if cast else 1e-5, atol=1e-2 if cast else 1e-3)
        with torch.no_grad():
            assert compiled(theta, x).dtype == grid(theta, x).dtype
    assert not bytejit.counters["fallbacks"] and bytejit.counters.total("recompiles") <= 3


def test_pseudo_inverses_under_autocast() -> None:
    """torch has one op of the whole, within which autocast casts the products"""

    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.pinv(x * 2) + 1

    compiled = bytejit.compile(inverse)
    for n in (4, 5, 6):
        x = torch.randn(n, n - 1)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(x), inverse(x))
        torch.testing.assert_close(compiled(x), inverse(x))
