"""Sums of products that become one product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit
from bytejit.backends.surround import fakes_of
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.sums_of_products import join_sums

r = torch.randn


def added(xs: list, ys: list, z: torch.Tensor) -> torch.Tensor:
    """Products of transposed and plain matrices, and a matrix among them."""
    total = xs[0].t() @ ys[0]
    for x, y in zip(xs[1:3], ys[1:3]):
        total = total + x.t() @ y
    total = total + z
    for x, y in zip(xs[3:], ys[3:]):
        total = total + x.t() @ y
    return total * 2


def fresh(n: int, rows: int, inner: int, dtype: torch.dtype = torch.float32) -> tuple:
    return [r(inner, rows).to(dtype) for _ in range(n)], [r(inner, 40).to(dtype) for _ in range(n)], r(rows, 40).to(dtype)


def products_of(f: Callable, *args: object) -> int:
    """How many products are left of a program."""
    found = []

    def backend(gm, examples):
        aten = normalise(gm, fakes_of(gm))
        join_sums(aten.graph, Choices(None, None))
        aten.graph.lint()
        found.append(sum(n.target is torch.ops.aten.mm.default for n in aten.graph.nodes))
        return gm.forward

    bytejit.compile(f, backend=backend)(*args)
    return found[0]


@pytest.mark.parametrize(
    ("n", "rows", "inner", "left"),
    [(6, 30, 4, 1), (4, 30, 4, 1), (3, 30, 4, 3), (6, 30, 50, 6)],
    ids=["six", "four", "too few", "operands larger than results"],
)
def test_what_is_joined(n: int, rows: int, inner: int, left: int) -> None:
    assert products_of(added, *fresh(n, rows, inner)) == left


def test_transposes_of_products_are_joined() -> None:
    """As the gradients of a weight that is used many times are"""

    def turned(xs, ys, z):
        total = z.t()
        for x, y in zip(xs, ys):
            total = total + (x.t() @ y).t()
        return total

    def twice(xs, ys, z):
        total = z
        for x, y in zip(xs, ys):
            total = total + (x.t() @ y).t().t()
        return total

    assert products_of(turned, *fresh(5, 30, 4)) == products_of(twice, *fresh(5, 30, 4)) == 1


def test_what_is_read_elsewhere_or_of_another_dtype_stays() -> None:
    def shown(xs, ys, z):
        first = xs[0].t() @ ys[0]
        return added(xs, ys, z) + first, first

    assert products_of(shown, *fresh(5, 30, 4)) == 2  # the one that is shown, and the others' own
    assert products_of(added, *fresh(5, 30, 4, torch.float64)) == 5


@pytest.mark.cxx
def test_sums_are_as_eager() -> None:
    """Also turned, and as a weight's gradient in a recurrent network"""

    def both(xs, ys, z):
        total = z.t()
        for x, y in zip(xs, ys):
            total = total + (x.t() @ y).t()
        return added(xs, ys, z), added(xs, ys, z).t(), total

    args = fresh(6, 30, 4)
    for a, b in zip(bytejit.compile(both, fullgraph=True)(*args), both(*args), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    cell, steps = nn.RNNCell(8, 16), r(5, 3, 8)

    def loss(cell, steps):
        h = steps.new_zeros(3, 16)
        for x in steps:
            h = cell(x, h)
        return h.square().sum()

    weights = list(cell.parameters())
    wanted = torch.autograd.grad(loss(cell, steps), weights)
    for a, b in zip(torch.autograd.grad(bytejit.compile(loss)(cell, steps), weights), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()
