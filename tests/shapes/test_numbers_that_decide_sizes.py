"""Operators given numbers that decide sizes (which diagonal, how much larger, how wide a window): one more compile, then none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import bytejit
from tests.shapes.test_dynamic import entries

NUMBERS = (2, 3, 5, 4, 6, 7)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def scaled(mode: str, **more) -> Callable:
    return lambda x, k: F.interpolate(x, scale_factor=k, mode=mode, **more)


CASES: dict[str, tuple[Callable, Callable[[int], tuple]]] = {
    "diagonal": (lambda x, k: x.diagonal(k) * 2, lambda k: (r(9, 9), k)),
    "diagonal below, other dimensions": (lambda x, k: torch.diagonal(x, -k, 2, 0), lambda k: (r(9, 2, 8), k)),
    "linalg.diagonal": (lambda x, k: torch.linalg.diagonal(x, offset=k), lambda k: (r(2, 3, 12), k)),
    "diag of a matrix": (torch.diag, lambda k: (r(8, 9), k)),
    "diag of numbers": (lambda x, k: x.diag(-k), lambda k: (r(4), k)),
    "diag_embed": (torch.diag_embed, lambda k: (r(2, 4), k)),
    "isin of a number in numbers": (lambda x, k: x * torch.isin(k, x.round(), invert=True), lambda k: (3 * r(9), k)),
    "a whole factor": (lambda x, k: F.interpolate(x, scale_factor=k), lambda k: (r(1, 2, 4, 3), k)),
    "factors, nearest": (scaled("nearest-exact"), lambda k: (r(1, 2, 4, 3), 0.3 + k / 3)),
    "factors, linear": (scaled("linear"), lambda k: (r(1, 2, 7), 0.3 + k / 3)),
    "factors, bilinear": (scaled("bilinear", align_corners=True), lambda k: (r(1, 2, 4, 5), (0.3 + k / 3, 1.5))),
    "factors, bicubic": (scaled("bicubic"), lambda k: (r(1, 2, 4, 5), 0.3 + k / 3)),
    "factors, computed anew": (scaled("bilinear", recompute_scale_factor=True), lambda k: (r(1, 2, 4, 5), 0.3 + k / 3)),
    "factors, area": (scaled("area"), lambda k: (r(1, 2, 4, 5), 0.3 + k / 3)),
    "unfold": (lambda x, k: x.unfold(0, k, 2).sum(-1), lambda k: (r(9, 3), k)),
    "unfold by other steps": (lambda x, k: x.t().unfold(1, 2, k).sum(-1), lambda k: (r(9, 3), k)),
    "max_pool1d of all": (lambda x: F.max_pool1d(x, x.shape[2]) * 2, lambda k: (r(2, 3, k + 4).round(),)),
    "max_pool2d of all": (lambda x: F.max_pool2d(x, x.shape[2:]), lambda k: (r(2, 3, k + 4, k + 1).round(),)),
    "avg_pool1d of all": (lambda x: F.avg_pool1d(x, x.shape[2]) * 2, lambda k: (r(2, 3, k + 4),)),
    "avg_pool2d of all": (lambda x: F.avg_pool2d(x, x.size()[2:], stride=1), lambda k: (r(2, 3, k + 4, k + 1),)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_few_compiles(name: str, grad: bool) -> None:
    torch.manual_seed(0)
    f, make = CASES[name]
    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for k in (*NUMBERS, 1):
        x, *rest = make(k)
        y = x.clone().requires_grad_(grad)
        want, got = f(x.requires_grad_(grad), *rest), compiled(y, *rest)
        torch.testing.assert_close(got, want)
        assert got.storage_offset() == want.storage_offset()
        assert all(m == n for m, n, size in zip(got.stride(), want.stride(), want.shape) if size > 1)
        if grad:
            seed = torch.randn_like(want)
            for made in (want, got):
                made.backward(seed)
            torch.testing.assert_close(y.grad, x.grad)
        if k == NUMBERS[-1]:
            assert entries(compiled) == 2


@pytest.mark.parametrize("offset", [8, 9, 10, 30])
def test_a_diagonal_outside_of_the_matrix(offset: int) -> None:
    def f(x, k):
        y = x.diagonal(k)
        return y, y.storage_offset()

    compiled = bytejit.compile(f, backend="eager")
    x = r(12, 9)
    for k in (2, 3, 5, offset, -offset, 0):
        got, want = compiled(x, k), f(x, k)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_a_diagonal_is_written() -> None:
    def f(x, k):
        y = x * 2
        y.diagonal(k).add_(1)
        return y

    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for k in NUMBERS:
        x = r(9, 9)
        torch.testing.assert_close(compiled(x, k), f(x, k))
    assert entries(compiled) == 2


WINDOWS: dict[str, tuple[Callable, Callable[[int], tuple]]] = {
    "F.unfold": (lambda x, k: F.unfold(x, k, padding=1), lambda k: (r(1, 2, 9, 8), k)),
    "F.unfold, other numbers": (
        lambda x, k: F.unfold(x, (3, 2), dilation=(2, 1), padding=k, stride=(1, k)),
        lambda k: (r(2, 9, 8), k),
    ),
    "avg_pool2d": (F.avg_pool2d, lambda k: (r(1, 2, 9, 8), k)),
    "avg_pool1d by steps of 2": (lambda x, k: F.avg_pool1d(x, k, 2) * 2, lambda k: (r(2, 9), k)),
    "avg_pool2d with margins": (lambda x, k: F.avg_pool2d(x, 15, 2, padding=k), lambda k: (r(1, 2, 19, 18), k)),
    "max_pool2d": (lambda x, k: F.max_pool2d(x, k), lambda k: (r(1, 2, 9, 8), k)),
    "max_pool1d with margins": (lambda x, k: F.max_pool1d(x, k, 1, padding=1) * 2, lambda k: (-r(2, 9).abs(), k)),
    "max_pool2d by other steps": (lambda x, k: F.max_pool2d(x, 3, k, padding=1, dilation=2), lambda k: (r(1, 2, 9, 8), k)),
    "max_pool3d": (lambda x, k: torch.max_pool3d(x, k), lambda k: (r(1, 1, 7, 8, 9), k)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_without_gradients(name: str) -> None:
    f, make = WINDOWS[name]
    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for k in NUMBERS:
        args = make(k)
        torch.testing.assert_close(compiled(*args), f(*args))
    assert entries(compiled) == 2


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_with_gradients(name: str) -> None:
    f, make = WINDOWS[name]
    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for k in NUMBERS[:4]:
        x, n = make(k)
        y = x.clone().requires_grad_()
        want, got = f(x.requires_grad_(), n), compiled(y, n)
        torch.testing.assert_close(got, want)
        seed = torch.randn_like(want)
        for made in (want, got):
            made.backward(seed)
        torch.testing.assert_close(y.grad, x.grad)


def test_windows_that_eager_refuses() -> None:
    for f, numbers in ((F.max_pool2d, (2, 3, 9)), (lambda x, k: F.avg_pool2d(x, 5, 1, padding=k), (1, 2, 3))):
        compiled, x = bytejit.compile(f, backend="eager"), r(1, 2, 7, 8)
        for n in numbers[:-1]:
            torch.testing.assert_close(compiled(x, n), f(x, n))
        with pytest.raises(RuntimeError) as want:
            f(x, numbers[-1])
        with pytest.raises(RuntimeError) as got:
            compiled(x, numbers[-1])
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize("f", [F.avg_pool3d, lambda x, k: F.max_pool3d(x, k), lambda x, k: F.avg_pool3d(x, x.shape[2:])])
def test_pools_under_autocast(f: Callable) -> None:
    """It casts for some of them."""
    compiled = bytejit.compile(f, backend="aot_eager")
    for k in NUMBERS[:4]:
        x = r(1, 1, k + 4, k + 5, k + 6).bfloat16()
        with torch.autocast("cpu"):
            torch.testing.assert_close(compiled(x, k), f(x, k), rtol=1e-2, atol=1e-2)


def test_floats_where_eager_takes_whole_numbers() -> None:
    for f in (lambda x, k: x.unfold(0, k, 1) * 2, lambda x, k: x.diagonal(k) * 2, torch.diag):
        compiled = bytejit.compile(f, backend="aot_eager")
        for n, k in ((4, 2), (5, 2), (6, 2), (6, 3), (7, 2.0), (7, 3.0)):
            x = r(n, n)
            if type(k) is float:
                with pytest.raises(TypeError):
                    compiled(x, k)
            else:
                torch.testing.assert_close(compiled(x, k), f(x, k))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k, k + 1, x.shape[0], k * 0.5, 3

    @staticmethod
    def backward(ctx, grad, *_):
        return grad * ctx.k, None


@pytest.mark.parametrize("grad", [False, True])
def test_numbers_that_an_autograd_function_returns(grad: bool) -> None:
    def f(x, k):
        y, *numbers = Scaled.apply(x, k)
        return y * numbers[0] - numbers[2], numbers

    compiled = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    for k in NUMBERS:
        x = r(k + 3).requires_grad_(grad)
        y = x.detach().clone().requires_grad_(grad)
        want, got = f(x, k), compiled(y, k)
        torch.testing.assert_close(got, want)
        assert list(map(type, got[1])) == list(map(type, want[1]))
        if grad:
            for made in (want, got):
                made[0].sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert entries(compiled) == 2


def test_factors_in_kernels() -> None:
    compiled = bytejit.compile(lambda x, k: F.interpolate(x.sin(), scale_factor=k, mode="bilinear") * k)
    for k in (1.5, 2.25, 1.3, 3.1, 2.0):
        x = r(1, 2, 4, 5)
        torch.testing.assert_close(compiled(x, k), F.interpolate(x.sin(), scale_factor=k, mode="bilinear") * k)
    assert entries(compiled) == 2
