"""Positions are kept in few bytes, and of operands whose shape alone matters nothing is kept. Checked against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

pytestmark = pytest.mark.cxx
WEIGHT = torch.randn(4, 5, 3, 3)
X = (2, 5, 14, 18)

# name -> (function, shape of its argument, bytes that are kept of each element of the argument or result, at most)
LESS: dict[str, tuple[Callable, tuple, int]] = {
    "greatest of windows": (lambda x: F.max_pool2d(x, 3, 2, 1), X, 1),
    "greatest of large windows": (lambda x: F.max_pool2d(x, 9, 1, 4), X, 2),
    "greatest, with their positions": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], X, 1),
    "greatest of volumes": (lambda x: F.max_pool3d(x, 2), (2, 3, 6, 8, 4), 1),
    "greatest of parts": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), X, 1),
    "greatest of a dim": (lambda x: x.max(1)[0], X, 1),
    "least of a dim": (lambda x: x.min(-1)[0], X, 1),
    "in order": (lambda x: x.sort(-1)[0], X, 2),
    "in order, from the last": (lambda x: x.sort(dim=1, descending=True, stable=True)[0], X, 2),
    "the first few": (lambda x: x.topk(3, 1)[0], X, 2),
    "so far": (lambda x: x.cummax(1)[0], X, 2),
    "in the middle": (lambda x: x.median(1)[0], X, 1),
    "the third": (lambda x: x.kthvalue(3, 1)[0], X, 1),
    "means of windows": (lambda x: F.avg_pool2d(x, 3, 2, 1), X, 0),
    "means of volumes": (lambda x: F.avg_pool3d(x, 2), (2, 3, 6, 8, 4), 0),
    "means of parts": (lambda x: F.adaptive_avg_pool2d(x, 5), X, 0),
    "a mirrored border": (lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"), X, 0),
    "a border that goes on": (lambda x: F.pad(x, (1, 2, 1, 0), mode="replicate"), X, 0),
    "a mirrored border of volumes": (lambda x: F.pad(x, (1, 2, 1, 0, 0, 1), mode="reflect"), (2, 3, 6, 8, 4), 0),
    "a border of volumes that goes on": (lambda x: F.pad(x, (1, 2, 1, 0, 0, 1), mode="replicate"), (2, 3, 6, 8, 4), 0),
    "means of a convolution": (lambda x: F.avg_pool2d(F.conv2d(x, WEIGHT), 2), X, 4),
}


def inputs(shape: tuple, last: bool) -> torch.Tensor:
    x = torch.randn(shape)
    form = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)]
    return (x.contiguous(memory_format=form) if last else x).requires_grad_()


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("name", LESS)
def test_less_is_kept(name: str, last: bool) -> None:
    fn, shape, most = LESS[name]
    x = inputs(shape, last)
    got, want = bytejit.compile(fn, fullgraph=True)(x), fn(x)
    elements = max(x.numel(), got.numel())
    assert sum(t.numel() * t.itemsize for t in got.grad_fn.saved_tensors if t is not x) <= most * elements
    assert most == 4 or not any(t.dtype == torch.float32 for t in got.grad_fn.saved_tensors)
    tangent = torch.randn_like(want)
    of_got, of_want = (torch.autograd.grad(y, x, tangent)[0] for y in (got, want))
    torch.testing.assert_close(of_got, of_want)
    assert of_got.stride() == of_want.stride()


@pytest.mark.parametrize("name", LESS)
def test_sizes_that_change(name: str) -> None:
    fn, shape, _ = LESS[name]
    c = bytejit.compile(fn, dynamic=True)
    for n in (2, 3, 5):
        x = torch.randn(n, *shape[1:]).requires_grad_()
        got, want = c(x), fn(x)
        tangent = torch.randn_like(want)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, tangent)[0] for y in (got, want)))


def test_positions_of_many_points_take_more_bytes() -> None:
    x = torch.randn(1, 1, 200, 200).requires_grad_()
    y = bytejit.compile(lambda x: F.max_pool2d(x, 2))(x)
    assert [t.dtype for t in y.grad_fn.saved_tensors] == [torch.int32]


def test_positions_that_are_returned_are_whole() -> None:
    fn = lambda x: F.max_pool2d(x, 2, return_indices=True)
    x = inputs(X, False)
    got, want = bytejit.compile(fn)(x), fn(x)
    assert torch.equal(got[1], want[1]) and got[1].dtype == torch.int64
    torch.testing.assert_close(*(torch.autograd.grad(y[0].sum(), x)[0] for y in (got, want)))


@pytest.mark.parametrize("name", ["greatest of windows", "means of windows", "a mirrored border", "in order"])
@pytest.mark.parametrize("through_data", [False, True])
def test_what_eager_keeps_may_not_be_written(name: str, through_data: bool) -> None:
    fn, shape, _ = LESS[name]
    said = []
    for f in (bytejit.compile(fn), fn):
        torch.manual_seed(0)
        leaf = inputs(shape, False)
        x = leaf * 1
        y = f(x)
        with torch.no_grad():
            (x.data if through_data else x).add_(1)
        try:
            said.append(torch.autograd.grad(y.sum(), leaf)[0])
        except RuntimeError as error:
            said.append(str(error)[:80])
    assert type(said[0]) is type(said[1])
    torch.testing.assert_close(*said) if isinstance(said[0], torch.Tensor) else None


def test_gradients_of_gradients() -> None:
    fn = lambda x: F.avg_pool2d(x, 2).square().sum()
    x, found = inputs(X, False), []
    for f in (bytejit.compile(fn), fn):
        (first,) = torch.autograd.grad(f(x), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*found)
