"""Loops over ranges whose bounds change between calls: how many elements there are is guarded, not where the range ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit
from tests.shapes.test_few_compiles import graphs_of


def windows(x):
    return sum((x[i : i + 7] * (i + 1) for i in range(0, x.shape[0] - 6, 6)), torch.zeros(7, 3))


def chunks(x):
    return torch.cat([x[i : i + 8].softmax(0) for i in range(0, x.shape[0], 8)])


def last_rows(x):
    return sum(x[i] for i in range(x.shape[0] - 3, x.shape[0]))


def downwards(x):
    return sum(x[i] * k for k, i in enumerate(range(x.shape[0] - 1, 8, -4)))


def measured(x):
    return x * len(range(0, x.shape[0], 8))


def backwards(x):
    return torch.stack([x[i] * i for i in reversed(range(1, x.shape[0], 8))])


def never(x):
    for i in range(x.shape[0], 5):
        x = x * i
    return x + 1


def unpacked(x):
    first, *rest = range(0, x.shape[0], 8)
    return x * first + sum(rest)


MOST = {windows: 4, chunks: 3, downwards: 4}  # another number of elements, or a last part that is whole
SIZES = (17, 18, 19, 20, 21, 22, 23, 24)


@pytest.mark.parametrize("f", [windows, chunks, last_rows, downwards, measured, backwards, never, unpacked])
@pytest.mark.parametrize("dynamic", [None, True])
def test_few_compiles(f: Callable, dynamic: bool | None) -> None:
    assert graphs_of(f, [(torch.randn(n, 3),) for n in SIZES], dynamic) <= MOST.get(f, 2)
    graphs_of(f, [(torch.randn(n, 3),) for n in (20, 30, 8, 9, 41, 7, 10, 33)], dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_int_that_changes_as_a_bound(dynamic: bool | None) -> None:
    x = torch.randn(40, 3)
    f = lambda x, n: sum(x[i] * i for i in range(n, n + 9, 4))
    assert graphs_of(f, [(x, n) for n in range(2, 12)], dynamic) <= 2


def kept(x):
    r = range(0, x.shape[0], 6)
    return [x[i] for i in r], r, r


def told(x):
    r = range(1, x.shape[0], 6)
    return x + r[-1], str(r), r.stop, r.stop in r, r == range(1, 19, 6), bool(r), hash(r), type(r), isinstance(r, range)


def goes_on(x):
    y = torch.zeros(3)
    for i in range(1, x.shape[0], 6):
        y = y + x[i]
        bytejit.graph_break()
    return y


def iterator_leaves(x):
    it = iter(range(x.shape[0] - 9, x.shape[0], 3))
    y = x[next(it)] * next(it)
    return y, list(it)


def rest_leaves(x):
    it = iter(range(2, x.shape[0], 3))
    return x[next(it)], it


@pytest.mark.parametrize("f", [kept, told, goes_on, iterator_leaves, rest_leaves])
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_else_a_range_tells(f: Callable, dynamic: bool | None) -> None:
    compiled = bytejit.compile(f, backend="eager", dynamic=dynamic)
    for n in (*SIZES, 30, 11, 12, 13):
        x = torch.randn(n, 3)
        got, want = compiled(x), f(x)
        if f is rest_leaves:
            got, want = (got[0], list(got[1])), (want[0], list(want[1]))
        if f is kept:
            assert got[1] is got[2] and repr(got[1]) == repr(want[1])
        if isinstance(got, tuple):
            assert list(map(type, got)) == list(map(type, want)) and got[1:] == want[1:]
        torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, want[0] if isinstance(want, tuple) else want)


def test_errors_of_bounds() -> None:
    def by(step):
        def f(x):
            try:
                return x * len(range(0, x.shape[0], step))
            except (TypeError, ValueError) as e:
                return type(e), str(e)

        return f

    for f in (by(0), by(1.5), lambda x: x * len(range(-x.shape[0]))):
        compiled = bytejit.compile(f, backend="eager", dynamic=True)
        for n in (4, 5):
            got, want = compiled(torch.ones(n)), f(torch.ones(n))
            assert got == want if isinstance(got, tuple) else torch.equal(got, want)


def test_a_range_that_is_given_says_where_it_stops() -> None:
    """Ranges of equal elements are equal, and print differently."""

    def f(x, r):
        return x + 1, r.stop, str(r), len(r)

    compiled = bytejit.compile(f, backend="eager")
    for n in (11, 12, 13, 11):
        assert compiled(torch.ones(3), range(1, n, 6))[1:] == (n, f"range(1, {n}, 6)", 2)
