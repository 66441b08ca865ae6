"""Another value on a diagonal: a kernel for all points and one for those of the diagonal. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import same
from torch import Tensor

import bytejit
from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.simplify import kernel_roots

SQUARE, WIDE, CUBE = torch.randn(131, 131), torch.randn(70, 300), torch.randn(9, 49, 49)


def places() -> tuple[Tensor, Tensor]:
    """Rows and columns of SQUARE."""
    return torch.arange(131)[:, None], torch.arange(131)


def where_equal(x: Tensor) -> Tensor:
    """Other values where two axes are equal, on the main diagonal and beside it."""
    i, j = places()
    return torch.where(i == j, x * 3, torch.where(i == j + 1, -x, x.abs()))


APART: dict[str, tuple[Callable, Tensor]] = {
    "embedded": (torch.diag_embed, torch.randn(5, 131)),
    "embedded, moved": (lambda x: torch.diag_embed(x, 3, 0, 2), torch.randn(5, 131)),
    "embedded, below": (lambda x: torch.diag_embed(x, -7), torch.randn(5, 131)),
    "a matrix of a vector": (torch.diag, torch.randn(200)),
    "scattered": (lambda x: x.diagonal_scatter(x[:70, 1] * 2, 2), WIDE),
    "scattered, below": (lambda x: x.diagonal_scatter(x[:40, 1] * 2, -30), WIDE),
    "of batches": (lambda x: x.diagonal_scatter(x[:, :, 3], 0, 1, 2), CUBE),
    "of the first axes": (lambda x: x.diagonal_scatter(x[0, :, :49].t(), 0, 0, 1), CUBE.transpose(0, 2)),
    "two in one": (where_equal, SQUARE),
    "turned": (lambda x: x + torch.eye(131).to(x.dtype).flip(1), SQUARE),
    "beside nothing": (lambda x: torch.where(places()[0] == places()[1] + 500, x, -x), SQUARE),
    "an identity added": (lambda x: x + torch.eye(131).to(x.dtype), SQUARE),
    "zeros of the diagonal": (lambda x: x - torch.diag(x.diagonal()), SQUARE),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", APART)
def test_values_on_a_diagonal(name: str, dtype: torch.dtype) -> None:
    fn, x = APART[name]
    special = (x * 8).to(dtype)
    if dtype.is_floating_point:
        special[(0,) * (x.dim() - 1)][:4] = torch.tensor([float("nan"), float("inf"), -0.0, float("-inf")])
    _, _, plan = same(fn, special)
    assert len(plan.steps) > 1 or name == "beside nothing"


def test_few_elements_stay_one_kernel() -> None:
    _, _, plan = same(torch.diag, torch.randn(20))
    assert len(plan.steps) == 1


@pytest.mark.parametrize("shape", [(64, 48, 20), (48, 64, 20), (20, 64, 64), (0, 64, 64)])
@pytest.mark.parametrize("axes", [(0, 1, 0), (0, 1, 5), (1, 2, -3), (0, 2, 1), (2, 0, 0)])
def test_gradients_of_diagonals(shape: tuple[int, ...], axes: tuple[int, int, int]) -> None:
    a, b, offset = axes
    x = torch.randn(shape, requires_grad=True)
    make = lambda x: x.diagonal(offset, a, b).sin()
    weights = torch.randn_like(make(x))
    expected = torch.autograd.grad(make(x), x, weights)[0]
    got = torch.autograd.grad(bytejit.compile(make, fullgraph=True)(x), x, weights)[0]
    torch.testing.assert_close(got, expected)


def test_what_the_diagonal_reads_is_not_overwritten_before() -> None:
    def fn(a: Tensor) -> Tensor:
        i, j = places()
        t = a @ a
        return torch.where(i == j, t, t * 3) @ a  # the result may lie in the memory of t

    torch.testing.assert_close(bytejit.compile(fn, fullgraph=True)(SQUARE), fn(SQUARE), rtol=1e-3, atol=1e-3)


def test_written_inputs() -> None:
    def fn(a: Tensor) -> Tensor:
        i, j = places()
        a.copy_(torch.where(i == j, a + 1, a * 2))
        return a * 2

    a, b = SQUARE.clone(), SQUARE.clone()
    torch.testing.assert_close(bytejit.compile(fn, fullgraph=True)(a), fn(b))
    torch.testing.assert_close(a, b)


def test_loads_beside_the_diagonal_keep_their_masks() -> None:
    def fn(x: Tensor) -> Tensor:
        i, j = places()
        return torch.where(i == j, 0, torch.cat([x[:, 1:], x[:, :1]], 1))

    same(fn, SQUARE)


def test_the_kernel_of_all_points_has_no_condition() -> None:
    _, _, plan = same(torch.diag_embed, torch.randn(4, 128))
    first = plan.steps[0].kernel
    assert not any(e.kind in ("op", "load") for e in walk(kernel_roots(first)))
