"""types.MethodType and a function's __get__ with what they take and what they refuse"""

import types

import pytest
import torch

from .harness import F, check


def count(*args):
    return len(args)


class Plain:
    """An instance of it cannot be called."""


BOUND = {
    "method": lambda x: (types.MethodType(count, x)(x), x + 1),
    "get": lambda x: (count.__get__(x)(x), count.__get__(x, Plain)(x), x + 1),
    "get of a class": lambda x: (count.__get__(None, Plain)(x), x + 1),
}
REFUSED = {
    "no instance": lambda x: types.MethodType(count, None)(x),
    "too few": lambda x: types.MethodType(count)(x),
    "too many": lambda x: types.MethodType(count, x, 3)(x),
    "keyword": lambda x: types.MethodType(count, self=x)(x),
    "number": lambda x: types.MethodType(3, x)(x),
    "get of None": lambda x: count.__get__(None)(x),
    "get of two Nones": lambda x: count.__get__(None, None)(x),
    "get of nothing": lambda x: count.__get__()(x),
    "get of three": lambda x: count.__get__(x, 1, 2)(x),
}


@pytest.mark.parametrize("fn", BOUND.values(), ids=BOUND)
def test_bound(fn):
    check(fn, F(2), graphs=1)


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_refused(fn):
    with pytest.raises(TypeError):
        fn(torch.ones(2))
    check(fn, F(2))


def test_named_self():
    """An argument whose name becomes that of the graph's own module"""
    check(lambda x, self_: x * self_, F(2), F(2), graphs=1)
    check(lambda self, x: self - x, F(2), F(2), graphs=1)
