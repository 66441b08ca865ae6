# ruff: noqa - the programs are as users write them
"""reversed(): who is asked, when, and what comes of it."""

import collections
import enum

import torch

from .harness import F, Turn, case, program


@program(F(3), Turn(3, 1, 2), graphs=1)
def test_own_sequences_are_asked_one_by_one():
    """An own sequence is asked for an item when it is wanted, from the last, and for its length first"""
    log = []

    class Seq:
        def __init__(self, *items):
            self.items = items

        def __len__(self):
            log.append("len")
            return len(self.items)

        def __getitem__(self, i):
            log.append(i)
            if self.items[i] == "end":
                raise IndexError
            if self.items[i] == "bad":
                raise KeyError(i)
            return self.items[i]

    class NoLength:
        def __getitem__(self, i):
            return i

    class Pair(tuple):
        def __getitem__(self, i):
            log.append(("pair", i))
            return super().__getitem__(i)

    class Listed(list):
        def __iter__(self):
            return iter("own")

        def __getitem__(self, i):
            return "own"

    class Backward(list):
        def __reversed__(self):
            return "backward"

    class Said:
        def __reversed__(self):
            yield "said"

    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    def f(x, n):
        found = []
        for v in reversed(Seq(1, n, 3)):
            log.append("body")
            found.append(v)
        log.append("list")
        found.append(list(reversed(Seq(x, n))))
        log.append("next")
        it = reversed(Seq(1, 2, 3))
        found += [next(it), iter(it) is it, type(it) is reversed, list(it), list(it), next(it, "none")]
        found += [list(reversed(Seq(1, "end", 3))), 3 in reversed(Seq(1, 3, 2)), list(zip(reversed(Seq(1, 2)), "ab"))]
        it = reversed(Seq(1, "bad", 3))
        try:
            for v in it:
                found.append(v)
        except KeyError as e:
            found += [e.args, list(it)]
        for bad in (NoLength(), {1}, 5, iter([]), object()):
            try:
                reversed(bad)
            except TypeError as e:
                found.append(str(e))
        found += [list(reversed(Pair((1, n)))), list(reversed(Listed([1, n]))), reversed(Backward())]
        found += [list(reversed(Said())), list(reversed(Colour)), list(reversed({"a": 1, n: 2})), list(reversed({1: n}.items()))]
        return x * n, found

    return f, lambda: log


@program(F(2), Turn(3, 1))
def test_reversed_own_sequence_and_breaks():
    """The iterator over an own sequence at a break, and leaving the function: the sequence is asked as often as in eager"""
    log = []

    class Seq:
        def __init__(self, *items):
            self.items = items

        def __len__(self):
            log.append("len")
            return len(self.items)

        def __getitem__(self, i):
            log.append(i)
            return self.items[i]

    class Deque(collections.deque):
        def __reversed__(self):
            return iter([self.maxlen])

    def f(x, n):
        for v in reversed(Seq(x, n, 5)):
            print(type(v).__name__)
        it = reversed(Seq(x, n, 5))
        next(it)
        return it, reversed(Seq(x + 1, n)), list(reversed(Deque([1], n)))

    return f, lambda: log


@case(F(3, 2), F(1))
def test_reversed_tensor(x, y):
    """reversed(tensor) is a tensor, with memory of its own"""
    back = reversed(x)
    rows = list(back)
    rows[0].add_(100)
    return back, rows, x, type(back).__name__, list(reversed(x[:0])), list(reversed(y)), reversed(y.sum()) * 2
