"""Conversions between dtypes in compiled kernels: each gives eager's bits, out of range as well."""

from __future__ import annotations

import math

import pytest
import torch

import bytejit

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
