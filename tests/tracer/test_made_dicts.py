"""Dicts that a region makes under keys that change: eager's results whatever the keys are, and no compile for other keys."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import torch

import bytejit

X = torch.arange(4.0)


def literal(a, b, x):
    return {"first": x, a: x + 1, b: x * 2, "last": x - 1}


def filled(a, b, x):
    out = {}
    out[a] = x + 1
    out[b] = out[a] * 2
    out[a] = out[a] + out[b]
    return out, len(out), bool(out), list(out)


def prefixed(a, b, x):
    out = dict(n=x)
    for i in range(3):
        out[f"{a}.{i}"] = x * i
    return {k: v + 1 for k, v in out.items()}, sum(out.values())


def asked(a, b, x):
    out = {a: x}
    if b in out:
        return out[b] * 10
    out.setdefault(b, x + 1)
    return out.get(a, 0) + out.get(b, 0), out.get("no", 7)


def grouped(a, b, x):
    out = {}
    for key in (a, b, a):
        out[key] = out[key] + x if key in out else x
    return out


def updated(a, b, x):
    out = {a: x}
    out.update({b: x + 1, "z": x + 2})
    out |= {"y": x}
    return {**out, "w": x}, out.copy()


def rewritten(a, b, x):
    out = {a: x, b: x + 1}
    for key, value in out.items():
        out[key] = value * 2
    return out


def grown(a, b, x):
    out = {a: x}
    try:
        for key in out:
            out[key + b] = x
    except RuntimeError as e:
        return str(e), x + 1


def removed(a, b, x):
    out = {a: x, b: x + 1, "q": x + 2}
    gone = out.pop(a)
    del out["q"]
    return gone, out


def missing(a, b, x):
    out = {a: x}
    try:
        return out[b]
    except KeyError as e:
        return e.args, x + 1


def ordered(a, b, x):
    out = collections.OrderedDict([(a, x), (b, x + 1)])
    out.move_to_end(a)
    return out


def compared(a, b, x):
    return {a: 1} == {b: 1}, x + 1


def keyword(a, b, x):
    def inner(**named):
        return list(named), sum(named.values())

    return inner(**{a: x, b: x})


def stepping(a, b, x):
    out = {a: x, b: x + 1}
    it = iter(out)
    next(it, None)
    return it.__next__() if len(out) > 1 else None, x + 1


def leaving(a, b, x):
    it = iter({a: x, b: x + 1}.items())
    next(it)
    return it


def stored(a, b, x):
    class Box:
        pass

    box = Box()
    box.table = {a: x, b: {a: x + 1}}
    return vars(box)


GENERAL = (literal, filled, prefixed, updated, rewritten)  # other keys cost nothing
OTHERS = (asked, grouped, grown, removed, missing, ordered, compared, keyword, stepping, leaving, stored)
TEXTS = [
    ("a", "b"),
    ("c", "d"),
    ("e", "f"),
    ("g", "g"),
    ("first", "b"),
    ("a", "last"),
    ("last", "first"),
    ("n", "n.0"),
    ("z", "y"),
]
NUMBERS = [(1, 2), (5, 6), (7, 9), (3, 3), (-1, 0), (0, 1), (4, 400)]


def same(a: object, b: object) -> None:
    if isinstance(a, dict):
        assert type(a) is type(b) and list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    elif hasattr(a, "__next__"):
        same(list(a), list(b))
    else:
        assert a == b and type(a) is type(b)


@pytest.mark.parametrize("f", [*GENERAL, *OTHERS], ids=lambda f: f.__name__)
def test_texts(f: Callable) -> None:
    made = bytejit.compile(f, backend="eager")
    for a, b in [*TEXTS, *TEXTS]:
        same(made(a, b, X), f(a, b, X))
    assert not bytejit.counters["fallbacks"] or f not in GENERAL


@pytest.mark.parametrize("f", [literal, filled, asked, grouped, rewritten, removed, missing, compared, ordered])
def test_numbers(f: Callable) -> None:
    made = bytejit.compile(f, backend="eager")
    for a, b in [*NUMBERS, *NUMBERS]:
        same(made(a, b, X), f(a, b, X))


@pytest.mark.parametrize("f", GENERAL, ids=lambda f: f.__name__)
def test_other_keys_cost_no_compile(f: Callable) -> None:
    made = bytejit.compile(f, backend="eager", fullgraph=True)
    for i in range(12):
        same(made(f"a{i}", f"b{i}", X), f(f"a{i}", f"b{i}", X))
    assert bytejit.counters.total("graphs") == 2


def test_many_open_keys_are_constants() -> None:
    f = lambda a, x: {f"{a}.{i}": x + i for i in range(40)}
    made = bytejit.compile(f, backend="eager")
    for a in "abcabc":
        same(made(a, X), f(a, X))


def test_keys_with_gradients_and_kernels() -> None:
    """As losses are named and summed"""

    def f(name, x):
        losses = {f"{name}/l2": x.square().sum(), f"{name}/l1": x.abs().sum()}
        losses["total"] = sum(losses.values())
        return losses

    made = bytejit.compile(f)
    for name in ("train", "val", "test", "train", "fold 3"):
        x, y = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
        got, want = made(name, x), f(name, y)
        assert list(got) == list(want)
        got["total"].backward()
        want["total"].backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(x.grad, y.grad)
    assert bytejit.counters.total("graphs") == 2
