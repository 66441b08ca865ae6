"""id() of what a function makes: told apart while tracing, real where it leaves."""

from __future__ import annotations

import pytest
import torch

import bytejit

X = torch.arange(1.0, 4.0)


class Box:
    def __init__(self, value):
        self.value = value


def as_keys(x):
    a, b = x + 1, Box(x)
    seen = {id(a): 1.0, id(b): 2.0}
    seen[id(a)] += 3
    return a * seen[id(a)] + b.value * seen[id(b)], id(x + 1) in seen, len(seen)


def compared(x):
    a, rows = x + 1, [x]
    rows.append(a)
    names = {id(t) for t in rows[1:]}
    return a * (3 if id(a) in names else 4), id(a) == id(rows[1]), id(a) == id(rows), id(a) != id(x), id(rows) == 7


def memo(x):
    done = {}

    def walk(v):
        if id(v) in done:
            return done[id(v)]
        done[id(v)] = made = [walk(u) for u in v] if type(v) is list else v * 2
        return made

    y = x.sin()
    first = walk([y, [y, x], y])
    return first, first[0] is first[2], first[0] is first[1][0]


@pytest.mark.parametrize("f", [as_keys, compared, memo])
def test_one_graph(f):
    torch.testing.assert_close(bytejit.compile(f, backend="eager", fullgraph=True)(X), f(X))


def test_what_leaves_is_the_number():
    def f(x):
        a = x + 1
        box = Box(a)
        return a, box, {id(a): "a", id(box): "box"}, id(a)

    a, box, names, number = bytejit.compile(f, backend="eager", fullgraph=True)(X)
    assert names == {id(a): "a", id(box): "box"} and number == id(a)


def test_other_uses_break():
    for f in (lambda x: x + id(x + 1) % 2, lambda x: (x, id([x]) > 3)[0]):
        with pytest.raises(bytejit.exc.Unsupported):
            bytejit.compile(f, backend="eager", fullgraph=True)(X)
        bytejit.compile(f, backend="eager")(X)
