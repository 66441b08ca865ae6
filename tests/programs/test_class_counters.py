"""Numbers that a region counts up on classes: as eager, and few compiles for many calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


class Counted:
    calls, twice, last = 0, 0, ()


class Below(Counted):
    pass


class Net(torch.nn.Module):
    steps = 0

    def forward(self, x):
        type(self).steps += 1
        return x + self.steps


def on_the_class(x):
    Counted.calls += 1
    return x * 2


def read_back(x):
    Counted.calls += 1
    Counted.twice = Counted.calls * 2
    return x + Counted.twice, Below.calls, getattr(Counted, "twice"), hasattr(Below, "twice"), type(Counted.calls)


def branched_on(x):
    Counted.calls += 1
    return x * 2 if Counted.calls > 5 else x + 1


def shadowed_below(x):
    Below.calls += 1  # read above, written below
    return x + Below.calls + Counted.calls


def kept_in_a_tuple(x):
    Counted.calls += 1
    Counted.last = (*Counted.last, Counted.calls)[-2:]
    return x * 3


def namespace_after(x):
    Counted.calls += 1
    return x + 1, Counted.__dict__["calls"], vars(Counted)["calls"]


def namespace_before(x):
    namespace = Counted.__dict__
    Counted.calls += 1
    return x + 1, namespace["calls"], dict(namespace)["calls"]


def in_a_module(x):
    return Net()(x)


def _run(f: Callable, calls: int) -> list:
    Counted.calls, Counted.twice, Counted.last, Net.steps = 0, 0, (), 0
    if "calls" in vars(Below):
        del Below.calls
    out = [f(torch.ones(2)) for _ in range(calls)]
    return [str(out), Counted.calls, Counted.twice, Counted.last, Below.calls, Net.steps]


PROGRAMS = (on_the_class, read_back, branched_on, shadowed_below, kept_in_a_tuple, namespace_after, namespace_before, in_a_module)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_counters_on_classes_are_as_in_eager(program: Callable) -> None:
    assert _run(bytejit.optimize("eager")(program), 9) == _run(program, 9)


@pytest.mark.parametrize("program", [on_the_class, in_a_module, shadowed_below], ids=lambda f: f.__name__)
def test_a_counter_on_a_class_costs_few_compiles(program: Callable) -> None:
    before = bytejit.counters["graphs"].total()
    _run(bytejit.optimize("eager", nopython=True)(program), 12)
    assert bytejit.counters["graphs"].total() - before <= 4
