"""Regions that start in the middle of something: half-filled containers, locals without a value, saved locals."""

import pytest
import torch

from .harness import F, Sign, Turn, case

pytestmark = pytest.mark.filterwarnings("ignore")


def breaks(x):
    """A step that no graph takes: 0 or 1, as x's sum says."""
    return int(x.sum().item() > 0)


@case(Sign(4), breaks=True)
def test_list(x):
    """Break inside a list comprehension, before and after its value"""
    return [(x + i) * breaks(x + i) for i in range(3)]


@case(Sign(4), breaks=True)
def test_filter(x):
    """Break inside a comprehension's condition"""
    return [x * i for i in range(4) if breaks(x - i)], [x - i for i in range(4) if not breaks(x - i)]


@case(Sign(4), breaks=True)
def test_set_and_dict(x):
    """Break inside set and dict comprehensions"""
    return {breaks(x * i) + i for i in (-1, 1, 2)}, {i: x + breaks(x * i) for i in (-1, 1)}, {breaks(x): i for i in range(3)}


@case(Sign(4), breaks=True)
def test_nested(x):
    """Break inside a comprehension within a comprehension"""
    return [[x * i + j + breaks(x * j) for j in range(i)] for i in range(3)]


@case(Sign(4), breaks=True)
def test_shadowed(x):
    """A comprehension's name is a local outside too: it has its value again afterwards"""
    i = x * 2
    out = [x + i + breaks(x) for i in range(2)]
    return out, i


@case(Sign(4), Turn(0, 1, 0, 1), breaks=True, calls=4)
def test_shadowed_maybe(x, n):
    """The same with a local that may have no value"""
    if n:
        i = x * 2
    out = [x + i + breaks(x) for i in range(2)]
    try:
        return out, i
    except UnboundLocalError as e:
        return out, str(e)


@case(Sign(4), Turn(1, 0, 1, 0), breaks=True, calls=4)
def test_maybe_unbound(x, n):
    """A local that has no value in some calls, read after a break"""
    if n:
        y = x * 2
    k = breaks(x)
    try:
        return y, k
    except UnboundLocalError as e:
        return str(e), k


@case(Sign(4), Turn(1, 0, 1, 0), breaks=True, calls=4)
def test_maybe_unbound_returned(x, n):
    """A local without a value is returned: the exception is the program's own"""
    if n:
        y = x
    x = x + breaks(x)
    return y


@case(Sign(4), Turn(1, 0, 1, 0), breaks=True, calls=4)
def test_maybe_deleted(x, n):
    """A local deleted in some calls before a break"""
    y = x + 1
    if not n:
        del y
    x = x + breaks(x)
    return x, "y" in locals(), y


@case(Sign(4), breaks=True)
def test_cells(x):
    """Break inside a comprehension whose name a closure captures"""
    fs = [lambda: x + i + breaks(x) for i in range(3)]
    return [f() for f in fs], [(lambda: i)() + breaks(x * i) for i in range(2)]


@case(Sign(4), breaks=True)
def test_raises_inside(x):
    """An exception out of a comprehension that was entered again: the outer name has its value in the handler"""
    i = x - 1
    try:
        out = [x / (2 - i) if breaks(x) < 2 - i else [][i] for i in range(3)]
    except (IndexError, ZeroDivisionError) as e:
        return i, type(e).__name__
    return out, i


@case(Sign(4), breaks=True)
def test_displays(x):
    """Break inside displays and argument lists that are unpacked into one"""

    def f(*args, **kwargs):
        return args, kwargs

    a, d = [x, x + 1], {"p": x * 2}
    return (
        [*a, breaks(x), *a],
        {*range(2), breaks(x)},
        {**d, "q": breaks(x), **{"r": x}},
        (*a, breaks(x)),
        f(*a, breaks(x), *a, k=breaks(x), **d),
    )


@case(Sign(4), breaks=True)
def test_loops(x):
    """Break inside nested loops with else, break and continue"""
    out = []
    for i in range(4):
        if i == 1:
            continue
        for j in (x, x * 2):
            out.append(j + i + breaks(j * i))
            if i == 3:
                break
        else:
            out.append(i)
    else:
        out.append(x - 1)
    return out, i


@case(F(4), breaks=True)
def test_generator_inside_comprehension(x):
    """A comprehension over a generator expression, with breaks in both"""
    return [v + breaks(v) for v in (x * i + breaks(x + i) for i in range(3))]


class Base:
    def step(self, x, k=1):
        return x + k

    @property
    def twice(self):
        return 2

    @classmethod
    def make(cls, x):
        return cls.__name__, x * 2


class Child(Base):
    def step(self, x, k=2):
        return super().step(x, k + breaks(x)) * super().twice + super(Child, self).step(x)

    @property
    def twice(self):
        return super().twice + 1

    @classmethod
    def make(cls, x):
        return super().make(x + breaks(x))


@case(Sign(4), breaks=True)
def test_super(x):
    """super() in methods, properties, class methods, around breaks"""
    c = Child()
    return c.step(x), c.twice, Child.make(x)


@case(Sign(4), breaks=True)
def test_class_body(x):
    """Comprehensions and a break inside a class body"""

    class Table:
        k = breaks(x)
        rows = [i + 1 for i in range(3)]
        total = sum(r for r in rows)

    return x + Table.k, Table.rows, Table.total


@case(Sign(4), breaks=True)
def test_iterator_twice(x):
    """An iterator that a loop leaves half read at a break"""
    it = iter(range(6))
    out = [x + i for i in it if i < 5 and (i < 2 or breaks(x) or next(it, None) is not None)]
    return out, list(it)


@case(Sign(4), breaks=True)
def test_while_with(x):
    """Breaks inside with blocks inside loops"""
    n, out = 0, []
    while n < 3:
        with torch.no_grad():
            out.append(x * n + breaks(x))
        n += 1
    return out


@case(F(4), graphs=1)
def test_comprehension_cells(x):
    """Each comprehension that a closure captures the name of has a cell of its own"""
    i = 10
    g = lambda: i
    fs = [lambda: i for i in range(2)]
    nested = [[lambda: i + j for j in range(k)] for k in range(3)]
    plain = [i + 1 for i in (1, 2)]
    return x + 1, g(), i, [f() for f in fs], [[f() for f in h] for h in nested], plain


@case(Sign(4), breaks=True)
def test_comprehension_cells_break(x):
    """The same with breaks before, inside and after"""
    i = breaks(x)
    g = lambda: i
    fs = [(lambda: i + breaks(x * i), breaks(x - i)) for i in range(3)]
    i = i + 5
    return x + i, g(), i, [f() + k for f, k in fs], [i for i in (1, breaks(x))], g()
