# ruff: noqa - the programs are as users write them
"""Arguments that torch takes otherwise than their kind suggests, or refuses: lists of tensors as an index, deques, NumPy's scalars"""

import collections

import numpy as np
import pytest
import torch

from .harness import F, check


def outcome(call, x):
    try:
        return call(x)
    except (TypeError, RuntimeError, IndexError, ValueError) as error:
        return type(error), str(error)


I = torch.tensor
INDICES = {
    "0-d tensors": lambda x: x[[I(0), I(1)]],
    "a 0-d tensor and an int": lambda x: x[[I(1), 0]],
    "made inside": lambda x: x[[x.sum().long() * 0, x.sum().long() * 0 + 1]],
    "written": lambda x: put(x, [I(0), I(1)], 9.0),
    "1-d tensors": lambda x: x[[I([0, 1]), I([1, 0])]],
    "lists": lambda x: x[[[0, 1], [1, 1]]],
    "ints": lambda x: x[[0, 1, 1]],
    "a slice": lambda x: x[[slice(0, 1), 1]],
    "in a tuple": lambda x: x[0, [I(0), I(1), I(1)]],
    "a tuple of 0-d tensors": lambda x: x[I(0), I(1)],
    "a deque": lambda x: x[collections.deque([0, 1])],
}


def put(x, key, value):
    y = x * 1
    y[key] = value
    return y


@pytest.mark.parametrize("name", INDICES)
def test_lists_as_an_index(name):
    """A list as an index: torch takes one that holds tensors for a tuple"""
    check(lambda x: outcome(INDICES[name], x), F(3, 3))


ODD = {
    "sizes in a deque": lambda x: x.permute(collections.deque([1, 0])),
    "dimensions in a deque": lambda x: x.sum(collections.deque([0, 1])),
    "zeros of a deque": lambda x: torch.zeros(collections.deque([2, 1])) + x[0, 0],
    "complex64": lambda x: x + np.complex64(2 + 1j),
    "complex64 on the left": lambda x: np.complex64(2 + 1j) * x,
    "complex128": lambda x: x + np.complex128(2 + 1j),
    "filled with complex64": lambda x: torch.full((2,), np.complex64(1j)),
    "float32 assigned": lambda x: put(x, 0, np.float32(0.5)),
    "float64 assigned": lambda x: put(x, 0, np.float64(0.5)),
    "int32 assigned": lambda x: put(x, 0, np.int32(2)),
    "float32 added": lambda x: x + np.float32(0.1),
    "keys as a key": lambda x: {0: x}.get({1: 2}.keys()),
    "items as a key": lambda x: {0: x}[{1: 2}.items()],
    "values as a key": lambda x: {0: x}.get({1: 2}.values()),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments(name):
    """Deques, NumPy's scalars and views of dicts as arguments and keys"""
    check(lambda x: outcome(ODD[name], x * 2), F(2, 2))
