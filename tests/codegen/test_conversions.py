"""Conversions between dtypes in compiled kernels: each gives eager's bits, out of range as well."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, stages
from test_emit_cpp import compiled

import bytejit
from bytejit.codegen.cpu.emit import emit_cpp

pytestmark = pytest.mark.cxx
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("whole", WHOLE, ids=str)
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_made_whole_and_a_float_again(of: torch.dtype, whole: torch.dtype) -> None:
    """0.0 of -0.5, and the ends of the range of what is outside: no compiler may make trunc(x) of it."""
    rows = torch.tensor([-0.5, -0.0, 2.5, -2.5, 300.0, -70000.0, 3e9, -1e11, 1e30, -1e30, math.inf, -math.inf, math.nan])
    x = rows.repeat(5, 1).to(of)

    def program(x):
        there = x.to(whole)
        return there.float(), there.double(), 1 / there.to(of), there.clamp(max=7).to(of)

    if not torch.equal(rows.to(of).to(whole), x.to(whole)[0]):
        pytest.skip("eager's own result depends on the place of an element")
    want, got = program(x), bytejit.compile(program, fullgraph=True)(x)
    for w, g in zip(want, got, strict=True):
        assert torch.equal(w, g) and torch.equal(w.signbit(), g.signbit())


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether both have the same bits, of whichever NaN."""
    at = ~want.isnan()
    return torch.equal(got.isnan(), ~at) and torch.equal(got[at], want[at]) and torch.equal(got.signbit()[at], want.signbit()[at])


@pytest.mark.parametrize("shape", [(65536,), (32, 2048), (1985, 33)], ids=str)
def test_rows_of_halves(shape: tuple[int, ...]) -> None:
    """Every half, and floats around them: rows are converted by the CPU's instruction, the last few elements one by one."""
    every = torch.arange(math.prod(shape)).to(torch.int16).view(torch.float16).view(shape)
    floats = every.float() * 1.0003 + 1e-8

    def program(x, y):
        return x.float(), y.half(), y.half().float() * 2, x * 3, x.abs().half(), x[..., 1:] + x[..., :-1], x.clone()

    for got, want in zip(bytejit.compile(program, fullgraph=True)(every, floats), program(every, floats), strict=True):
        assert same(got, want)


def test_rows_of_halves_in_place_masked_and_summed() -> None:
    x, y, m = torch.randn(300, 1100).half(), torch.randn(300, 1100), torch.rand(300, 1100) > 0.5

    def program(x, y, m):
        x = x.clone()
        x[:, 1:].mul_(2)
        x[1:].add_(y[:-1].half())
        return x, torch.where(m, x, y.half()), x.t() + 1, x.float().sum(1), x.sin(), torch.cat([x, y.half()], 1), x[:, ::2] * 2

    for got, want in zip(bytejit.compile(program, fullgraph=True)(x, y, m), program(x, y, m), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=8e-3)  # eager rounds between the operations


EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)  # all numbers of bfloat16
KEPT: dict[str, tuple[Callable, bool]] = {
    "abs": (torch.abs, False),  # these two are made of the 16 bits themselves
    "neg": (torch.neg, False),
    "relu": (torch.relu, True),
    "clamp to its numbers": (lambda x: x.clamp(-0.5, 2.5), True),
    "clamp to others": (lambda x: x.clamp(-0.1, 2.6), False),
    "choice": (lambda x: torch.where(x > 1, x, -x.flip(0)), True),
    "greatest": (lambda x: torch.maximum(x, x.flip(0)).minimum(x.abs()), True),
    "nan_to_num": (torch.nan_to_num, True),
    "of a mask": (lambda x: torch.where((x > 0).to(x.dtype) > 0, x, 3.0), True),
    "double": (lambda x: x * 2, False),
    "half of some": (lambda x: torch.where(x > 1, x, x / 3), False),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_of_bfloat16_is_not_rounded(name: str) -> None:
    fn, kept = KEPT[name]
    text = "".join(emit_cpp(stages(aten(fn, EVERY), 2)[2]).units)
    assert ("bj::cut" in text) == kept
    torch.testing.assert_close(compiled(fn, (EVERY,)).call(EVERY)[0], fn(EVERY), rtol=0, atol=0, equal_nan=True)


HALF_MASK = torch.arange(1 << 8)[:, None] > 100  # the same along a row
MOVED: dict[str, Callable] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "both": lambda x: -(x.abs()),
    "rows chosen": lambda x: torch.where(HALF_MASK, x, -x.flip(0)),
    "rows of a number": lambda x: torch.where(HALF_MASK, x, 2.5),
    "reflected rows": lambda x: F.pad(x.view(1, 1, 64, 16, 64), (0, 0, 3, 3, 3, 3), mode="reflect"),
    "turned by half": lambda x: torch.cat([-x[:, 128:], x[:, :128]], 1),
    "beside what is computed": lambda x: (-x, x.abs() * 2, (x * 2).abs(), x.float().abs()),
    "whole numbers": lambda x: (x.clamp(-1e3, 1e3).to(torch.int64).to(x.dtype), (-x).to(torch.bool).to(x.dtype)),
    "of other dtypes": lambda x: (x.float().neg().to(torch.bfloat16), x.float().neg().half(), x.double().neg().to(x.dtype)),
    "steps": lambda x: -x[:, ::2],
    "summed, too": lambda x: (x.abs(), x.clamp(-1, 1).abs().float().sum(1)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MOVED)
def test_other_signs_and_choices_of_rows_keep_every_number(name: str, dtype: torch.dtype) -> None:
    x = EVERY.view(dtype).view(256, 256)
    want, got = MOVED[name](x), bytejit.compile(MOVED[name], fullgraph=True)(x)
    for w, g in zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]:
        assert g.dtype is w.dtype
        assert same(g, w) if w.dtype is not torch.float32 else torch.allclose(g, w, equal_nan=True)
