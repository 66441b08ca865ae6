"""Sites reached first with values that hold no work are traced again when others come."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit.runtime import negative_cache

ONE = torch.ones(2)


class Counting:
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm, example_inputs):
        self.graphs += 1
        return gm.forward


class Config:
    scale: object = None


def double(x, y=None):
    return x * 2 + 1 if x is not None else y


def scaled(x, c):
    return x if c.scale is None else x * c.scale


def total(xs):
    t = 0
    for x in xs:
        t = t + x
    return t


def closed(value):
    def add(n):
        return n if value is None else value + n

    def set_to(new):
        nonlocal value
        value = new

    return add, set_to


@pytest.fixture
def counting():
    bytejit.reset()
    return Counting()


def test_number_first_tensor_later(counting):
    f = bytejit.optimize(counting)(double)
    assert [f(1), f(2), f(None, "y"), f(1.5)] == [3, 5, "y", 4.0]
    assert counting.graphs == 0
    assert torch.equal(f(ONE), double(ONE))
    assert counting.graphs == 1
    assert f(1) == 3 and torch.equal(f(ONE), double(ONE))
    assert counting.graphs == 1


def test_list_of_numbers_first(counting):
    f = bytejit.optimize(counting)(total)
    for _ in range(20):
        assert f([1, 2]) == 3
    assert torch.equal(f([ONE, ONE]), 2 * ONE)
    assert counting.graphs == 1


def test_cell_that_holds_nothing_at_first(counting):
    add, set_to = closed(None)
    f = bytejit.optimize(counting)(add)
    assert [f(1) for _ in range(9)] == [1] * 9
    set_to(ONE)
    assert torch.equal(f(1), ONE + 1)
    assert counting.graphs == 1


def test_attribute_that_is_none_at_first(counting):
    """Types say nothing of an attribute: the start is traced again after 1, 2, 4, ... calls."""
    f, c = bytejit.optimize(counting)(scaled), Config()
    for _ in range(10):
        assert f(ONE, c) is ONE
    c.scale = ONE * 3
    for _ in range(20):
        assert torch.equal(f(ONE, c), 3 * ONE)
    assert counting.graphs in (1, 2)  # the branch that was not taken first, then the whole


def test_past_a_break(counting):
    def f(x, mask):
        x = x + 1
        bytejit.graph_break()
        return x if mask is None else x * mask

    c = bytejit.optimize(counting)(f)
    for mask in (None, ONE * 2, None, ONE * 3):
        assert torch.equal(c(ONE, mask), f(ONE, mask))
    assert counting.graphs == 2


def test_traces_in_vain_are_few(counting, monkeypatch):
    traces = []
    real = bytejit.pipeline.trace
    monkeypatch.setattr(bytejit.pipeline, "trace", lambda *a, **k: traces.append(1) or real(*a, **k))
    f = bytejit.optimize(counting)(lambda n: n + 1)
    for i in range(3000):
        assert f(i) == i + 1
    assert len(traces) <= 13


def test_many_types(counting):
    f = bytejit.optimize(counting)(lambda x: 7)
    for i in range(2 * negative_cache.MOST_KINDS):
        assert f(type(f"T{i}", (), {})()) == 7
    assert bytejit.counters.total("fallbacks") == 0


def test_long_recursion_is_left_alone(counting):
    def fib(n):
        return n if n < 2 else again(n - 1) + again(n - 2)

    again = fib
    assert bytejit.optimize(counting)(fib)(21) == 10946
    assert counting.graphs == 0
