"""Reductions of rows whose lengths are and are not multiples of the lanes of a vector, beside eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bytejit

pytestmark = pytest.mark.cxx
LENGTHS = (9, 20, 33, 100)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.uint8)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(1),
    "prod": lambda x: (x * 0 + 1 + (x > 1)).prod(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x < 3).all(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
}
OF_FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(1),
    "mean and deviation": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "of exponentials": lambda x: x.float().exp().sum(1),
    "logsumexp": lambda x: x.float().logsumexp(1),
    "of sines": lambda x: (x.float() * 1000).sin().sum(1),
    "masked": lambda x: torch.where(x > 0, x, 0).float().sum(1),
    "of neighbours": lambda x: (x[:, 1:].float() * x[:, :-1]).sum(1),
}


def inputs(dtype: torch.dtype, length: int) -> list[Tensor]:
    """Matrices of rows of a length: dense, with steps between rows, empty."""
    torch.manual_seed(length)
    x = (torch.randn(37, length + 3) * 3).to(dtype)
    return [x[:, :length].contiguous(), x[:, 3:], x[:0, :length]]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=str)
def test_rows(dtype: torch.dtype, length: int) -> None:
    fns = [*KINDS.values(), *(OF_FLOATS.values() if dtype.is_floating_point else ())]
    program = lambda x: tuple(fn(x) for fn in fns)
    compiled = bytejit.compile(program, fullgraph=True, dynamic=False)
    for x in inputs(dtype, length):
        if len(x):
            for want, got in zip(program(x), compiled(x), strict=True):
                low = got.dtype in (torch.bfloat16, torch.float16) or dtype in (torch.bfloat16, torch.float16)
                torch.testing.assert_close(got, want, rtol=2e-2 if low else 1e-4, atol=2e-2 if low else 1e-4)
    sums = bytejit.compile(lambda x: x.sum(1), fullgraph=True)(inputs(dtype, length)[-1])
    assert sums.shape == (0,)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_special_numbers_at_each_place(special: float, length: int) -> None:
    x = torch.full((length, length), -0.0)
    x.fill_diagonal_(special)
    program = lambda x: (x.sum(1), x.prod(1), x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), (x * 2).softmax(1))
    for want, got in zip(program(x), bytejit.compile(program, fullgraph=True)(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
    assert torch.equal(bytejit.compile(lambda x: x.sum(1), fullgraph=True)(x).isnan(), x.sum(1).isnan())


def test_rows_of_a_length_that_changes() -> None:
    compiled = bytejit.compile(lambda x: (x.sum(1), x.softmax(1), x.amax(1)), dynamic=True, fullgraph=True)
    for length in LENGTHS:
        x = torch.randn(50, length)
        for want, got in zip((x.sum(1), x.softmax(1), x.amax(1)), compiled(x), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_few_long_rows(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(1, 200_003)
        program = lambda x: (x.sum(1), x.amax(1), x.double().prod(1), x.argmin(1))
        for want, got in zip(program(x), bytejit.compile(program, fullgraph=True)(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(before)


def test_checked_indices_of_the_last_lanes() -> None:
    table = torch.randn(50, 4)
    rows = torch.randint(0, 50, (40, 21))
    total = lambda t, i: t[i].sum(1)
    compiled = bytejit.compile(total, fullgraph=True)
    torch.testing.assert_close(compiled(table, rows), total(table, rows))
    taken = lambda t, i: t.flatten()[i].sum(1)
    compiled = bytejit.compile(taken, fullgraph=True)
    torch.testing.assert_close(compiled(table, rows), taken(table, rows))
    rows[3, 20] = 5000
    with pytest.raises((IndexError, RuntimeError)):
        compiled(table, rows)
