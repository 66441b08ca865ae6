"""`x[mask] = value` with a gradient of the value is compiled: of a value that broadcasts over the places, and of one for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

from .beside import BACKENDS, beside


def whole(y: torch.Tensor, mask: torch.Tensor, p: torch.Tensor) -> None:
    y[mask] = p


def behind(y: torch.Tensor, mask: torch.Tensor, p: torch.Tensor) -> None:
    y[:, mask] = p


def picked(y: torch.Tensor, mask: torch.Tensor, p: torch.Tensor) -> None:
    y[1, mask] = p


def last(y: torch.Tensor, mask: torch.Tensor, p: torch.Tensor) -> None:
    y[..., mask] = p


def between(y: torch.Tensor, mask: torch.Tensor, p: torch.Tensor) -> None:
    y[1:3, mask, None] = p


CASES = [
    (whole, (4, 6), (), 0),
    (whole, (4, 6, 5), (1,), 0),
    (whole, (4, 6), (5,), 0),
    (whole, (4,), (1, 6, 5), 0),
    (whole, (4,), (1, 1, 5), 0),
    (behind, (6,), (4, 1, 5), 0),
    (behind, (6, 5), (4, 1), 0),
    (picked, (6,), (5,), 0),
    (last, (5,), (4, 6, 1), 0),
    (last, (6, 5), (4, 1), 0),
    (between, (6,), (5,), 0),
    (whole, (4, 6), (12, 5), 0),  # a row for each place
    (whole, (4, 6, 5), (60,), 0),
    (whole, (4,), (2, 6, 5), 0),
    (whole, (4, 6), (1, 12, 1), 0),
    (behind, (6,), (4, 3, 5), 0),
    (behind, (6,), (3, 1), 0),
    (behind, (6, 5), (1, 15), 0),
    (last, (5,), (6, 3), 0),
    (picked, (6,), (3, 5), 0),
    (between, (6,), (2, 3, 1, 5), 0),
    (whole, (4, 6), (11, 5), None),  # not as many
    (whole, (4, 6), (4,), None),  # eager refuses it
    (behind, (6,), (3, 1, 5), None),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write, mask, value, torch_runs", CASES)
def test_values_and_gradients(backend: str, write: Callable, mask: tuple, value: tuple, torch_runs: int | None) -> None:
    def f(x: torch.Tensor, m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        y = x * 2
        write(y, m, p)
        return y.sin()

    def drive(f: Callable, x: torch.Tensor, m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        out = f(x, m, p)
        out.square().sum().backward()
        return out

    def inputs(no_place: bool = False) -> tuple:
        every_second = torch.arange(torch.Size(mask).numel()).view(mask) % 2 == 0
        every_second &= not no_place
        return torch.randn(4, 6, 5, requires_grad=True), every_second, torch.randn(value, requires_grad=True)

    beside(backend, f, inputs, drive, torch_runs=torch_runs)
    if not torch_runs:
        beside(backend, f, lambda: inputs(no_place=True), drive, torch_runs=torch_runs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_written_later(backend: str) -> None:
    """The gradient reads the mask: eager's backward pass refuses one that has changed."""

    def f(x: torch.Tensor, m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[m] = p
        m.logical_not_()
        return y

    def drive(f: Callable, x: torch.Tensor, m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        out = f(x, m, p)
        out.sum().backward()
        return out

    def inputs() -> tuple:
        return torch.randn(4, 5), torch.arange(4) > 1, torch.randn(5, requires_grad=True)

    beside(backend, f, inputs, drive, torch_runs=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_in_a_module(backend: str) -> None:
    """Masked frames get a learned vector, as speech models have it."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Parameter(torch.randn(5))
            self.out = torch.nn.Linear(5, 5)

        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            x = self.out(x)
            x[m] = self.embed.to(x.dtype)
            return self.out(x)

    def drive(f: Callable, module: torch.nn.Module, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        out = f(module, x, m)
        out.square().sum().backward()
        return out

    beside(backend, lambda module, x, m: module(x, m), lambda: (Masked(), torch.randn(2, 6, 5), torch.rand(2, 6) > 0.5), drive)


def masked(x: torch.Tensor, m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[m] = p
    return y.sin()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend: str) -> None:
    compiled = bytejit.compile(masked, backend=backend)
    bytejit.counters["fallbacks"].clear()
    for n, width in ((3, 4), (5, 6), (7, 9), (8, 1)):
        x, m, p = torch.randn(2, n, width), torch.rand(2, n) > 0.5, torch.randn(width, requires_grad=True)
        out = compiled(x, m, p)
        (got,) = torch.autograd.grad(out.square().sum(), p)
        expected = masked(x, m, p)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(got, *torch.autograd.grad(expected.square().sum(), p))
    assert not bytejit.counters["fallbacks"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_for_each_place_of_many_masks(backend: str) -> None:
    compiled = bytejit.compile(masked, backend=backend)
    for n, count in ((6, 3), (6, 4), (7, 2), (9, 5), (9, 1), (9, 0), (5, 5), (8, 6)):
        x, m = torch.randn(n, 4, requires_grad=True), torch.arange(n).flip(0) < count
        p = torch.randn(count, 4, requires_grad=True)
        out, expected = compiled(x, m, p), masked(x, m, p)
        torch.testing.assert_close(out, expected)
        pairs = [torch.autograd.grad(o.square().sum(), (x, p)) for o in (out, expected)]
        torch.testing.assert_close(*pairs)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(torch.randn(8, 4, requires_grad=True), torch.arange(8) < 5, torch.randn(6, 4, requires_grad=True))
