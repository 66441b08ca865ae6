# ruff: noqa - the programs are as users write them
"""Special methods that a class took away with `= None`, and what a lookup says of a name that it misses."""

import operator

import pytest
import torch
from torch import nn

from .harness import F, Turn, check, program

BINARY = {"add": "+", "sub": "-", "mul": "*", "matmul": "@", "pow": "**", "and": "&", "lshift": "<<", "floordiv": "//"}


def entered(c):
    with c:
        return 1


def added(c):
    c += 1
    return c


TAKEN = {
    "__bool__": (object, bool, operator.not_, lambda c: 1 if c else 2, lambda c: c and 1),
    "__len__": (object, bool, len, operator.not_),
    "__eq__": (object, lambda c: c == 1, lambda c: c != 1, lambda c: 1 == c, lambda c: c in [1], lambda c: [c] == [c]),
    "__ne__": (object, lambda c: c == 1, lambda c: c != 1, lambda c: 1 != c),
    "__lt__": (object, lambda c: c < 1, lambda c: 1 > c, lambda c: sorted([c, c]), lambda c: max([c, c])),
    "__iter__": (object, list, iter, lambda c: 1 in c, lambda c: [*c]),
    "__contains__": (object, lambda c: 1 in c),
    "__next__": (object, next, iter),
    "__reversed__": (object, reversed),
    "__getitem__": (object, lambda c: c[0], lambda c: c[1:2], list),
    "__setitem__": (object, lambda c: operator.setitem(c, 0, 1)),
    "__delitem__": (object, lambda c: operator.delitem(c, 0)),
    "__setattr__": (object, lambda c: setattr(c, "k", 1)),
    "__delattr__": (object, lambda c: delattr(c, "k")),
    "__getattr__": (object, lambda c: c.foo, lambda c: hasattr(c, "foo"), lambda c: getattr(c, "foo", 1)),
    "__call__": (object, lambda c: c(), callable, lambda c: list(map(c, [1]))),
    "__iadd__": (object, added),
    "__neg__": (object, lambda c: -c),
    "__abs__": (object, abs),
    "__index__": (object, lambda c: [1][c], range, lambda c: [1, 2][c:]),
    "__int__": (object, int),
    "__float__": (object, float, complex),
    "__round__": (object, round),
    "__repr__": (object, repr, str, lambda c: f"{c}", lambda c: f"{c!r}", lambda c: "%s" % c),
    "__format__": (object, format, lambda c: f"{c}", "{}".format),
    "__hash__": (object, hash, lambda c: {c: 1}, lambda c: c in {}),
    "__enter__": (object, entered),
    "__missing__": (dict, lambda c: c["k"], lambda c: c.get("k")),
}
OF_BUILTINS = {
    "__add__": (int, lambda c: c + 1, lambda c: 1 + c),
    "__radd__": (int, lambda c: c + 1, lambda c: 1 + c),
    "__eq__": (str, lambda c: c == "", lambda c: c in [""], lambda c: {"": 1}.get(c)),
    "__bool__": (int, bool),
    "__len__": (list, len, bool),
    "__iter__": (list, list, lambda c: [*c], lambda c: 1 in c),
    "__str__": (str, str, lambda c: f"{c}"),
    "__hash__": (str, hash, lambda c: {c: 1}, lambda c: {"": 1}.get(c)),
    "__reversed__": (list, reversed),
    "__getitem__": (list, lambda c: c[0], list),
    "__lt__": (list, lambda c: c < [], lambda c: sorted([c, c])),
}


def tried(make, asked):
    def f(x):
        found = []
        c = make()
        for ask in asked:
            try:
                found.append(ask(c))
            except Exception as e:
                found.append((type(e).__name__, str(e)))
        return x * len(found), found

    return f


