"""Running best elements and places in sorted rows (rows/scans.py, rows/gather.py) as kernels of both printers against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from both import both
from dynamic import agree

import bytejit

pytestmark = pytest.mark.cxx
r = torch.randn
NAN, INF = float("nan"), float("inf")
TIES = torch.tensor([[3.0, 1, 3, 3, 2, 3, 5, 5], [0.0, -0.0, 0.0, 0.0, -1, -1, 0, 0]])
ODD = torch.tensor([[1.0, NAN, 2, NAN, 3, INF, 0, 1], [-INF, -INF, -1, -1, INF, INF, NAN, 4], [NAN, NAN, 1, 2, 3, 4, 5, 6]])


def running(x: torch.Tensor, dim: int = -1) -> tuple:
    most, least = x.cummax(dim), x.cummin(dim)
    return most[0], most[1], least[0], least[1]


CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "rows": (running, (r(5, 33),)),
    "columns": (lambda x: running(x, 0), (r(40, 20),)),
    "middle": (lambda x: running(x, 1), (r(3, 14, 5),)),
    "ties": (running, (TIES,)),
    "nan_and_infinities": (running, (ODD,)),
    "ints": (running, (torch.arange(60).mul(37).remainder(11).view(4, 15),)),
    "bytes": (running, (torch.arange(60).mul(37).remainder(11).view(4, 15).to(torch.uint8),)),
    "half": (running, (r(4, 19).half(),)),
    "bf16": (running, (r(4, 19).bfloat16(),)),
    "double": (running, (r(4, 19).double(),)),
    "transposed": (running, (r(19, 4).t(),)),
    "one": (running, (r(4, 1),)),
    "scalar": (lambda x: running(x, 0), (torch.tensor(2.0),)),
    "nothing": (running, (r(3, 0),)),
    "values_alone": (lambda x: (x.sin().cummax(1).values * 2).sum(1), (r(5, 33),)),
    "places_alone": (lambda x: x.cummin(1).indices + 1, (r(5, 33),)),
    "looped": (lambda x: x.cummax(1), (r(2, 9000).double(),)),
    "beside_others": (lambda x: (x.cummax(1).values - x.cumsum(1), x.amax(1)), (r(5, 33),)),
    "logarithms": (lambda x: (x.logcumsumexp(1), (x * 50).logcumsumexp(0)), (r(5, 33),)),
    "logarithms_odd": (lambda x: x.logcumsumexp(1), (ODD,)),
    "logarithms_half": (lambda x: x.logcumsumexp(0), (r(5, 33).half(),)),
    "logarithms_looped": (lambda x: x.logcumsumexp(1) * 2, (r(2, 9000).double(),)),
    "logarithms_one": (lambda x: x.logcumsumexp(1), (r(3, 1),)),
    "searchsorted": (
        lambda s, x: (torch.searchsorted(s, x), torch.searchsorted(s, x, right=True)),
        (torch.tensor([1.0, 2, 2, 2, 5]), torch.tensor([[0.0, 1, 2, 2.5], [5, 6, NAN, -INF]])),
    ),
    "searchsorted_rows": (lambda s, x: torch.searchsorted(s, x, side="right", out_int32=True), (r(4, 7).sort()[0], r(4, 5))),
    "searchsorted_nan": (
        lambda s, x: torch.searchsorted(s, x),
        (torch.tensor([-7, -0.6, -0.5, 0.7, NAN]), torch.tensor([0.5, 0.7, -9, NAN])),
    ),
    "searchsorted_ints": (lambda s, x: torch.searchsorted(s, x), (torch.tensor([1, 3, 3, 9]), torch.arange(12))),
    "bucketize": (
        lambda b, x: (torch.bucketize(x.abs(), b), torch.bucketize(x, b, out_int32=True, right=True)),
        (r(9).sort()[0], r(4, 3)),
    ),
    "bucketize_one": (lambda b, x: torch.bucketize(x, b), (torch.tensor([0.0]), r(4, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, args = CASES[name]
    both(fn, *args, **({"rtol": 2e-3, "atol": 1e-5} if name == "logarithms_half" else {}))  # two steps of f16


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, 1])
def test_long_scans_are_as_near_to_float64_as_eager(name: str, dim: int) -> None:
    x = torch.randn(300, 300, generator=torch.Generator().manual_seed(0)) * 0.2 + 1

    def scan(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, dim)

    exact = scan(x.double())
    ours, eager = ((fn(x).double() / exact - 1).square().mean().sqrt() for fn in (bytejit.compile(scan), scan))
    assert ours <= 1.5 * eager


@pytest.mark.parametrize(
    "fn", [lambda x: running(x), lambda x: running(x, 0), lambda x: torch.searchsorted(TIES[1].sort()[0], x)]
)
def test_sizes_that_change(fn: Callable) -> None:
    agree(fn, lambda n, m: (torch.arange(1.0 * n * m).view(n, m).cos(),), (("s0", "s1"),), [(6, 7), (2, 9), (21, 160)])


@pytest.mark.parametrize("shape", [(5, 7), (40, 33), (3, 9, 8)])
def test_the_greatest_is_the_element_at_its_place(shape: tuple) -> None:
    """Of zeros of both signs the first one is taken, as eager does"""
    x = torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5, 0.0, -0.0)
    for dim in range(len(shape)):
        both(lambda x, dim=dim: tuple(t.signbit() for t in (*(x * 1).max(dim), *x.min(dim, keepdim=True))), x)


ROWS_OF_EXPONENTS: dict[str, torch.Tensor] = {
    "plain": torch.randn(5, 200) * 3,
    "one chunk": torch.randn(3, 64),
    "one more": torch.randn(3, 65),
    "one": torch.randn(4, 1),
    "far apart": torch.randn(6, 150) * 2000,
    "rising": torch.linspace(-1000, 1000, 300).repeat(2, 1),
    "falling": torch.linspace(1000, -1000, 300).repeat(2, 1),
    "near 0 before large ones": torch.cat([torch.full((2, 3), 1e-9), torch.full((2, 100), 60.0)], 1),
    "nothing": torch.full((2, 130), -INF),
    "nothing at first": torch.cat([torch.full((2, 70), -INF), torch.randn(2, 70)], 1),
    "infinite": torch.tensor([0.0, 1, INF, 2, -INF, INF] * 20).repeat(2, 1),
    "not numbers": torch.tensor([0.0, 1, 2] * 30 + [NAN] + [3.0] * 30).repeat(2, 1),
    "zeros": torch.tensor([-0.0, 0.0, -700.0] * 30).repeat(2, 1),
    "empty": torch.randn(0, 70),
    "steps": torch.randn(4, 400)[:, ::3],
    "columns": torch.randn(90, 7).t(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROWS_OF_EXPONENTS)
def test_sums_of_exponentials_in_chunks(name: str, dtype: torch.dtype) -> None:
    x = ROWS_OF_EXPONENTS[name].to(dtype)
    program = lambda x: (x.logcumsumexp(1), (x * 2).logcumsumexp(1) + x)
    want, got = program(x), bytejit.compile(program, fullgraph=True)(x)
    for w, g in zip(want, got[: 1 if dtype is torch.bfloat16 else 2]):  # eager rounds between the operations
        torch.testing.assert_close(g, w, equal_nan=True)
    exact = x.double().logcumsumexp(1)
    if dtype is torch.float32 and exact.isfinite().all():
        assert ((got[0] - exact).abs() <= exact.abs() * 2**-23 + 1e-30).all()


BESIDE_FUNCTIONS = {
    "product": lambda x: x.sigmoid().cumprod(1) * x,
    "sum": lambda x: x.sin().cumsum(1).exp(),
    "sum of wholes": lambda x: x.round().sigmoid().cumsum(1),
    "backward": lambda x: x.exp().flip(1).cumsum(1).flip(1),
    "mean of it": lambda x: x.cumsum(1).tanh().mean(1),
    "largest of it": lambda x: x.cumprod(1).sigmoid().amax(1),
    "of it and stored": lambda x: (y := x.cumsum(1).sigmoid()) - y.sum(1, keepdim=True),
}


@pytest.mark.parametrize("program", BESIDE_FUNCTIONS.values(), ids=BESIDE_FUNCTIONS)
@pytest.mark.parametrize("name", [n for n in ROWS_OF_EXPONENTS if n not in ("rising", "falling", "far apart")])
def test_scans_beside_functions_in_chunks(name: str, program) -> None:
    """Sums and products whose terms, or whose readers, are costly: as near to float64 as eager."""
    x = ROWS_OF_EXPONENTS[name]
    want, got, exact = program(x), bytejit.compile(program, fullgraph=True)(x), program(x.double())
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-5)
    if exact.isfinite().all() and exact.numel():
        bound = 2 * (want - exact).abs().max() + 2**-22 * exact.abs().max()
        assert (got - exact).abs().max() <= bound
