"""Loops without tensor work run as their copies without sites; work that comes later is found all the same."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit import pipeline
from bytejit.runtime import dispatch
from bytejit.runtime.function import HANDLE
from bytejit.tracer.core import limits


@pytest.fixture(autouse=True)
def short_loops(monkeypatch):
    monkeypatch.setattr(limits, "LONG_LOOP", 20)
    bytejit.reset()


def states(f):
    return f.__dict__[HANDLE].function.sites.states.values()


def going_around(f) -> int:
    return sum(bool(s._cell) and isinstance(s._cell[0], dispatch.LoopBypass) for s in states(f))


def total(x, n):
    x = x + 1
    s = 0
    for i in range(n):
        s += i & 3
    return x * s


def nested(x, n):
    out = []
    for i in range(n):
        j = 0
        while j < 3:
            if i % 7 == 6:
                break
            j += 1
        else:
            out.append(i)
    return x + len(out)


def guarded(x, n):
    bad = 0
    for i in range(n):
        try:
            if i % 3 == 0:
                raise ValueError(i)
        except ValueError:
            bad += 1
        finally:
            bad += 2
    return x - bad


def leaves(x, n):
    for i in range(10**6):
        if i * i > n:
            return x * i
    return x


@pytest.mark.parametrize("fn", [total, nested, guarded, leaves])
def test_results_and_copies(fn):
    f, x = bytejit.compile(fn, backend="eager"), torch.arange(3.0)
    for n in (500, 500, 500, 400, 501, 3, 0):
        assert torch.equal(f(x, n), fn(x, n))
    assert going_around(f)


def mixed(xs):
    total = 0
    for x in xs:
        total = total + x * 2
    return total


def test_tensors_that_come_after_numbers_are_compiled():
    f = bytejit.compile(mixed, backend="eager")
    for _ in range(3):
        assert f([1] * 100) == 200
    before = bytejit.counters.total("graphs")
    xs = [torch.ones(2)] * 5
    for _ in range(6):
        assert torch.equal(f(xs), mixed(xs))
    assert bytejit.counters.total("graphs") > before
    assert f([1] * 100) == 200


def test_work_in_a_loop_keeps_its_sites():
    def f(x, n):
        for _ in range(n):
            x = torch.sin(x)
            if x.sum() > 100:
                break
        return x

    g, x = bytejit.compile(f, backend="eager"), torch.ones(3)
    for _ in range(3):
        assert torch.equal(g(x, 30), f(x, 30))
    assert not going_around(g)


def test_reset_brings_the_sites_back():
    f, x = bytejit.compile(total, backend="eager"), torch.ones(2)
    for _ in range(2):
        f(x, 500)
    assert going_around(f)
    bytejit.reset()
    assert not going_around(f)
    assert torch.equal(f(x, 500), total(x, 500))


def test_conditions_on_a_size_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(limits, "LONG_LOOP", 10**6)

    def f(x, n):
        i = s = 0
        while i < n:
            s += i % 3
            i += 1
        return x + s

    g, x = bytejit.compile(f, backend="eager", dynamic=True), torch.ones(2)
    for n in (3000, 3001, 2000):
        assert torch.equal(g(x, n), f(x, n))


def test_calls_in_a_loop_are_left_by_the_work_in_them(monkeypatch):
    """Not by how often the loop goes round: a few turns may be thousands of instructions."""
    monkeypatch.setattr(limits, "LONG_WORK", 2000)

    def step(i):
        s = 0
        for k in range(10):
            s += i * k % 7
        return s

    def f(x, n):
        x, total = x + 1, 0
        for i in range(n):
            total += step(i)
        return x * total

    g, x = bytejit.compile(f, backend="eager"), torch.ones(3)
    bytejit.counters.clear()
    for n in (50, 50, 60):
        assert torch.equal(g(x, n), f(x, n))
    assert any(reason.startswith("a long") for reason in bytejit.counters["breaks"])


def test_sorting_much_is_left_to_the_original(monkeypatch):
    """What C code goes over counts as work, though no instruction of the program says so."""
    monkeypatch.setattr(limits, "LONG_WORK", 500)

    def f(x, many):
        few = sorted(range(20), key=lambda i: -i)
        y = x * few[0]
        many.sort()
        return y + many[0]

    x = torch.ones(2)
    a, b = [i * 7 % 401 for i in range(400)], [i * 7 % 401 for i in range(400)]
    assert torch.equal(bytejit.compile(f, backend="eager")(x, a), f(x, b)) and a == b == sorted(a)
    assert any(reason.startswith("many items") for reason in bytejit.counters["breaks"])


def test_long_work_in_a_loop_is_traced_once_not_from_each_site(monkeypatch):
    monkeypatch.setattr(limits, "LONG_WORK", 400)
    traced, trace = [], pipeline.trace

    def counting(job, compiled_callee):
        traced.append(job.point)
        return trace(job, compiled_callee)

    monkeypatch.setattr(pipeline, "trace", counting)

    def step(i):
        return i + 1

    def f(n):
        s = 0
        for i in range(n):
            s += step(i) if i % 2 else step(-i)
            s -= step(i) if i % 3 else step(s)
            s ^= step(i) if i % 5 else step(2 * i)
        return s

    g = bytejit.compile(f, backend="eager")
    assert [g(300), g(301), g(300)] == [f(300), f(301), f(300)]
    assert len(traced) <= 8


def test_sites_on_the_way_of_a_region_without_work_are_left_alone(monkeypatch):
    """A long function that meets no tensor is traced up to what breaks once, not once from each call on the way."""
    traced, trace = [], pipeline.trace

    def counting(job, compiled_callee):
        traced.append(job.point)
        return trace(job, compiled_callee)

    monkeypatch.setattr(pipeline, "trace", counting)
    lines = "\n".join(f"    n = step(n, {i})" for i in range(40))
    scope = {"step": lambda n, i: n + i, "sys": __import__("sys")}
    exec(f"def long(n):\n{lines}\n    for i in range(3):\n        n = step(n, i)\n    sys._getframe(0)\n    return n", scope)
    assert bytejit.compile(scope["long"], backend="eager")(1) == scope["long"](1)
    assert len(traced) < 8
