"""Close to the recursion limit: eager's results and eager's errors at the same depths, and the limit stays what it was."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

import bytejit

LIMIT = 250  # frames below the test's own


def calls_a_method(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def only_operators(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


def handles(x: torch.Tensor) -> object:
    try:
        return x.sin().relu()
    except RecursionError:
        return x - 1


def closes(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y * x

    return inner(x) + 1


def no_work(x: torch.Tensor) -> torch.Tensor:
    return x


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1


def at(n: int, g: Callable, x: torch.Tensor) -> object:
    return g(x) if n == 0 else at(n - 1, g, x)


def outcome(depth: int, g: Callable, x: torch.Tensor) -> object:
    try:
        return at(depth, g, x).tolist()
    except RecursionError:
        return RecursionError


def frames() -> int:
    frame, n = sys._getframe(), 0
    while frame is not None:
        frame, n = frame.f_back, n + 1
    return n


@pytest.mark.parametrize("when", ["compiled there", "compiled before"])
@pytest.mark.parametrize(
    "f",
    [calls_a_method, only_operators, breaks, handles, closes, no_work, Net()],
    ids=lambda f: getattr(f, "__name__", "a module"),
)
def test_each_depth(f: Callable, when: str) -> None:
    """Each of the last 60 frames: where eager returns, so does what is compiled. Inlined calls need no frames: there,
    what is compiled may return where eager does not"""
    x, before = torch.ones(2), sys.getrecursionlimit()
    wrong = []
    for left in range(60):
        bytejit.reset()
        c = bytejit.compile(f, backend="eager")
        if when == "compiled before":
            c(x)
            c(x)
        limit = frames() + LIMIT
        sys.setrecursionlimit(limit)
        try:
            plain, ours = outcome(LIMIT - left, f, x), outcome(LIMIT - left, c, x)
            after = sys.getrecursionlimit()
        finally:
            sys.setrecursionlimit(before)
        if after != limit or plain is not RecursionError and plain != ours:
            wrong.append((left, plain, ours, after - limit))
        assert torch.equal(c(x), f(x))
    assert not wrong


def test_a_compile_that_raises_puts_the_limit_back() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        raise MemoryError

    before = sys.getrecursionlimit()
    with pytest.raises(MemoryError):
        bytejit.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert sys.getrecursionlimit() == before
