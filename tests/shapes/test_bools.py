"""bool beside sizes and floats that are symbols: it counts as 0 or 1."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch

import bytejit

OPERATORS: list[Callable] = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge, max, min]
OPERATORS += [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv, divmod]


@pytest.mark.parametrize("operation", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("flag", [True, False])
def test_sizes(operation: Callable, flag: bool) -> None:
    def f(x):
        n = x.shape[0]
        return x + 1, operation(flag, n), operation(n, True), operation(n, n > 4 or True)

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for n in (3, 5, 7, 2):
        assert repr(compiled(torch.ones(n))) == repr(f(torch.ones(n)))


@pytest.mark.parametrize("operation", OPERATORS, ids=lambda f: f.__name__)
def test_floats(operation: Callable) -> None:
    def f(x, k, v):
        return x + 1, operation(k, v)

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for k, v in ((True, 1.5), (True, 2.5), (True, -0.5), (False, 3.5), (False, 4.5)):
        assert repr(compiled(torch.ones(2), k, v)) == repr(f(torch.ones(2), k, v))
