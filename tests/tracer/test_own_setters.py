"""Classes whose `__setattr__`, `__delattr__`, `__getattr__` or `__init__` is no Python function but some other callable"""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from torch import nn

import bytejit

noted: list = []


class Note:
    def __call__(self, name: str, value: Any = None) -> None:
        noted.append((name, value))


class Items(dict):
    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__
    __delattr__ = dict.__delitem__


class Ordered(collections.OrderedDict):
    __setattr__ = collections.OrderedDict.__setitem__
    __getattr__ = collections.OrderedDict.get


class Noting:
    __setattr__ = Note()
    __delattr__ = Note()
    a = 1


class Static:
    __setattr__ = staticmethod(lambda name, value: noted.append(name))
    __getattr__ = staticmethod(len)
    a = 1


class Bound:
    __setattr__ = functools.partialmethod(lambda self, more, name, value: vars(self).update({name: value + more}), 7)


class Objects:
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


class Refuses:
    __setattr__ = None


@pytest.mark.parametrize("cls", [Items, Ordered, Noting, Static, Bound, Objects, Refuses], ids=lambda c: c.__name__)
def test_attributes_are_set_by_what_the_class_has(cls: type) -> None:
    def program(given: Any, x: torch.Tensor, v: int) -> Any:
        made, out = cls(), []
        for o in (given, made):
            try:
                o.a = x * v
                out.append(o.a)
                del o.a
                out.append(getattr(o, "bcd", None))
            except (TypeError, KeyError, AttributeError) as e:
                out.append((type(e), e.args))
        return out, vars(made), dict(made) if isinstance(made, dict) else None

    def results(f: Any) -> str:
        noted.clear()
        given = cls()
        return repr([(f(given, torch.ones(2), v), vars(given), list(noted)) for v in (1, 2, 2)])

    assert results(bytejit.compile(program, backend="eager")) == results(program)


def test_a_partial_of_a_partial_takes_over_its_parts() -> None:
    plain, tagged = (functools.partial(torch.add, alpha=3) for _ in range(2))
    tagged.tag = 1

    def program(x: torch.Tensor) -> Any:
        first, second = functools.partial(plain, x), functools.partial(tagged, x)
        third = functools.partial(first, x, alpha=5)
        return first.func is torch.add, first.keywords, third.args[1] is x, third(), second.func is tagged, second(x)

    expected = repr(program(torch.ones(2)))  # first: looking at a partial gives it an empty namespace
    assert repr(bytejit.compile(program, backend="eager")(torch.ones(2))) == expected


class Made:
    def __init__(self, *args: Any, **named: Any) -> None:
        self.args, self.named = args, named


class ByPartial(Made):
    __init__ = functools.partialmethod(Made.__init__, 7, k=1)


class ByNote(Made):
    __init__ = Note()


class ByStatic(Made):
    __init__ = staticmethod(lambda *args: noted.append(("static", len(args))))


class ReturnsSomething(Made):
    __init__ = staticmethod(lambda *args: 5)


class HasNone(Made):
    __init__ = None


@pytest.mark.parametrize("cls", [ByPartial, ByNote, ByStatic, ReturnsSomething, HasNone], ids=lambda c: c.__name__)
def test_objects_are_made_by_what_the_class_has(cls: type) -> None:
    def program(x: torch.Tensor, v: int) -> Any:
        try:
            return vars(cls(x * v, v))
        except TypeError as e:
            return e.args

    def results(f: Any) -> str:
        noted.clear()
        return repr([(f(torch.ones(2), v), list(noted)) for v in (1, 2, 2)])

    assert results(bytejit.compile(program, backend="eager")) == results(program)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_a_program_puts_into_nn_module(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of torch's own `__getattr__`, `__setattr__` and `__delattr__`, after a compile: they run, and go again"""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    own = {name: getattr(nn.Module, name) for name in ("__getattr__", "__setattr__", "__delattr__")}
    log: list[str] = []

    def read(module, name):
        found = own["__getattr__"](module, name)
        return found * 2 if name == "weight" else found

    def write(module, name, value):
        log.append(f"set {name}")
        own["__setattr__"](module, name, value)

    def drop(module, name):
        log.append(f"delete {name}")
        own["__delattr__"](module, name)

    def f(x):
        net.note = 1
        del net.note
        return net(x).detach()

    compiled, x = bytejit.compile(f, backend=backend), torch.ones(3, 2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
        with monkeypatch.context() as patch:
            for name, made in zip(own, (read, write, drop)):
                patch.setattr(nn.Module, name, made)
            torch.testing.assert_close(compiled(x), f(x))
            log.clear()
            compiled(x)
            assert log == ["set note", "delete note"]
        log.clear()
    torch.testing.assert_close(compiled(x), f(x))
    assert not log
