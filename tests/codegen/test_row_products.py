"""One row times a matrix as a sum, in Triton's interpreter, against eager; which products are taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from both import TRITON
from graphs import aten
from torch import fx, nn

import bytejit
from bytejit.codegen.libraries import row_products
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.products import PRODUCTS

pytestmark = [pytest.mark.cxx, pytest.mark.triton, pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")]


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


HALF = torch.bfloat16
# program, arguments, how many of its products are sums
CASES: dict[str, tuple[Callable, tuple[torch.Tensor, ...], int]] = {
    "linear": (lambda x, w: F.linear(x, w), (r(1, 1, 40), r(24, 40)), 1),
    "bias": (lambda x, w, b: F.linear(x, w, b).relu(), (r(1, 40), r(24, 40), r(24)), 1),
    "vector": (lambda x, w: F.linear(x, w), (r(40), r(24, 40)), 1),
    "product": (lambda x, w: x @ w.t(), (r(1, 40), r(24, 40)), 1),
    "halves": (lambda x, w, b: F.linear(x, w, b), (r(1, 40, dtype=HALF), r(24, 40, dtype=HALF), r(24, dtype=HALF)), 1),
    "f16": (lambda x, w: F.linear(x, w) * 2, (r(1, 40, dtype=torch.half), r(24, 40, dtype=torch.half)), 1),
    "norm before": (lambda x, v, w: F.linear(F.rms_norm(x, (40,), v), w), (r(1, 40), r(40), r(24, 40)), 1),
    "gate and up": (
        lambda x, g, u, w: F.linear(F.silu(x @ g.t()) * (x @ u.t()), w),
        (r(1, 40), r(24, 40), r(24, 40), r(9, 24)),
        3,
    ),
    "int8 weight": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        (r(1, 40, dtype=HALF), torch.arange(-100, 92, dtype=torch.int8).repeat(5).view(24, 40), r(24, dtype=HALF)),
        1,
    ),
    "long": (lambda x, w: F.linear(x, w), (r(1, 5000), r(3, 5000)), 1),
    "two rows": (lambda x, w: F.linear(x, w), (r(2, 40), r(24, 40)), 0),
    "columns": (lambda x, w: x @ w, (r(1, 40), r(40, 24)), 0),
    "float64": (lambda x, w: F.linear(x, w), (r(1, 40).double(), r(24, 40).double()), 0),
    "batch": (lambda x, w: x @ w.mT, (r(3, 1, 40), r(3, 24, 40)), 0),
    "infinite": (lambda x, w: F.linear(x, w), (torch.full((1, 40), float("inf")), r(24, 40)), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args, sums = CASES[name]
    monkeypatch.setattr(row_products, "LEAST", 1)
    graph = aten(fn, *args).graph
    before = products(graph)
    row_products.take_row_products(graph, Choices(None, None))
    assert before - products(graph) == sums
    compiled = bytejit.compile(fn, options={"interpret": True})
    with torch.no_grad():
        expected, got = fn(*args), compiled(*args)
    assert got.stride() == expected.stride() and got.dtype is expected.dtype
    narrow = got.dtype in (torch.half, HALF)
    torch.testing.assert_close(
        got, expected, equal_nan=True, **({"rtol": 2e-2, "atol": 5e-2} if narrow else {"rtol": 1e-4, "atol": 1e-4})
    )
    assert not bytejit.counters["fallbacks"], bytejit.counters


def products(graph: fx.Graph) -> int:
    return sum(n.target in PRODUCTS or n.target is torch.ops.aten.linear.default for n in graph.nodes)


def test_small_weights_stay_products() -> None:
    graph = aten(lambda x, w: F.linear(x, w), r(1, 40), r(24, 40)).graph
    before = products(graph)
    row_products.take_row_products(graph, Choices(None, None))
    assert products(graph) == before


@pytest.mark.parametrize(("rows", "k"), [(700, 96), (1100, 1000), (700, 5000)])
def test_rows_share_a_program(rows: int, k: int) -> None:
    """Several rows a program, whose last is cut; persistent and looped"""
    linear, x = nn.Linear(k, rows), r(1, k)
    with torch.no_grad():
        compiled = bytejit.compile(linear, options={"interpret": True})
        torch.testing.assert_close(compiled(x), linear(x), rtol=1e-4, atol=1e-4)
