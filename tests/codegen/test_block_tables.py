"""What all rows of a block share is computed once: images that are read at computed places, beside eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, stages
from torch import Tensor

import bytejit
from bytejit.codegen.cpu.emit import emit_cpp

pytestmark = pytest.mark.cxx
MODES = [(mode, padding) for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("mode", "padding"), MODES)
def test_images_read_at_computed_places(mode: str, padding: str, dtype: torch.dtype) -> None:
    image = torch.randn(2, 9, 13, 17).to(dtype)
    grid = (torch.rand(2, 11, 15, 2) * 2.4 - 1.2).to(dtype)
    grid[0, 0, :3] = torch.tensor([[float("nan"), 0.3], [3.0, -3.0], [-1.0, 1.0]])
    program = lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=False) * 2
    for x in (image, image[:, :, 1:, 2:], image[:, :5]):
        want, got = program(x, grid), bytejit.compile(program, fullgraph=True)(x, grid)
        if dtype is torch.bfloat16:
            continue  # eager rounds places and weights to bfloat16: only that it runs
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def chosen(x: Tensor, y: Tensor) -> Tensor:
    """Columns chosen by what is computed of the last row."""
    keep = (y.abs().sqrt() > 0.7) & (y.sin() < 0.9)
    return torch.where(keep, x.sum(0) * 2, x.amax(0)) + torch.where(keep[None], x, -x * y).sum(0)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weights of columns": lambda x, y: (x * (y.sigmoid() * 3 - y.exp())).sum(0),
    "masks of columns": chosen,
    "weights of rows": lambda x, y: x * ((y.sigmoid() * 3 - y.exp()) / (y.tanh() + 2) + x[:1].erf() * x[1:2].log1p()),
    "moments": lambda x, y: (x - x.mean(0)) * (x.var(0) + 1e-5).rsqrt() * y.tanh() + y.exp(),
    "of large numbers": lambda x, y: (x * (y * 1e6).sin()).sum(0) + (x + (y * 1e6).cos()).amax(0),
    "whole numbers": lambda x, y: (x.long() * ((y * 8).long() % 5 + 3)).sum(0),
    "softmax of columns": lambda x, y: (x * y.exp()).softmax(0),
}


@pytest.mark.parametrize("shape", [(40, 64), (40, 131), (5, 300), (40, 1)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_columns(name: str, shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape[1])
    x[0, 0], x[1, -1] = float("inf"), -0.0
    want, got = PROGRAMS[name](x, y), bytejit.compile(PROGRAMS[name], fullgraph=True)(x, y)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_places_are_computed_once_for_all_channels() -> None:
    run = lambda x, g: torch.ops.aten.grid_sampler_2d(x, g, 0, 0, False)
    _, _, plan = stages(aten(run, torch.randn(2, 32, 16, 16), torch.randn(2, 32, 32, 2)))
    text = "".join(emit_cpp(plan).units)
    assert text.count("bj::floor") == 2
    assert text.index("bj::floor") < text.rindex("#pragma omp simd")
