"""Weights written as a direction and a length: kernels, in both passes, as near to float64 as eager's."""

from __future__ import annotations

import pytest
import torch

import bytejit

pytestmark = pytest.mark.cxx


def first(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch._weight_norm(v, g, 0)


def last(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch._weight_norm(v, g, v.dim() - 1)


def middle(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch._weight_norm(v, g, 1)


def passes(program, v: torch.Tensor, g: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients of both."""
    v, g = v.detach().requires_grad_(), g.detach().requires_grad_()
    found = program(v, g)
    return [found.detach(), *torch.autograd.grad(found, (v, g), weights.to(found.dtype))]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (1, 9), (20, 33), (6, 5, 7), (4, 3, 2, 5)])
@pytest.mark.parametrize("program", [first, last, middle])
def test_both_passes(program, shape, dtype) -> None:
    """As near to float64 as eager, in eager's dtypes and layouts, in kernels."""
    if program is middle and len(shape) < 3:
        pytest.skip("it has no middle")
    d = {first: 0, last: len(shape) - 1, middle: 1}[program]
    v, weights = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    g = (torch.rand([n if i == d else 1 for i, n in enumerate(shape)]) + 0.1).to(dtype)
    exact = passes(program, v.double(), g.double(), weights)
    expected = passes(program, v, g, weights)
    found = passes(bytejit.compile(program), v, g, weights)
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"]
    for x, y, e in zip(found, expected, exact):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        bound = 2 * (y.double() - e).abs().max() + torch.finfo(dtype).eps * e.abs().max().clamp(min=1)  # some gradients are zero
        assert (x.double() - e).abs().max() <= bound


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_odd_numbers(value) -> None:
    """A norm of zero, of infinity and of none: as eager's."""
    v, g = torch.randn(3, 4), torch.ones(3, 1)
    v[1] = value
    weights = torch.randn(3, 4)
    for x, y in zip(passes(bytejit.compile(first), v, g, weights), passes(first, v, g, weights)):
        torch.testing.assert_close(x, y, equal_nan=True)


def test_a_strided_weight() -> None:
    """A weight in another layout than row-major."""
    v, g = torch.randn(6, 5, 7).transpose(0, 1), torch.rand(5, 1, 1)
    torch.testing.assert_close(bytejit.compile(first)(v, g), first(v, g))


def test_layers_with_sizes_that_change() -> None:
    """`torch.nn.utils.parametrizations.weight_norm` in a training step, batch sizes changing."""
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 6, 3))
    compiled = bytejit.compile(layer)
    for n in (2, 3, 5):
        x = torch.randn(n, 4, 10)
        want = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
        got = torch.autograd.grad(compiled(x).square().sum(), list(layer.parameters()))
        torch.testing.assert_close(got, want)
