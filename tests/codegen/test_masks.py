"""Writes under masks, whole-tensor argmax, counts and losses: in kernels of the CPU and, in Triton's interpreter, of a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from marks import interpreted

import bytejit

WAYS = [
    pytest.param({}, id="cpp", marks=pytest.mark.cxx),
    pytest.param({"interpret": True}, id="triton", marks=[pytest.mark.triton, interpreted]),
]
NAN = float("nan")


def put(x: torch.Tensor, at: object, value: object) -> torch.Tensor:
    x = x * 1
    x[at] = value
    return x


def masks(x: torch.Tensor) -> tuple:
    row, col = x[:, 0] > 0, x[0] > 0
    return (
        put(x, x > 0, 0.5),
        put(x, x > 0, x.sum()),
        put(x, row, x[1]),
        put(x, row, x[:1, :1]),
        put(x, (slice(None), col), 2),
        put(x.t(), x.t() > 0, 0),
        put(x.long(), x > 1, 3),
        put(x > 0, x > 1, False),
        x.index_put((x > 0,), x[0, 0], accumulate=True),
        put(x.half(), x.half() > 0, 0.1),
    )


def ends(x: torch.Tensor) -> tuple:
    return (
        x.argmax(),
        x.argmin(),
        x.t().argmax(),
        (x * 0).t().argmin(),
        (x > 9).int().argmax(keepdim=True),
        x.half().argmax(),
        put(x, (1, 2), NAN).argmin(),
        *x.aminmax(),
        *x.t().aminmax(dim=0, keepdim=True),
    )


def counts(x: torch.Tensor) -> tuple:
    some = torch.where(x > 1, NAN, x)
    return (
        x.count_nonzero(),
        (x > 0).count_nonzero(1),
        x.int().count_nonzero((0, 1)),
        some.nansum(),
        some.nansum(1, keepdim=True),
        some.nansum(dtype=torch.float64),
    )


def losses(x: torch.Tensor) -> tuple:
    y, loss = x.sigmoid(), F.binary_cross_entropy_with_logits
    return (
        loss(x * 50, y),
        loss(x, y, reduction="none"),
        loss(x, y, y[0], reduction="sum"),
        loss(x, y, pos_weight=y[0]),
        loss(x.half(), y.half(), y.half(), reduction="none", pos_weight=y.half()),
    )


def lone(x: torch.Tensor) -> tuple:
    one = x[:1, :1]
    return (
        x.sum().mean(0),
        one.std(0, unbiased=False),
        one[0].argmax(0),
        one.sum(0).sigmoid(),
        one.cumsum(0),
        one.logsumexp(1),
        one.softmax(0) + one.any(),
        x[:0].sum(0),
        x[:0].any(1),
    )


def nothing(x: torch.Tensor) -> tuple:
    none = x[:0].sin()
    return (
        none @ none.t(),
        (x[:, :0].sin() @ x[:0].cos()).atan(),
        torch.cat([none.flatten(), x[0]]),
        torch.mm(none.t() * 2, none + 1),
    )


def bytes_(x: torch.Tensor) -> tuple:
    b = (x.abs() * 9).to(torch.uint8)
    return b % -3, b + -7, b * -2, b.clamp(min=-1), b == -3, b // 3, torch.where(x > 0, b, -3)


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("program", [masks, ends, counts, losses, lone, nothing, bytes_])
def test_as_in_eager(program, options: dict) -> None:
    x = torch.randn(7, 33)
    got = bytejit.compile(program, fullgraph=True, options=options)(x)
    for mine, eager in zip(got, program(x), strict=True):
        limit = 4e-3 if eager.dtype is torch.float16 else 1e-5
        torch.testing.assert_close(mine, eager, rtol=limit, atol=limit, equal_nan=True)
        assert mine.stride() == eager.stride() or mine.numel() < 2
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"]


@pytest.mark.cxx
@pytest.mark.parametrize(
    "at, value, why",
    [
        (lambda x: x[:, 0] > 0, torch.ones(32), "shape mismatch"),
        (lambda x: torch.ones(5) > 0, 1.0, "The shape of the mask"),
        (lambda x: (slice(None), x[0] > 0), torch.ones(33), "shape mismatch"),
    ],
)
def test_what_does_not_fit_raises_as_in_eager(at, value, why: str) -> None:
    x = torch.arange(-100.0, 131.0).reshape(7, 33)
    with pytest.raises((RuntimeError, IndexError), match=why):
        put(x, at(x), value)
    with pytest.raises((RuntimeError, IndexError), match=why):
        bytejit.compile(lambda x: put(x, at(x), value))(x)


@pytest.mark.cxx
def test_a_value_for_each_place_and_sizes_that_change() -> None:
    def each(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return put(x, x > 0, v) + 1

    def rows(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return put(x, x[:, 0] > 0, v) + 1

    one, many = bytejit.compile(each), bytejit.compile(rows, dynamic=True)
    for n in (7, 9, 12):
        x = torch.randn(n, 5)
        v = torch.randn(int((x > 0).sum()))
        torch.testing.assert_close(one(x, v), each(x, v))
        torch.testing.assert_close(many(x, x[0] * 2), rows(x, x[0] * 2))
