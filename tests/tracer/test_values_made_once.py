"""A value that the region makes is one object, wherever it goes: tuples, slices, methods, views of dicts, parts of partials"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace as Holder

import pytest
import torch

import bytejit


def tuples(x: torch.Tensor, o: Holder) -> list[tuple]:
    o.state = (x + 1, x * 2)
    o.deep = [o.state, (o.state, x.shape[0] + 1)]
    return [(o.state, o.deep[0]), (o.state, o.deep[1][0]), (o.deep, [o.deep][0])]


def a_tuple_within_itself(x: torch.Tensor, o: Holder) -> list[tuple]:
    items: list = []
    o.pair = (items, x + 1)
    items.append(o.pair)
    return [(o.pair, items[0]), (o.pair[0], items)]


def slices(x: torch.Tensor, o: Holder) -> list[tuple]:
    o.rows = slice(0, x.size(0) + 1)
    return [(o.rows, {"rows": o.rows}["rows"])]


def methods(x: torch.Tensor, o: Holder) -> list[tuple]:
    log: list = [x + 1]
    o.call = log.append
    o.own = o.__eq__
    return [(o.call, [o.call][0]), (o.call.__self__, log), (o.own, [o.own][0])]


def views(x: torch.Tensor, o: Holder) -> list[tuple]:
    o.view = {"x": x + 1}.items()
    return [(o.view, (o.view,)[0])]


def partials(x: torch.Tensor, o: Holder) -> list[tuple]:
    o.made = functools.partial(max, x + 1, key=len)
    o.args, o.keywords = o.made.args, o.made.keywords
    return [(o.made.args, o.args), (o.made.keywords, o.keywords)]


@pytest.mark.parametrize("program", [tuples, a_tuple_within_itself, slices, methods, views, partials])
def test_one_object_stays_one(program: Callable) -> None:
    compiled = bytejit.compile(program, backend="eager")
    for n in (2, 2, 3, 4):
        o = Holder()
        for i, (a, b) in enumerate(compiled(torch.ones(n), o)):
            assert a is b, (program.__name__, i)


def test_ranges_of_several_iterators_stay_apart() -> None:
    def f(x: torch.Tensor, n: int) -> tuple:
        a, b = iter(range(n)), iter(range(n + 5))
        return x + next(a) + next(b) + next(b), a, b, range(n + 2), range(n + 3)

    compiled = bytejit.compile(f, backend="eager")
    for n in (4, 5, 6):
        for want, got in zip(f(torch.ones(2), n), compiled(torch.ones(2), n)):
            assert torch.equal(want, got) if isinstance(want, torch.Tensor) else list(want) == list(got)
