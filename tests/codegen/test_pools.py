"""Pooling, resizing and sampling (rows/pools.py and rows/resize.py in codegen/ops) as kernels of both printers against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from both import both

pytestmark = pytest.mark.cxx
r = torch.randn


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def with_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1.2, float("nan"), x)


def resize(mode: str, **how: Any) -> Callable:
    return lambda x: F.interpolate(x, mode=mode, **how) * 2


def sample(mode: str, padding: str, align: bool) -> Callable:
    return lambda x, g: F.grid_sample(x, g, mode, padding, align)


IMAGE = r(2, 3, 5, 7)
CORNERS = torch.tensor([-1.0, 1, 0, 0.5, -1, -1, 1, 1]).expand(2, 1, 8).reshape(2, 1, 4, 2)
GRID = torch.cat([r(2, 20, 4, 2), CORNERS], 1)
CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "max1": (lambda x: F.max_pool1d(x, 3, 2, 1), (r(2, 3, 11),)),
    "max3": (lambda x: F.max_pool3d(x.sin(), 2), (r(2, 3, 4, 6, 8),)),
    "max3_indices": (lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True), (r(1, 2, 4, 5, 4),)),
    # every window's elements: before the first, within, past the last; some are inside for every window, others for some
    **{
        f"max{n}_indices_{k}{s}{p}": (
            lambda x, n=n, k=k, s=s, p=p: getattr(F, f"max_pool{n}d")(x, k, s, p, return_indices=True),
            (r(2, 3, *(5, 6)[:n]),),
        )
        for n in (1, 2)
        for k in (2, 3, 4)
        for s in (1, 2)
        for p in (0, 1, 2)
        if 2 * p <= k and (n, s, p) != (2, 1, 0) and (n == 1 or k == 3)
    },
    "max2_indices_falling": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (-torch.arange(64.0).view(1, 1, 8, 8),)),
    "max2_indices_infinite": (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        (torch.full((1, 1, 8, 8), -float("inf")),),
    ),
    # channels innermost, in lanes: whether an element is inside is the same for all of them
    "max2_indices_last": (lambda x: F.max_pool2d(x.relu() + 1, 3, 2, 1, return_indices=True), (last(with_nan(r(2, 33, 9, 8))),)),
    "max2_indices_double": (lambda x: F.max_pool2d(x, 3, 1, 1, 1, return_indices=True), (last(r(2, 33, 5, 8)).double(),)),
    "max2_indices_dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True), (with_nan(r(2, 3, 9, 40)),)),
    "max2_indices_outside": (
        lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True),
        (last(torch.full((1, 33, 9, 8), -float("inf"))),),
    ),
    "avg2_last": (lambda x: F.avg_pool2d(x.exp(), 3, 2, 1, count_include_pad=False), (last(r(2, 33, 9, 8)),)),
    "pad_last": (lambda x: F.pad(x, (1, 2, 1, 0), value=3.5).exp(), (last(r(2, 33, 9, 8)),)),
    "max2_large": (lambda x: F.max_pool2d(x.relu(), 5, 1, 2), (r(2, 3, 9, 11),)),
    "max2_chain": (
        lambda x: (y := F.max_pool2d(x, 5, 1, 2), z := F.max_pool2d(y, 5, 1, 2), torch.cat([x, y, z], 1))[2],
        (r(1, 3, 8, 8),),
    ),
    "max2_large_last": (lambda x: F.max_pool2d(x, (3, 7), (2, 1), (1, 3), ceil_mode=True), (last(r(2, 4, 10, 11)),)),
    "max2_large_nan": (lambda x: F.max_pool2d(x, 5), (with_nan(r(2, 3, 20, 20)),)),
    "max2_large_bf16": (lambda x: F.max_pool2d(x, 5, 2), (r(2, 3, 20, 20).bfloat16(),)),
    "max2_unbatched": (lambda x: F.max_pool2d(x, 5, 2), (r(3, 20, 20),)),
    "avg3": (
        lambda x: F.avg_pool3d(x, 2, padding=1) + F.avg_pool3d(x, 2, padding=1, count_include_pad=False),
        (r(2, 3, 4, 6, 8),),
    ),
    "avg2_ceil": (
        lambda x: (
            F.avg_pool2d(x, 2, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, True, False),
            F.avg_pool2d(x, 3, 2, 1, True, True, 5),
        ),
        (r(2, 3, 7, 10),),
    ),
    "avg1_large": (lambda x: (F.avg_pool1d(x, 25, 1, 12), F.avg_pool1d(x, 25, 2)), (r(2, 3, 61),)),
    "avg1_long": (lambda x: (F.avg_pool1d(x, 50, 1, 20), F.avg_pool1d(x, 50, 50)), (r(2, 3, 110),)),
    "avg2_large": (
        lambda x: (
            F.avg_pool2d(x, 7, 2, 3) * 2,
            F.avg_pool2d(x, (5, 7), 1, (2, 1), count_include_pad=False),
            F.avg_pool2d(x, 5, 3, 2, ceil_mode=True),
            F.avg_pool2d(x, (5, 4), 3, 2, True, False),
            F.avg_pool2d(x, 5, 2, 2, divisor_override=3),
        ),
        (r(2, 3, 14, 15),),
    ),
    "avg2_large_last": (lambda x: F.avg_pool2d(x, 7, 1, 3).relu(), (last(r(2, 9, 12, 13)),)),
    "avg2_large_bf16": (lambda x: F.avg_pool2d(x, 5, 2, 2), (r(2, 3, 20, 20).bfloat16(),)),
    "avg3_large": (lambda x: F.avg_pool3d(x, 4, 2, 1), (r(2, 3, 10, 6, 8),)),
    "avg1": (lambda x: F.avg_pool1d(x, 3, 2, 1), (r(2, 3, 11),)),
    "response": (lambda x: F.local_response_norm(x, 5), (r(2, 8, 5, 5),)),
    "adaptive_uneven": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)) + 1, (r(2, 3, 9, 7),)),
    "adaptive_more": (lambda x: F.adaptive_avg_pool2d(x, 7), (r(2, 3, 5, 6),)),
    "lp": (lambda x: F.lp_pool2d(x.abs(), 2, 2), (r(2, 3, 8, 8),)),
    "nearest1": (resize("nearest", scale_factor=2), (r(2, 3, 5),)),
    "nearest3": (resize("nearest", size=(4, 9, 5)), (r(2, 3, 3, 6, 5),)),
    "exact1": (resize("nearest-exact", size=11), (r(2, 3, 5),)),
    "exact2": (resize("nearest-exact", size=(3, 14)), (IMAGE,)),
    "exact3": (resize("nearest-exact", scale_factor=2), (r(1, 2, 2, 3, 4),)),
    "linear": (resize("linear", scale_factor=2), (r(2, 3, 5),)),
    "linear_aligned": (resize("linear", size=9, align_corners=True), (r(2, 3, 5),)),
    "bilinear": (resize("bilinear", size=(9, 3)), (IMAGE,)),
    "trilinear": (resize("trilinear", scale_factor=(2, 1.5, 2)), (r(1, 2, 3, 4, 5),)),
    "trilinear_aligned": (resize("trilinear", size=(2, 7, 5), align_corners=True), (r(1, 2, 3, 4, 5),)),
    "cubic": (resize("bicubic", scale_factor=2), (IMAGE,)),
    "cubic_smaller": (resize("bicubic", size=(3, 4)), (IMAGE,)),
    "cubic_aligned": (resize("bicubic", size=(9, 1), align_corners=True), (IMAGE,)),
    "cubic_last": (resize("bicubic", scale_factor=1.7), (last(r(1, 4, 6, 6)),)),
    "affine_grid": (lambda t: (F.affine_grid(t, (2, 3, 4, 5), False), F.affine_grid(t, (2, 3, 4, 1), True)), (r(2, 2, 3),)),
    "affine_grid3": (lambda t: F.affine_grid(t, (2, 3, 4, 5, 3), False), (r(2, 3, 4),)),
    "transformer": (
        lambda x, t: F.grid_sample(x, F.affine_grid(t, (2, 3, 4, 5), False), align_corners=False),
        (IMAGE, r(2, 2, 3)),
    ),
    **{
        f"sample_{mode}_{padding}_{align}": (sample(mode, padding, align), (IMAGE, GRID))
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    },
    "sample_f64": (sample("bilinear", "reflection", False), (r(2, 3, 1, 4).double(), GRID.double())),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, args = CASES[name]
    tol = {"rtol": 2e-2, "atol": 2e-2} if "bf16" in name else {"rtol": 1e-4, "atol": 2e-5}
    # with the channels innermost, CUDA's own kernel names element 0 of the image where all of a window is -inf
    both(fn, *args, gpu=name != "max2_indices_outside", **tol)


def test_what_stays_a_library_call() -> None:
    both(lambda x: F.max_pool2d(x, 5, return_indices=True), r(1, 2, 9, 9), externs=("aten.max_pool2d_with_indices.default",))
