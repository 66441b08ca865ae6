"""Code of the program's that library functions call: it runs in each call, as in eager."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable

import pytest
import torch

import bytejit

SEEN: list = []


def noted(match):
    SEEN.append(match.group())
    return str(len(SEEN))


class Place:
    def __index__(self):
        SEEN.append("asked")
        return len(SEEN)


PLACE = Place()


def substituting(x):
    digits = re.compile(r"\d")
    texts = re.sub(r"\d", noted, "a1b2"), digits.subn(noted, "1c2", 1), digits.sub(repl=noted, string="3")
    return x + len(SEEN), texts


def searching(x):
    return x + 1, re.compile("a").search("bba", PLACE) is None, len(SEEN)


def splitting(x):
    return x + 1, re.split("a", "babab", maxsplit=PLACE)


def unwrapping(x):
    found = inspect.unwrap(functools.wraps(noted)(lambda m: m), stop=lambda f: SEEN.append(1))
    return x + len(SEEN), found is noted


@pytest.mark.parametrize("f", [substituting, searching, splitting, unwrapping])
def test_it_runs_in_each_call(f: Callable) -> None:
    compiled = bytejit.compile(f, backend="eager")
    given = []
    for call in (f, compiled):
        SEEN.clear()
        given.append([repr(call(torch.ones(2))) for _ in range(4)] + [repr(SEEN)])
    assert given[0] == given[1]


@pytest.mark.skipif(not hasattr(operator, "call"), reason="Python 3.11 and later")
def test_operator_call() -> None:
    def f(x):
        return operator.call(torch.add, x, 1, alpha=2) + operator.call(lambda: x.shape[0])

    assert torch.equal(bytejit.compile(f, backend="eager", fullgraph=True)(torch.ones(2)), f(torch.ones(2)))
