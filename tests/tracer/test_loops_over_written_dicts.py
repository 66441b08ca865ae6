"""A break within a loop over a dict that the region has written, at each iteration: the iterator stands where it stood."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch

import bytejit


def new_key(x: torch.Tensor, d: dict, at: int) -> tuple:
    d["new"] = 7
    seen = []
    for n, key in enumerate(d):
        seen.append(key)
        if n == at:
            x = x * float(x.sum())
    return x, seen


def items(x: torch.Tensor, d: dict, at: int) -> tuple:
    d["new"] = 7
    seen, n = [], 0
    for key, value in d.items():
        if n == at:
            x = x * float(x.sum())
        n += 1
        seen.append((key, value))
    return x, seen


def moved(x: torch.Tensor, d: dict, at: int) -> tuple:
    d.pop("a", None)
    d["a"] = 7
    seen, n = [], 0
    for value in d.values():
        if n == at:
            x = x * float(x.sum())
        n += 1
        seen.append(value)
    return x, seen


def value_only(x: torch.Tensor, d: dict, at: int) -> tuple:
    for key in d:
        d[key] = 7
    seen, n = [], 0
    for key in reversed(d):
        if n == at:
            x = x * float(x.sum())
        n += 1
        seen.append((key, d[key]))
    return x, seen


def in_a_comprehension(x: torch.Tensor, d: dict, at: int) -> tuple:
    """Inlined where Python 3.12 and newer do so: its loop is one of the frame."""
    d["new"] = 7
    return x, {key: float(x.sum()) * value for key, value in d.items() if len(key) + at < 9}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("f", [new_key, items, moved, value_only, in_a_comprehension])
def test_loops(f: Callable, kind: type) -> None:
    for size in range(4):
        for at in range(size + 1):
            bytejit.reset()
            made = bytejit.compile(f, backend="eager")
            for _ in range(2):
                ours, theirs = (kind((key, n) for n, key in enumerate("abc"[:size])) for _ in range(2))
                assert repr(made(torch.ones(2), ours, at)) == repr(f(torch.ones(2), theirs, at))
                assert ours == theirs and list(ours) == list(theirs)
