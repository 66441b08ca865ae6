"""Gradients of resizing against eager's, and as near to float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bytejit

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "bilinear": ((2, 3, 7, 5), {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear aligned": ((2, 3, 7, 5), {"size": (13, 17), "mode": "bilinear", "align_corners": True}),
    "bilinear smaller": ((1, 2, 16, 15), {"size": (5, 4), "mode": "bilinear"}),
    "bilinear to one": ((1, 2, 4, 3), {"size": (1, 9), "mode": "bilinear", "align_corners": True}),
    "bilinear of one": ((1, 2, 1, 3), {"size": (4, 3), "mode": "bilinear"}),
    "bilinear odd scale": ((1, 2, 9, 11), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": False}),
    "linear": ((2, 3, 8), {"scale_factor": 3, "mode": "linear"}),
    "trilinear": ((1, 2, 4, 3, 5), {"scale_factor": 2, "mode": "trilinear"}),
    "bicubic": ((2, 2, 6, 7), {"scale_factor": 2, "mode": "bicubic"}),
    "bicubic aligned": ((1, 2, 6, 7), {"size": (9, 4), "mode": "bicubic", "align_corners": True}),
    "nearest": ((2, 3, 5, 4), {"scale_factor": 2, "mode": "nearest"}),
    "nearest odd": ((2, 3, 5, 4), {"size": (13, 3), "mode": "nearest"}),
    "nearest 1": ((2, 3, 5), {"size": 8, "mode": "nearest"}),
    "nearest exact": ((2, 3, 5, 4), {"size": (12, 6), "mode": "nearest-exact"}),
    "nearest 3": ((1, 2, 3, 4, 2), {"scale_factor": 2, "mode": "nearest"}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    shape, how = CASES[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(F.interpolate(x, **how).shape, generator=torch.Generator().manual_seed(1))

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (F.interpolate(x.cos(), **how) * weight.to(x.dtype)).sum().backward()
        return x.grad

    best, eager = gradient(x.double()), gradient(x)
    for layout in (torch.contiguous_format, torch.channels_last) if len(shape) == 4 else (torch.contiguous_format,):
        ours = bytejit.compile(gradient, fullgraph=True)(x.to(memory_format=layout))
        assert (ours - best).abs().max() <= 2 * (eager - best).abs().max() + 1e-6
    assert not any("upsample" in name for name in bytejit.counters["externs"]) and not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("mode", ("nearest", "bilinear", "bicubic"))
def test_what_is_not_finite_stays_where_it_is(mode: str) -> None:
    g = torch.ones(1, 1, 9, 10)
    g[0, 0, 4, 4] = torch.inf

    def gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        F.interpolate(x, g.shape[2:], mode=mode).backward(g)
        return x.grad

    x = torch.randn(1, 1, 5, 7)
    want, found = gradient(x, g), bytejit.compile(gradient, fullgraph=True)(x, g)
    assert torch.equal(want.isfinite(), found.isfinite())


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
def test_images_of_bytes_with_symbolic_sizes(mode: str) -> None:
    """The same bytes as eager's kernel, which rounds others than torch's decomposition"""
    x = (torch.arange(75) * 37 % 11).to(torch.uint8).view(1, 3, 5, 5)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(7, 4), mode=mode) + 1

    assert torch.equal(bytejit.compile(f, dynamic=True)(x), f(x))


@pytest.mark.parametrize("mode", ("nearest", "bilinear", "bicubic"))
@pytest.mark.parametrize("dynamic", (None, True))
def test_a_scale_that_keeps_a_size(mode: str, dynamic: bool | None) -> None:
    """Eager's kernels then do not scale, most often"""
    x = torch.linspace(-1, 1, 35).sin().view(1, 1, 5, 7).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.1, mode=mode)

    out, want = bytejit.compile(f, dynamic=dynamic)(x), f(x)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(*(torch.autograd.grad((t * t.detach()).sum(), x) for t in (out, want)))
