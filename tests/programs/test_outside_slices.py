"""Slice objects from outside, which a program keeps in attributes, lists and globals, pick from all that they can."""

from __future__ import annotations

import types

import pytest
import torch

import bytejit

X = torch.arange(6.0)
KEPT = types.SimpleNamespace(one=slice(0, 2), many=[slice(None, None, 2), slice(1, 3)])
PROGRAMS = {
    "tensor": lambda x: x[KEPT.one] + 1,
    "tuple of tensors": lambda x: (x, x + 1, x + 2)[KEPT.one],
    "list of tensors": lambda x: [x, x + 1, x + 2][KEPT.many[0]],
    "constants": lambda x: ((1, 2, 3)[KEPT.one], "abc"[KEPT.many[1]], x + 1),
    "range": lambda x: [x + n for n in range(5)[KEPT.many[0]]],
    "questions": lambda x: (KEPT.one is KEPT.one, KEPT.one == slice(0, 2), KEPT.one.stop, KEPT.one.indices(9), x + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_slices_from_outside(name):
    program = PROGRAMS[name]
    made, want = bytejit.compile(program, backend="eager", fullgraph=True)(X), program(X)
    assert type(made) is type(want)
    for a, b in zip(made, want):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_no_error_is_seen_that_there_is_not():
    def f(x):
        try:
            return (x, x + 1)[KEPT.one][1] * 2
        except TypeError:
            return x

    torch.testing.assert_close(bytejit.compile(f, backend="eager", fullgraph=True)(X), (X + 1) * 2)


def test_another_slice_is_seen_and_the_same_leaves():
    kept = types.SimpleNamespace(one=slice(0, 1))
    made = bytejit.compile(lambda x: (x[kept.one], kept.one, (x, x)[kept.one]), backend="eager", fullgraph=True)
    for one in (slice(0, 1), slice(0, 3), slice(0, 2), slice(None, None, 2), slice(torch.tensor(1), 2), slice(0, 1)):
        kept.one = one
        picked, left, pair = made(X)
        torch.testing.assert_close(picked, X[one])
        assert left is one and len(pair) == len((0, 0)[one])
