"""`__eq__` and `__ne__` of bound methods and functions, called by name."""

from __future__ import annotations

import pytest
import torch

import bytejit


class Plain:
    def m(self) -> None: ...

    def other(self) -> None: ...


class Equal(Plain):
    def __eq__(self, other: object) -> bool:
        return True


def kept() -> None: ...


HELD = Plain()


@pytest.mark.parametrize("name", ["__eq__", "__ne__"])
@pytest.mark.parametrize("held", [False, True])
def test_special_methods(name: str, held: bool) -> None:
    def f(x: torch.Tensor) -> tuple:
        a, b, e = HELD if held else Plain(), Plain(), Equal()
        g = kept if held else lambda: 1
        values = [a.m, a.other, b.m, e.m, Equal().m, g, a, e, 3]
        return x + 1, [getattr(v, name)(w) for v in values for w in values]

    expected = f(torch.ones(2))[1]
    got = bytejit.compile(f, backend="eager")(torch.ones(2))[1]
    assert len(got) == len(expected)
    assert all(a is b for a, b in zip(expected, got)), [(i, a, b) for i, (a, b) in enumerate(zip(expected, got)) if a is not b]


def test_what_a_method_takes_from_its_function() -> None:
    def f(x: torch.Tensor) -> tuple:
        m = Plain().m
        return x + 1, m.__name__, m.__qualname__, m.__doc__, hash(m) == hash(m), m == m, m != m, m.__get__(1) == m

    assert f(torch.ones(2))[1:] == bytejit.compile(f, backend="eager")(torch.ones(2))[1:]
