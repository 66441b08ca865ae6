"""Operators called with sizes that grow, with gradients: one compile, one more for symbolic sizes, then none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    "pinv": (torch.linalg.pinv, lambda n: (r(n, 3),)),
    "pinv of wide matrices": (torch.linalg.pinv, lambda n: (r(2, 3, n),)),
}


def leaves(args: tuple) -> tuple:
    return tuple(a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)


def alike(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, check_stride=True, rtol=1e-4, atol=1e-5)


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
        for out in (want, got):
            out.backward(seed)
        for a, b in zip(mine, plain):
            if isinstance(a, torch.Tensor) and a.requires_grad:
                alike(a.grad, b.grad)
        if n == SIZES[-1]:
            assert entries(compiled) <= 2
