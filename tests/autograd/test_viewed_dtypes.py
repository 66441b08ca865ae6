"""Outputs and gradients that are views of memory of another dtype: complex numbers seen as floats and the other way, bits as
integers. They are compiled, and share the memory that eager's share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

from .beside import BACKENDS, beside

pytestmark = [pytest.mark.pairs, pytest.mark.parametrize("backend", BACKENDS)]
fft = torch.fft.fft


def as_floats(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.rfft(x * w))


def gradient_of_floats(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As a Fourier layer whose weights are pairs of floats: their gradient is a complex result seen as floats"""
    return torch.fft.irfft(fft(x)[:, :4] * torch.view_as_complex(w.view(4, 2)), n=8)


@pytest.mark.parametrize("f", [as_floats, gradient_of_floats])
def test_gradients(f: Callable, backend: str) -> None:
    def drive(f: Callable, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = f(x, w)
        out.square().sum().backward()
        return out.detach()

    beside(backend, f, lambda: (torch.randn(3, 8), torch.randn(8, requires_grad=True)), drive)


VIEWS: list[Callable] = [
    lambda x: torch.view_as_real(fft(x).t() * 2)[1:, 1:, 1],
    lambda x: torch.view_as_real(fft(x)[1:] * 2)[..., 1],
    lambda x: torch.view_as_complex(x.view(4, 3, 2))[1:, 2],
    lambda x: torch.view_as_complex((x * 2).view(4, 3, 2))[1:, 2],
    lambda x: (x * 2).view(torch.int16)[:, 3:],
    lambda x: (x * 2).view(torch.complex64).real,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view: Callable, dynamic: bool, backend: str) -> None:
    """A view of what is returned as well: the same memory, the same layout"""
    bytejit.reset()
    bytejit.counters["fallbacks"].clear()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = view(x)
        return seen, seen[:1]

    x = torch.randn(4, 6)
    for t in (x, x + 1):
        for a, b in zip(f(t), bytejit.compile(f, backend=backend, dynamic=dynamic)(t)):
            assert (a.shape, a.stride(), a.dtype, a.storage_offset()) == (b.shape, b.stride(), b.dtype, b.storage_offset())
            torch.testing.assert_close(a, b)
    assert not bytejit.counters["fallbacks"]


def test_both_are_seen(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = fft(x) * 2
        return y, torch.view_as_real(y)[..., 1]

    y, imaginary = bytejit.compile(f, backend=backend)(torch.randn(4, 6))
    y.zero_()
    assert not imaginary.any()
