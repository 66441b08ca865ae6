"""Products of few terms as pointwise sums: equal to the product, strides kept; which ones are taken."""

from __future__ import annotations

import pytest
import torch
from graphs import aten
from marks import interpreted

import bytejit
from bytejit.codegen.aten import thin_products
from bytejit.codegen.aten.thin_products import expand_thin_products

ops = torch.ops.aten


def r(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


CASES = {
    "outer": (lambda x, y: x @ y, (r(300, 1), r(1, 400)), True),
    "batch": (lambda x, y: x @ y, (r(2, 300, 3), r(2, 3, 400)), True),
    "transposed": (lambda x, y: x @ y.mT, (r(2, 300, 3), r(2, 400, 3)), True),
    "both": (lambda x, y: x.t() @ y.t(), (r(8, 500), r(600, 8)), True),
    "nine terms": (lambda x, y: x @ y, (r(500, 9), r(9, 600)), False),
    "no terms": (lambda x, y: x @ y, (r(500, 0), r(0, 600)), False),
    "few results": (lambda x, y: x @ y, (r(100, 2), r(2, 100)), False),
    "one column": (lambda x, y: x @ y, (r(100000, 2), r(2, 1)), False),
    "halves": (lambda x, y: x @ y, (r(300, 2, dtype=torch.float16), r(2, 400, dtype=torch.float16)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_product(name: str) -> None:
    fn, args, taken = CASES[name]
    made = aten(fn, *args)
    expand_thin_products(made.graph)
    assert any(n.target in thin_products.PRODUCTS for n in made.graph.nodes) != taken
    got = torch.fx.Interpreter(torch.fx.GraphModule({}, made.graph)).run(*args)[0]
    assert got.stride() == fn(*args).stride()
    torch.testing.assert_close(got, fn(*args))


DISTANCES = {
    "matrices": (r(30, 3), r(40, 3)),
    "batches": (r(2, 1, 30, 5), r(4, 40, 5)),
    "far": (r(30, 3) + 1e3, r(40, 3) + 1e3),
    "no columns": (r(30, 0), r(40, 0)),
}


@pytest.mark.cxx
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_of_all_pairs(name: str, dtype: torch.dtype) -> None:
    """By one product as eager has it, nothing through torch; gradients too"""
    args = [t.to(dtype).requires_grad_() for t in DISTANCES[name]]

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist") * 2

    compiled = bytejit.compile(fn)
    expected, got = fn(*args), compiled(*args)
    assert got.stride() == expected.stride()
    # products of numbers near 1e6 are taken from each other: as far from float64 as eager is
    tol = 1e-1 if name == "far" and dtype is torch.float32 else 1e-5
    torch.testing.assert_close(got, expected, rtol=tol, atol=tol)
    if name not in ("far", "no columns"):
        wanted = torch.autograd.grad(expected.square().sum(), args)
        for a, b in zip(torch.autograd.grad(got.square().sum(), args), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert not bytejit.counters["fallbacks"], bytejit.counters
    assert name == "no columns" or not any("dist.default" in k for k in bytejit.counters["externs"])


@interpreted
def test_a_linear_layer_with_a_vector_as_weight() -> None:
    """No product of matrices, which the choice of libraries took it for"""
    x = torch.randn(32)
    compiled = bytejit.compile(lambda x: torch.nn.functional.linear(x, x * 2) + 1, options={"interpret": True})
    torch.testing.assert_close(compiled(x), torch.nn.functional.linear(x, x * 2) + 1)
