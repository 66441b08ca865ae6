"""Operators called with sizes that grow, with gradients: one compile, one more for symbolic sizes, then none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit
from tests.shapes.test_dynamic import entries

SIZES = (5, 7, 8, 11, 14, 9)
C64 = torch.complex64


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def places(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape)


def smooth(x: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.nn.functional.interpolate(x, size=(4, 5), mode=mode, antialias=True)


CASES: dict[str, tuple[Callable, Callable[[int], tuple]]] = {
    "conj": (lambda x: x.conj() * x, lambda n: (r(n, 3, dtype=C64),)),
    "conj_physical": (lambda x: x.conj_physical() * 2, lambda n: (r(n, 3, dtype=C64),)),
    "conj_physical of a transposed tensor": (lambda x: x.t().conj_physical(), lambda n: (r(n, 3, dtype=C64),)),
    "conj_physical of a part": (lambda x: x[:, ::2].conj_physical(), lambda n: (r(3, n, dtype=C64),)),
    "ifft of reals": (torch.fft.ifft, lambda n: (r(n, 6),)),
    "hfft": (torch.fft.hfft, lambda n: (r(n, 6),)),
    "ihfft": (torch.fft.ihfft, lambda n: (r(n, 6),)),
    "rfft of a part": (lambda x: torch.fft.rfft(x[:, ::2]), lambda n: (r(4, n),)),
    "fft2 of a part": (lambda x: torch.fft.fft2(x[:, :, ::2]), lambda n: (r(3, n, n + 1, dtype=C64),)),
    "irfftn of a transposed part": (lambda x: torch.fft.irfftn(x.mT[:, 1::2], dim=(2, 0)), lambda n: (r(3, n, 7, dtype=C64),)),
    "fft of an expanded tensor": (lambda x: torch.fft.fft(x[:, None].expand(-1, 3, -1), dim=0), lambda n: (r(n, 4, dtype=C64),)),
    "polar": (lambda x, y: torch.view_as_real(torch.polar(x, y)), lambda n: (r(n, 3), r(n, 1))),
    "put": (lambda x, i, y: x.put(i, y), lambda n: (r(n, 3), places(4, below=3 * n), r(4))),
    "put into a transposed tensor": (lambda x, i, y: x.t().put(i, y), lambda n: (r(n, 3), places(4, below=3 * n), r(4))),
    "take": (torch.take, lambda n: (r(n, 3), places(4, below=3 * n))),
    "bilinear": (torch.nn.functional.bilinear, lambda n: (r(n, 4), r(n, 5), r(6, 4, 5), r(6))),
    "bilinear of many dimensions": (torch.nn.functional.bilinear, lambda n: (r(2, n, 4), r(2, n, 5), r(6, 4, 5))),
    "kron": (torch.kron, lambda n: (r(n, 3), r(4, n + 1))),
    "kron of unlike ranks": (torch.kron, lambda n: (r(n), r(2, 3, n))),
    "kron of parts": (lambda x, y: torch.kron(x[:, ::2], y[:1]), lambda n: (r(n, 4), r(2, 3))),
    "kron, one without gradient": (lambda x, y: x.kron(y), lambda n: (torch.arange(n), r(n, 2))),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, dim=1), lambda n: (r(n, 7), places(n, 5, below=7))),
    "take_along_dim that broadcasts": (lambda x, i: x.take_along_dim(i, -2), lambda n: (r(n, 1, 7), places(1, n, 7, below=1))),
    "take_along_dim of all": (torch.take_along_dim, lambda n: (r(n, 7), places(n, 2, below=7 * n))),
    "block_diag": (lambda *x: torch.block_diag(*x), lambda n: (r(n, 3), r(n), r(2, n + 1))),
    "block_diag of dtypes": (
        lambda *x: torch.block_diag(*x),
        lambda n: (torch.ones(n, 3, dtype=torch.int64), r(n, dtype=torch.float64), r(2, 2)),
    ),
    "pinverse of a matrix of less than full rank": (  # its default tolerance is not that of pinv
        lambda x: torch.pinverse(torch.diag_embed(torch.where(x > x.min(), x.exp(), 1e-9))),
        lambda n: (r(n),),
    ),
    "cov and corrcoef": (lambda x: torch.corrcoef(x) + x.cov(correction=0), lambda n: (r(3, n + 2),)),
    "cov of a part": (lambda x: torch.cov(x[0, ::2]) * torch.cov(x.t()), lambda n: (r(n + 2, 7),)),
    "cumprod": (lambda x: x.cumprod(-1) * x, lambda n: (r(3, n),)),
    "cumprod with zeros": (lambda x: torch.cumprod((x * (x.abs() > 0.4)).t(), 1), lambda n: (r(n, 9),)),
    "sgn": (lambda x: x.sgn() * x, lambda n: (r(n, 3),)),
    "gradient": (
        lambda x: torch.stack([*torch.gradient(x), *torch.gradient(x.mT, spacing=0.3, dim=-1)]),
        lambda n: (r(n + 1, n + 1),),
    ),
    "vander": (lambda x, w: torch.vander(x) @ w, lambda n: (torch.rand(n), r(n, 2))),
    "multi_dot": (lambda *x: torch.linalg.multi_dot(x), lambda n: (r(n, 3), r(3, n), r(n, 2))),
    "bicubic, antialiased": (lambda x: smooth(x, "bicubic"), lambda n: (r(2, 3, n, 6),)),
    "bilinear, antialiased": (lambda x: smooth(x.to(memory_format=torch.channels_last), "bilinear"), lambda n: (r(2, 3, n, 6),)),
    "fractional_max_pool2d": (
        lambda x: torch.nn.functional.fractional_max_pool2d(x, 2, output_size=3, _random_samples=torch.full((2, 3, 2), 0.3)),
        lambda n: (r(2, 3, n + 3, 6),),
    ),
    "pinv": (torch.linalg.pinv, lambda n: (r(n, 3),)),
    "pinv of wide matrices": (torch.linalg.pinv, lambda n: (r(2, 3, n),)),
}


def leaves(args: tuple) -> tuple:
    return tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)


def alike(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert all(m == n for m, n, size in zip(got.stride(), want.stride(), want.shape) if size > 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", CASES)
def test_few_compiles(name: str, backend: str) -> None:
    torch.manual_seed(0)
    f, make = CASES[name]
    compiled = bytejit.compile(f, backend=backend)
    for n in (*SIZES, 1, 2, 6):
        mine = make(n)
        plain = leaves(mine)
        want, got = f(*plain), compiled(*mine)
        alike(got, want)
        seed = torch.randn_like(want)
        grads = [
            torch.autograd.grad(out, [a for a in args if a.requires_grad], seed) for out, args in ((got, mine), (want, plain))
        ]
        for a, b in zip(*grads):
            alike(a, b)
        if n == SIZES[-1]:
            assert entries(compiled) <= 2


DRAWS: dict[str, Callable] = {
    "normal_": lambda x: x.clone().normal_(0, 2),
    "normal_ of a transposed tensor": lambda x: torch.empty_like(x.t()).normal_(),
    "random_": lambda x: x.clone().random_(),
    "random_(to)": lambda x: x.clone().random_(7),
    "random_(from, to)": lambda x: x.clone().random_(3, 12),
    "bernoulli_ of tensors": lambda x: x.clone().bernoulli_(x),
    "randint_like": lambda x: torch.randint_like(x, 7) + torch.randint_like(x, 2, 9),
    "rsample": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
    "max_norm": lambda x: torch.nn.functional.embedding((x * 4).long(), torch.arange(10.0).view(5, 2), max_norm=1.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_many_sizes(name: str) -> None:
    f = DRAWS[name]
    compiled = bytejit.compile(f)
    for n in SIZES:
        x, made = torch.rand(n, 3), []
        for run in (f, compiled):
            torch.manual_seed(n)
            made += [run(x), torch.rand(2)]
        alike(made[2], made[0])
        assert torch.equal(made[3], made[1])
    assert entries(compiled) <= 2


CELL, GRU = torch.nn.LSTMCell(3, 3), torch.nn.GRU(3, 3)
WITHOUT_GRADIENTS: dict[str, tuple[Callable, int]] = {
    "a cell": (CELL, 2),
    "a recurrent layer": (lambda x: GRU(x[None]), 2),
    "resized": (lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"), 2),
    "an op that asks for data": (  # a break, and two sites
        lambda x: (torch.cdist(x, x) + torch.cov(x, fweights=torch.tensor([1, 2, 1]))).sin(),
        4,
    ),
    "segments": (lambda x: torch.segment_reduce(x, "mean", lengths=torch.tensor([2, x.shape[0] - 2]), axis=0) + 1, 2),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_ops_of_many_sizes_without_gradients(name: str, mode: Callable) -> None:
    f, most = WITHOUT_GRADIENTS[name]
    decorated = bytejit.compile(mode()(f), backend="aot_eager")
    around = bytejit.compile(lambda x: f(x), backend="aot_eager")
    bytejit.counters.clear()
    for n in SIZES:
        x = torch.randn(n, 3)
        with mode():
            want, got = f(x), around(x)
        for found in (got, decorated(x)):
            for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, want))):
                alike(a, b)
                assert a.is_inference() == b.is_inference()
    assert entries(around) <= most and entries(decorated) <= most
    assert not bytejit.counters["fallbacks"]
