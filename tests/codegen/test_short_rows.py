"""Reductions of few elements are unrolled, and the loop around them is vectorized. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dynamic import agree
from graphs import same
from test_emit_cpp import compiled

import bytejit
from bytejit.codegen.loops.plan import Call

r = torch.randn
NAN = torch.where(r(90, 5) > 1, float("nan"), r(90, 5))
SHORT: dict[str, tuple[Callable, tuple]] = {
    "distances": (lambda x: (x[:, None] - x).square().sum(-1).add(1e-3).sqrt(), (r(70, 3),)),
    "norms": (lambda x: x / x.norm(dim=-1, keepdim=True), (r(100, 4),)),
    "a softmax": (lambda x: x.softmax(-1), (r(100, 4),)),
    "a layer norm": (lambda x, w: F.layer_norm(x, (3,), w), (r(100, 3), r(3))),
    "two axes": (lambda x: x.sum((1, 3)), (r(64, 2, 9, 3),)),
    "columns": (lambda x: (x.sum(0), x.amax(0)), (r(7, 300),)),
    "the largest, NaN too": (lambda x: (x.amax(1), x.amin(1), x.relu().amax(1)), (NAN,)),
    "products": (lambda x: x.prod(1) * 2, (r(80, 5),)),
    "of 16 bits": (lambda x: (x * 2).sum(1), (r(80, 5).bfloat16(),)),
    "of float64": (lambda x: x.exp().sum(1).log(), (r(80, 5).double(),)),
    "of whole numbers": (lambda x: (x.sum(1), x.prod(1), x.amax(1)), (torch.randint(-9, 9, (80, 5)),)),
    "means of images": (lambda x: x.mean(1, keepdim=True) - x, (r(2, 3, 20, 30),)),
    "shifted parts": (lambda x: F.pad(x.softmax(1)[:, 1:], (1, 0)).amax(1) + x.softmax(1)[:, 0], (r(90, 4),)),
    "parts": (lambda x: torch.cat([x, x[:, :2]], 1).sum(1), (r(90, 3),)),
}


def written_and_read(x: torch.Tensor, g: torch.Tensor, m: torch.Tensor, i: torch.Tensor) -> tuple:
    """The first value is stored for the last result, and read under a mask by what comes between."""
    t = g * x.cos()
    inside = t[1:3].masked_fill(m[:, None], 0)
    return (t.slice_scatter(torch.zeros_like(inside), 0, 1, 3) + torch.zeros_like(t).slice_scatter(inside, 0, 1, 3)) * 2, t[:, i]


SHORT["what an earlier nest stored"] = (written_and_read, (r(4, 20, 5), r(4, 20, 5), torch.arange(20) % 2 == 0, torch.arange(3)))
LOOPS: dict[str, tuple[Callable, tuple]] = {
    "long": (lambda x: x.sum(1), (r(100, 9),)),
    "many results": (lambda x: x.softmax(1), (r(100, 5),)),
    "few rows": (lambda x: x.sum(1), (r(20, 3),)),
    "places": (lambda x: x.argmax(1), (r(100, 3),)),
    "running": (lambda x: x.cumsum(1), (r(100, 3),)),
    "nothing": (lambda x: (x.sum((1, 2)), x.prod(1)), (r(100, 0, 2),)),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_rows_are_unrolled(name: str) -> None:
    fn, args = SHORT[name]
    _, _, plan = same(fn, *args)
    assert not any(p.reduces for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests)


@pytest.mark.parametrize("name", LOOPS)
def test_others_stay_loops(name: str) -> None:
    fn, args = LOOPS[name]
    _, _, plan = same(fn, *args)
    assert any(p.reduces for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests)


@pytest.mark.cxx
@pytest.mark.parametrize("name", SHORT)
def test_compiled(name: str) -> None:
    fn, args = SHORT[name]
    expected = fn(*args)
    got = compiled(fn, args).call(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def attracted(x: torch.Tensor) -> torch.Tensor:
    d = x - x[:, None]
    return (d * (d.square().sum(-1, keepdim=True) + 0.01).pow(-1.5)).sum(1)


TOGETHER: dict[str, tuple[Callable, tuple]] = {
    "forces": (attracted, (r(40, 3),)),
    "colours along a ray": (lambda s, c: (s.exp()[..., None] * c).sum(1), (r(20, 48), r(20, 48, 3))),
    "the largest": (lambda s, c: (s.exp()[..., None] * c).amax(1) * 2, (r(20, 48), r(20, 48, 3))),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_points_that_share_costly_work_are_computed_together(name: str) -> None:
    fn, args = TOGETHER[name]
    _, _, plan = same(fn, *args)
    assert sum(len(p.reduces) for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests) in (3, 4)


@pytest.mark.cxx
@pytest.mark.parametrize("name", TOGETHER)
def test_compiled_together(name: str) -> None:
    fn, args = TOGETHER[name]
    torch.testing.assert_close(compiled(fn, args).call(*args)[0], fn(*args))


@pytest.mark.cxx
def test_a_place_out_of_range_raises() -> None:
    graph = compiled(lambda i, w: w[i].sum(1), (torch.zeros(90, 3, dtype=torch.int64), r(4)))
    with pytest.raises(IndexError, match="out of range"):
        graph.call(torch.full((90, 3), 4), r(4))


@pytest.mark.cxx
def test_any_number_of_rows() -> None:
    fn = lambda x: (x[:, None] - x).square().sum(-1).sqrt()
    agree(fn, lambda n: (r(n, 3),), [["n", None]], [(n,) for n in (70, 90, 1, 33)])


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_of_zeros_below_0(n: int, dtype: torch.dtype) -> None:
    """It is 0.0, as 1 / x shows."""

    def program(x: torch.Tensor) -> tuple:
        y = torch.stack([x] * n).sum(0)
        return y, 1 / y, (x.unflatten(0, (-1, n)) * 1).sum(1), x.unflatten(0, (-1, n)).mean(1)

    x = torch.full((24 * 64, 2), -0.0, dtype=dtype)
    for got, want in zip(bytejit.compile(program)(x), program(x), strict=True):
        assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())
