"""Sizes that differ while tracing and are equal, or too small, in a later call: what eager then returns as a view, or refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

pytestmark = pytest.mark.cxx


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.t().reshape(x.shape)
    y.add_(1)
    return y


def written_inside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x * 2
    z.t().reshape(z.shape).add_(1)
    return z, z.t().flatten()


VIEWS = {
    "a written view": written,
    "a written view of what was made": written_inside,
    "a view that is returned": lambda x: x.t().reshape(x.shape),
    "two dims of the same size": lambda x: x.t().reshape(x.shape[0], x.shape[1]).mul_(2),
    "reshape_as": lambda x: x.t().reshape_as(x).zero_(),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("sizes", [((2, 3), (3, 3), (4, 5), (4, 4), (3, 2)), ((3, 3), (2, 3), (4, 4), (1, 4), (5, 1))])
def test_a_reshape_is_a_view_where_eager_returns_one(name: str, backend: str, sizes: tuple) -> None:
    bytejit.reset()
    f = VIEWS[name]
    compiled = bytejit.compile(f, backend=backend, dynamic=True)
    for shape in sizes:
        x, y = torch.arange(float(shape[0] * shape[1])).view(shape), torch.arange(float(shape[0] * shape[1])).view(shape)
        for call, given in ((f, x), (compiled, y)):
            made = call(given)
            for part in made if isinstance(made, tuple) else (made,):
                part.add_(10)  # seen in the argument where it is a view
        assert torch.equal(x, y), shape


def test_few_compiles_where_nobody_can_tell() -> None:
    """Whether a copy that nothing else reads is one is not asked."""
    bytejit.reset()
    f = bytejit.compile(lambda x: x.t().reshape(x.shape) * 2, dynamic=True)
    for shape in ((2, 3), (4, 5), (3, 2), (3, 3)):
        f(torch.ones(shape))
    assert bytejit.counters["graphs"].total() <= 2


REFUSED = {
    "reflect": (lambda x: F.pad(x, (2, 2), mode="reflect"), ((5, 4), (5, 3), (5, 2), (5, 1))),
    "reflect, two dims": (
        lambda x: F.pad(x[None], (1, 2, 2, 1), mode="reflect"),
        ((5, 4), (5, 3), (5, 2), (3, 3), (2, 4), (1, 4)),
    ),
    "reflect of what was made": (lambda x: F.pad(x * 2, (1, 1), mode="reflect"), ((5, 1), (5, 2), (5, 1))),
    "index_add": (lambda x: x.index_add(1, torch.tensor([2]), torch.ones(5, 1)), ((5, 4), (5, 3), (4, 4), (1, 4))),
    "index_add in place": (
        lambda x: (x * 1).index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4)),
        ((5, 4), (4, 4), (4, 3), (4, 1)),
    ),
    "a larger operand": (lambda x: (x * 1)[:1].add_(torch.ones(2, 4)[:, : x.shape[1]]), ((5, 4), (5, 3), (1, 4))),
    "resized, without rows": (lambda x: F.interpolate(x[None, None], (3, 3), mode="bilinear"), ((5, 4), (3, 4), (0, 4), (4, 0))),
    "resized, nearest": (lambda x: F.interpolate(x[None, None], (3, 3)), ((0, 4), (5, 4), (4, 0))),
    "resized, without channels": (lambda x: F.interpolate(x[None], 3, mode="linear"), ((0, 4), (5, 4), (5, 0))),
    "an operand without rows": (lambda x: (x * 1)[:1].add_(x[1:2]), ((5, 4), (5, 3), (1, 4), (2, 4))),
}


def outcome(f: Callable, x: torch.Tensor) -> tuple[str, torch.Tensor]:
    try:
        return "", f(x)
    except (RuntimeError, IndexError) as e:
        return f"{type(e)} {e}", torch.zeros(0)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_what_eager_refuses_is_refused_in_every_size(name: str, dynamic: bool | None) -> None:
    f, sizes = REFUSED[name]
    for first in range(len(sizes)):
        bytejit.reset()
        compiled = bytejit.compile(f, dynamic=dynamic)
        for shape in sizes[first:]:
            x = torch.randn(shape)
            (said, made), (words, wanted) = outcome(compiled, x), outcome(f, x)
            assert said == words, shape
            torch.testing.assert_close(made, wanted)
        assert not bytejit.counters["faults"]
