"""A model that is called with gradients enabled by oversight: the user is told once what it costs, and only then."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.autograd.unused import CALLS_WATCHED
from bytejit.common import caches

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@pytest.fixture(autouse=True)
def unsaid() -> None:
    caches.WARNED.clear()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.sigmoid(self.one(x)).exp().sin().cos().tanh())  # more operations than are timed through torch


def said(use: Callable[[Callable, int], object], backend: str = "aot_eager") -> list[str]:
    """The warnings of twice as many calls as are watched. use(model, i): the i-th."""
    model = bytejit.compile(Net(), backend=backend)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(2 * CALLS_WATCHED):
            kept = use(model, i)  # the last result lives, as in most programs
        del kept
    return [str(w.message) for w in found if w.filename == __file__]


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_is_said_once_with_what_it_costs(backend: str) -> None:
    (text,) = said(lambda model, i: model(X), backend)
    assert text.startswith("bytejit: Net.forward (tests/autograd/test_unused.py:"), text
    assert f"ran {CALLS_WATCHED} times with gradients enabled, and no result went backward: each call keeps " in text, text
    assert " 0 values" not in text and "MiB" in text and "no_grad" in text
    assert not said(lambda model, i: model(X))  # of another model: the process has been told


def held() -> Callable:
    results: list[torch.Tensor] = []

    def use(model: Callable, i: int) -> None:
        results.append(model(X))
        if i == CALLS_WATCHED + 3:
            sum(r.sum() for r in results).backward()

    return use


def without_gradients(model: Callable, i: int) -> torch.Tensor:
    with torch.no_grad():
        return model(X)


USES = {
    "trained": lambda model, i: model(X).sum().backward(),
    "trained now and then": lambda model, i: model(X).sum().backward() if i % 3 == 2 else model(X),
    "gradients by torch.autograd.grad": lambda model, i: torch.autograd.grad(model(X).sum(), model.one.weight),
    "all results at the end": held(),
    "without gradients": without_gradients,
}


@pytest.mark.parametrize("name", USES)
def test_nothing_is_said_where_gradients_are_used(name: str) -> None:
    assert said(USES[name]) == []
