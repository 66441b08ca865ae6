"""Values added up at places read from memory, sorted first: in Triton's interpreter against eager; which sums are taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both import TRITON
from graphs import aten
from torch import fx

import bytejit
from bytejit.codegen.libraries import sorted_sums
from bytejit.codegen.libraries.choices import Choices
from bytejit.kernels.sorted_sums_triton import add_sorted

pytestmark = [pytest.mark.cxx, pytest.mark.triton, pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")]


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def at(n: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, n, shape, generator=torch.Generator().manual_seed(n))


def put(x: torch.Tensor, v: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    return x.index_put(indices, v, accumulate=True)


HALF = torch.bfloat16
# program, arguments, how many of its sums are sorted
CASES: dict[str, tuple[Callable, tuple[torch.Tensor, ...], int]] = {
    "rows": (put, (r(9, 5), r(30, 5), at(9, 30)), 1),
    "flat": (put, (r(9), r(30), at(9, 30)), 1),
    "from the end": (put, (r(9, 5), r(30, 5), at(9, 30, low=-9)), 1),
    "int32": (put, (r(9, 5), r(30, 5), at(9, 30).int()), 1),
    "one place": (put, (r(9, 5), r(40, 5), torch.full((40,), 3)), 1),
    "one value": (put, (r(300, 5), r(1, 5), at(300, 1)), 1),
    "no value": (put, (r(9, 5), r(0, 5), at(9, 0)), 0),
    "two dims": (put, (r(4, 6, 5), r(30, 5), at(4, 30), at(6, 30)), 1),
    "two dims, one number": (put, (r(4, 6, 5), r(30, 5), at(4, 1), at(6, 30)), 1),
    "broadcast places": (put, (r(4, 6, 5), r(3, 7, 5), at(4, 3, 1), at(6, 7)), 1),
    "broadcast values": (put, (r(9, 5), r(1, 5), at(9, 30)), 1),
    "turned values": (lambda x, v, i: put(x, v.t(), i), (r(9, 5), r(5, 30), at(9, 30)), 1),
    "many columns": (put, (r(3, 700), r(50, 700), at(3, 50)), 1),
    "into zeros": (lambda v, i: put(torch.zeros(9, 5), v, i), (r(30, 5), at(9, 30)), 1),
    "halves": (put, (r(9, 5, dtype=HALF), r(30, 5, dtype=HALF), at(9, 30)), 1),
    "infinite": (put, (r(9, 5), torch.full((30, 5), float("inf")), at(9, 30)), 1),
    "places shared": (lambda x, y, v, i: (put(x, v, i), put(y, v * 2, i)), (r(9, 5), r(9, 5), r(30, 5), at(9, 30)), 2),
    "last dim": (lambda x, v, i: torch.ops.aten.index_put(x, [None, i], v, True), (r(9, 5), r(9, 30), at(5, 30)), 0),
    "float64": (put, (r(9, 5).double(), r(30, 5).double(), at(9, 30)), 0),
    "a mask": (put, (r(9, 5), r(1, 5), at(9, 9) > 4), 0),
    "turned": (lambda x, v, i: put(x.t(), v, i), (r(5, 9), r(30, 5), at(9, 30)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args, sums = CASES[name]
    monkeypatch.setattr(sorted_sums, "_on_gpu", lambda spec: True)
    graph = aten(fn, *args).graph
    sorted_sums.sort_sums(graph, Choices(None, None))
    graph.lint()
    assert len(called(graph, torch.ops.bytejit.add_sorted.default)) == sums
    assert len(called(graph, torch.ops.bytejit.sort_places.default)) == min(sums, 1)
    expected = fn(*args)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is HALF else {"rtol": 1e-5, "atol": 1e-5}
    compiled = bytejit.compile(fn, options={"interpret": True})
    torch.testing.assert_close(compiled(*args), expected, **tolerance)
    assert not bytejit.counters["fallbacks"], bytejit.counters


def test_gradient_of_rows_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_sums, "_on_gpu", lambda spec: True)
    index, table, other = at(9, 4, 4), r(9, 3).requires_grad_(), r(9, 3).requires_grad_()

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[index.view(-1)].view(4, 4, 3).sin() * y[index]).sum()

    fn(table, other).backward()
    expected = table.grad, other.grad
    table.grad = other.grad = None
    bytejit.compile(fn, options={"interpret": True})(table, other).backward()
    torch.testing.assert_close((table.grad, other.grad), expected)
    assert not bytejit.counters["fallbacks"], bytejit.counters


def test_sizes_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """One compile serves all numbers of rows and of places."""
    monkeypatch.setattr(sorted_sums, "_on_gpu", lambda spec: True)

    def fn(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (x[i] * 2 + x[j, None]).sum()

    compiled = bytejit.compile(fn, options={"interpret": True}, dynamic=True)
    for rows, count in ((9, 30), (70, 20), (3, 210)):
        x = r(rows, 5).requires_grad_()
        given = x, at(rows, count, 1), at(rows, count)
        expected = torch.autograd.grad(fn(*given), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(*given), x), expected)
    assert bytejit.counters["graphs"].total() == 1 and not bytejit.counters["externs"], bytejit.counters


@pytest.mark.parametrize("index", [9, -10])
def test_index_out_of_range(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_sums, "_on_gpu", lambda spec: True)
    args = r(9, 5), r(2, 5), torch.tensor([1, index])
    with pytest.raises(IndexError):
        put(*args)
    with pytest.raises(IndexError):
        bytejit.compile(put, options={"interpret": True})(*args)


def test_more_places_than_int32_holds_are_refused() -> None:
    places = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="without bytejit"):
        add_sorted(None, r(1, 1), places, places.long(), 1 << 31)


def called(graph: fx.Graph, target: object) -> list[fx.Node]:
    return [n for n in graph.nodes if n.target is target]
