"""Operands that lie across the loop are turned, a tile at a time (C++)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import aten, stages
from test_emit_cpp import compiled

from bytejit.codegen.cpu.emit import emit_cpp

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
]
SHAPES = [(64, 96), (33, 40), (203, 77), (40, 1000), (35, 34)]
PROGRAMS: dict[str, Callable] = {
    "turned": lambda x, y: x.t().contiguous(),
    "beside another": lambda x, y: torch.where(y.t() > 0, x.t(), 0) + y.t(),
    "and one that is not": lambda x, y: x.t().add(y.reshape(y.shape[1], y.shape[0])),
    "backwards": lambda x, y: x.flip(1).t().clone(),
    "from the end": lambda x, y: x.flip(0).t().clone(),
    "a part": lambda x, y: x[1:, 2:].t().clone(),
    "every second row": lambda x, y: torch.cat([x, x])[::2].t().clone(),
    "images": lambda x, y: x.view(1, *x.shape).expand(3, -1, -1).transpose(1, 2).clone(),
    "to another dtype": lambda x, y: x.t().contiguous().double(),
}


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 9).to(dtype)


@pytest.mark.cxx
@pytest.mark.pairs
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_turned_operands_are_as_in_eager(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    if name == "and one that is not" and dtype == torch.bool:
        pytest.skip("a sum of bools is another operator")
    x, y = values(dtype, *shape), values(dtype, *shape)
    [got], want = compiled(PROGRAMS[name], (x, y)).call(x, y), PROGRAMS[name](x, y)
    assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.cxx
def test_nan_and_many_operands() -> None:
    """The bits of NaNs stay; of many operands some are read as they lie."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(256, 256)
    for dtype in (torch.bfloat16, torch.float16):
        [got] = compiled(lambda x: x.t().clone(), (x.view(dtype),)).call(x.view(dtype))
        assert torch.equal(got.view(torch.int16), x.t())
    many = [torch.randn(40, 64) for _ in range(12)]
    [got] = compiled(lambda *xs: torch.stack([x.t() for x in xs]).sum(0), many).call(*many)
    torch.testing.assert_close(got, sum(many).t())
    [got] = compiled(lambda *xs: sum(x.t() for x in xs).clone(), many).call(*many)
    torch.testing.assert_close(got, sum(many).t())


def test_tiles_of_what_lies_across_the_loop_only() -> None:
    def tiles(fn: Callable, *args: torch.Tensor) -> int:
        return emit_cpp(stages(aten(fn, *args))[2]).units[0].count("bj::turn<")

    x, y = torch.randn(64, 96), torch.randn(96, 64)
    assert tiles(lambda x: x.t().contiguous(), x) == 1
    assert tiles(lambda x, y: x.t() + y, x, y) == 1
    assert tiles(lambda x, y: x.t() + x.t().sin() + y, x, y) == 1
    assert tiles(lambda x, y: x + y.t(), x, y) == 1
    assert tiles(lambda x: x * 2, x) == 0
    assert tiles(lambda x: x.t().sum(1), x) == 0