@pytest.mark.parametrize(
    "name, how", [*TAKEN.items(), *OF_BUILTINS.items()], ids=[*TAKEN, *(f"{n} of built-in" for n in OF_BUILTINS)]
)
def test_taken_away(name, how):
    base, *asked = how
    check(tried(type("C", (base,), {name: None}), asked), F(3))


@pytest.mark.parametrize("name, sign", BINARY.items())
def test_operators_taken_away(name, sign):
    for method in (f"__{name}__", f"__r{name}__"):
        asked = [eval(f"lambda c: {text}") for text in (f"c {sign} 1", f"1 {sign} c", f"c {sign} c")]
        check(tried(type("C", (), {method: None}), asked), F(3))


@program(F(3), Turn(3, 1, 2), graphs=1)
def test_missed_by_own_getattribute():
    """A class with both `__getattribute__` and `__getattr__`: what the first misses the second is asked for"""
    log = []

    class Lazy:
        real = 1

        def __init__(self):
            object.__setattr__(self, "store", {})

        def __getattribute__(self, name):
            log.append(name)
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            log.append(f"missed {name}")
            try:
                return self.store[name]
            except KeyError:
                raise AttributeError(f"no {name}") from None

        def __setattr__(self, name, value):
            self.store[name] = value

    lazy = Lazy()

    def f(x, n):
        lazy.w = x * n
        found = [hasattr(lazy, "w"), hasattr(lazy, "k"), getattr(lazy, "q", "default"), lazy.real]
        try:
            lazy.nope
        except AttributeError as e:
            found += [str(e), e.name, e.obj is lazy, e.__cause__]
        return lazy.w + 1, found

    return f, lambda: (log, lazy.store)


@program(F(3), graphs=1)
def test_missed_by_a_module():
    """A module with a `__getattribute__` of its own: weights are still found"""
    asked = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def __getattribute__(self, name):
            if name == "w":
                asked.append(name)
            return super().__getattribute__(name)

        def forward(self, x):
            return x * self.w

    m = Watched()

    def f(x):
        return m(x), hasattr(m, "v")

    return f, lambda: asked


@program(F(3), graphs=1)
def test_name_and_object_of_the_error():
    """`e.name` and `e.obj` of an AttributeError: those of the lookup that it leaves first"""

    class Plain:
        @property
        def bad(self):
            return self.missing

        unread = property(None)

        def up(self):
            return super().above

    class Own:
        def __getattr__(self, name):
            raise AttributeError(name, name="said") if name == "says" else AttributeError(name)

    class Slots:
        __slots__ = ("k",)

    def g():
        pass

    p, own, slots = Plain(), Own(), Slots()

    def delete():
        del p.k

    def f(x):
        found = []
        for act, of in (
            (lambda: p.bad, p),
            (lambda: p.unread, p),
            (lambda: p.other, p),
            (lambda: getattr(p, "other"), p),
            (lambda: object.__getattribute__(p, "z"), p),
            (lambda: own.k, own),
            (lambda: own.says, own),
            (lambda: slots.k, slots),
            (lambda: Plain.k, Plain),
            (lambda: x.foo, x),
            (lambda: g.foo, g),
            (lambda: [].foo, list),
            (lambda: p.up(), super),
            (lambda: setattr(slots, "z", 1), slots),
            (delete, p),
        ):
            try:
                act()
            except AttributeError as e:
                found.append((str(e), e.name, e.obj is of, e.obj is None))
        return x * 2, found

    return f


@program(F(3), Turn(3, 1, 2))
def test_keyword_defaults_are_one_dict():
    """`__kwdefaults__` is the dict itself: what is written into it, the next call uses"""

    def g(x, *, scale=2):
        return x * scale

    def f(x, n):
        before = g(x)
        held = g.__kwdefaults__
        held["scale"] = n

        def made(*, k=n):
            return k

        made.__kwdefaults__["k"] += 1
        return before, g(x), held, made(), made.__kwdefaults__ is made.__kwdefaults__

    return f, lambda: g.__kwdefaults__
