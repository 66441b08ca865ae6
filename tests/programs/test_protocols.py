"""Runtime protocols: what a class has, what an object has of its own, and what changes that."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bytejit


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self) -> int: ...


class NotChecked(typing.Protocol):
    def run(self) -> int: ...


class Sized:
    size = 3


class Runner:
    def run(self) -> int:
        return 1


class Empty:
    pass


def with_attribute(name: str, value: object) -> Empty:
    made = Empty()
    setattr(made, name, value)
    return made


OBJECTS: list[Callable[[], Any]] = [
    Sized,
    Runner,
    Empty,
    lambda: with_attribute("size", 2),
    lambda: with_attribute("run", lambda: 2),
    lambda: with_attribute("run", 2),
    lambda: 3,
    lambda: None,
    lambda: [1],
    lambda: torch.nn.Linear(2, 2),
    lambda: torch.ones(2),
]


def asks(x, v):
    return x + isinstance(v, HasSize) + 2 * isinstance(v, (str, Runs)) + 4 * isinstance([v], Runs) + isinstance(x, HasSize)


def made_inside(x, v):
    own = Empty()
    before = isinstance(own, Runs), isinstance(own, HasSize)
    own.size = 3
    return x, before, isinstance(own, HasSize), isinstance(own, Runs), isinstance({}, HasSize)


def changed_inside(x, v):
    before = isinstance(v, HasSize)
    if type(v) is Empty:
        v.size = 2
    return x, before, isinstance(v, HasSize)


def refused(x, v):
    try:
        return x, issubclass(type(v), HasSize), isinstance(v, NotChecked)
    except TypeError as e:
        return x, str(e)


@pytest.mark.parametrize("f", [asks, made_inside, changed_inside, refused])
def test_each_object_as_in_eager(f: Callable) -> None:
    compiled = bytejit.compile(f, backend="eager", options={"recompile_limit": 40})
    for make in OBJECTS:
        want, got = f(torch.zeros(2), make()), compiled(torch.zeros(2), make())
        assert repr(got) == repr(want), make()


def test_an_object_that_gets_the_attribute_between_calls() -> None:
    v = Empty()
    compiled = bytejit.compile(asks, backend="eager", fullgraph=True)
    for name in ("size", "run"):
        assert torch.equal(compiled(torch.zeros(2), v), asks(torch.zeros(2), v))
        setattr(v, name, 1)
    assert torch.equal(compiled(torch.zeros(2), v), asks(torch.zeros(2), v))
