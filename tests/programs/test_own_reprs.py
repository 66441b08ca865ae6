# ruff: noqa - the programs are as users write them
"""The repr that a dataclass gets, and those of the library that are kept from asking themselves."""

import collections
import dataclasses
import reprlib
from collections import ChainMap
from typing import Any

from .harness import F, Turn, case, program


@program(F(3), Turn(3, 1, 2), graphs=1)
def test_reprs_of_dataclasses():
    """repr(), str() and formats of dataclasses, nested, with fields left out, subclassed, frozen"""

    @dataclasses.dataclass
    class Point:
        a: int
        b: Any = dataclasses.field(default="b", repr=False)

    @dataclasses.dataclass(frozen=True)
    class Line:
        start: Point
        ends: list = dataclasses.field(default_factory=list)

    @dataclasses.dataclass
    class Near(Point):
        c: float = 0.5

    held = Point(1)

    def f(x, n):
        held.a += n
        line = Line(Point(n), [Near(n, x), held])
        return x * n, repr(line), str(held), f"{line.start} {held!r:>20}", "%s" % (held,), "{}".format(line)

    return f, lambda: held.a


@program(F(3), Turn(3, 1, 2))
def test_reprs_within_themselves():
    """An object within itself; a repr that asks for another of the same class; recursive_repr of reprlib; ChainMap"""

    @dataclasses.dataclass
    class Node:
        value: int
        next: Any = None

    class Own:
        def __init__(self, inside):
            self.inside = inside

        @reprlib.recursive_repr("<...>")
        def __repr__(self):
            return f"Own({self.inside!r})"

    loop = Node(0)
    loop.next = Node(1, loop)

    def f(x, n):
        loop.value = n
        own = Own(n)
        chain = repr(own), repr(ChainMap({"a": n}, {}))
        own.inside = [own, Own(own)]
        return x * n, repr(loop), repr(Node(n, Node(2))), chain, repr(own)

    return f


@dataclasses.dataclass
class Shown:
    value: Any


def asked_by_a_repr(f, x):
    """Call f, and again within the repr of what f shows."""

    class Asks:
        def __repr__(self):
            return f(x, shown)[1]

    shown = Shown(1)
    first = f(x, shown)
    shown.value = Asks()
    return first[1], repr(shown), f(x, Shown(2))[1]


@case(F(3), drive=asked_by_a_repr)
def test_asked_within_a_repr(x, shown):
    """The compiled function called by a repr, for the object whose repr that is"""
    return x * 2, repr(shown)
