"""Strides of batch norm's result: channels innermost where the operand has them so, else row-major, as in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit

MEAN, VAR = torch.zeros(5), torch.ones(5)
LAID = {
    "turned": lambda: torch.randn(4, 8, 5).transpose(1, 2),
    "turned, of two dims": lambda: torch.randn(5, 4).t(),
    "images turned": lambda: torch.randn(8, 5, 3, 4).transpose(2, 3),
    "the batch last": lambda: torch.randn(4, 5, 1, 8).transpose(0, -1),
    "channels innermost": lambda: torch.randn(4, 5, 3, 8).to(memory_format=torch.channels_last),
    "volumes": lambda: torch.randn(4, 5, 2, 3, 3).to(memory_format=torch.channels_last_3d),
    "every second": lambda: torch.randn(4, 5, 3, 8)[..., ::2],
    "expanded": lambda: torch.randn(4, 5, 1, 1).expand(4, 5, 3, 3),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", LAID)
@pytest.mark.parametrize("training", [True, False])
def test_strides_as_in_eager(name: str, training: bool) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None if training else MEAN, None if training else VAR, VAR * 2, MEAN + 1, training)

    x = LAID[name]()
    got, want = bytejit.compile(norm)(x), norm(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert [s for n, s in zip(got.shape, got.stride()) if n > 1] == [s for n, s in zip(want.shape, want.stride()) if n > 1]


GROUPED = {
    "channels innermost": lambda: torch.randn(2, 24, 7, 9).to(memory_format=torch.channels_last),
    "bfloat16": lambda: torch.randn(2, 24, 7, 9).bfloat16().to(memory_format=torch.channels_last),
    "far from zero": lambda: (torch.randn(2, 24, 7, 9) + 100).to(memory_format=torch.channels_last),
    "infinite": lambda: torch.randn(2, 24, 40, 9).index_fill(2, torch.tensor(3), torch.inf).to(memory_format=torch.channels_last),
    "turned": lambda: torch.randn(2, 30, 24).transpose(1, 2),
    "volumes": lambda: torch.randn(2, 24, 2, 3, 3).to(memory_format=torch.channels_last_3d),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", GROUPED)
def test_group_norms_with_channels_innermost(name: str) -> None:
    """In groups of few channels, and resized behind them, into a contiguous result."""

    def norms(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.group_norm(x, 6, w, w + 1)
        return y, F.silu(F.group_norm(x, 3)).contiguous(), F.interpolate(y, scale_factor=2).contiguous()

    x = GROUPED[name]()
    w = torch.linspace(0, 1, 24, dtype=x.dtype)
    close = dict(rtol=2e-2, atol=2e-2) if x.dtype is torch.bfloat16 else dict(rtol=1e-4, atol=1e-4)
    for got, eager, want in zip(bytejit.compile(norms)(x, w), norms(x, w), norms(x.double(), w.double())):
        torch.testing.assert_close(got.double(), want, equal_nan=True, **close)  # eager's is 0.006 off where x is far from zero
        assert got.stride() == eager.stride()
