# ruff: noqa: E731
"""Named tuples with special methods and fields of their own, and operators that classes inherit"""

import collections
import copy
import typing

import torch

import bytejit

from .harness import F, Turn, program


class Own(typing.NamedTuple):
    a: torch.Tensor
    b: int

    def __hash__(self):
        return hash(self.b)

    def __eq__(self, o):
        return self.b == o[1]

    def __ne__(self, o):
        return "ne"

    def __repr__(self):
        return f"Own<{self.b}>"

    def __len__(self):
        return 7

    def __iter__(self):
        return iter((self.b, 8, 9))

    def __contains__(self, v):
        return v == 99

    def __getitem__(self, i):
        return ("item", i) if i != 1 else self.b

    def __add__(self, o):
        return Own(self.a + o.a, self.b + o.b)

    def __mul__(self, o):
        return Own(self.a * o, self.b)

    def __bool__(self):
        return False

    def __call__(self, v):
        return self.a * v

    def __lt__(self, o):
        return "lt"

    def __getattr__(self, n):
        return "attr " + n

    def __enter__(self):
        return "in"

    def __exit__(self, *e):
        return True

    def __neg__(self):
        return Own(-self.a, -self.b)

    def __index__(self):
        return 2

    def index(self, v):
        return "own index"

    @property
    def twice(self):
        return self.a * 2

    @classmethod
    def of(cls, x):
        return cls(x, 4)


def use(x, t, u):
    with t as w:
        raise ValueError
    a, b, c = t
    operators = [t == u, t != u, t + u, t * 2, bool(t), t < u, -t, not t, t if t else "falsy", 99 in t, t[0], t[1], len(t)]
    texts = [repr(t), f"{t}", str(t), t.zz, w]
    items = [list(t), [*t], max(t), sum(t), dict(zip("abc", t)), (lambda *k: k)(*t), a, b, c, tuple.__len__(t)]
    return operators, texts, items, t(3), [1, 2, 3][t], t.index(1), t.twice, Own.of(x), hash(t), t.b, t.a, copy.copy(t)


@program(F(3), calls=2)
def test_operators_of_one_made_inside():
    return lambda x: use(x, Own(x, 1), Own(x + 1, 1))


@program(args=lambda r: (r.f(3), Own(r.f(3), 1), Own(r.f(3), 1)), calls=2)
def test_operators_of_one_given():
    return use


class Sub(collections.namedtuple("Base", "p q")):  # with a namespace
    def __eq__(self, o):
        return True

    __hash__ = None

    def __add__(self, o):
        return Sub(self.p + o[0], self.q)


class Slotted(collections.namedtuple("Base", "p q")):
    __slots__ = ()

    def norm(self):
        return self.p * self.q

    def __add__(self, o):
        return Slotted(self.p + o.p, self.q + o.q)


class Added(typing.NamedTuple):
    x: torch.Tensor
    n: int

    def __add__(self, o):
        return Added(self.x + o.x, self.n + o.n)


@program(args=lambda r: (r.f(3), Sub(r.f(3), 1), Slotted(r.f(3), 2), Added(r.f(3), 3)), calls=2, graphs=1)
def test_fields_of_subclasses():
    def f(x, s, p, g):
        t, q, h = Sub(x, 2), Slotted(x, 1), Added(x, 1)
        s.extra, t.more = 5, 1
        sums = s + t, t + s, p + q, q + p, g + h, h + g
        replaced = q._replace(p=1), p._replace(q=9), s._replace(q=3), g._replace(n=8)
        fields = s.p, t.p, q.q, p.q, g.n, h.x, s.extra
        return s == t, sums, p.norm(), replaced, fields, p[0], s[1], [*p], t._asdict(), {Added(1, 2): 3}

    return f


@program(F(3), calls=2)
def test_operators_inherited():
    class A:
        def __add__(self, o):
            return "add"

        def __radd__(self, o):
            return "radd"

        def __floordiv__(self, o):
            return "floordiv"

        def __mod__(self, o):
            return "mod"

        def __divmod__(self, o):
            return "divmod", o

        def __rdivmod__(self, o):
            return "rdivmod", o

        def __lt__(self, o):
            return "lt"

        def __gt__(self, o):
            return "gt"

    class B(A):
        pass

    class C(A):
        def __radd__(self, o):
            return "c radd"

        def __rdivmod__(self, o):
            return "c rdivmod"

    def f(x):
        a, b, c = A(), B(), C()
        sums = a + b, a + c, b + c, c + a, a + 1, 1 + c
        both = [divmod(*p)[0] for p in ((a, b), (a, c), (c, a), (3, c), (b, 2))]
        return x + 1, sums, both, a < b, a > c, b < a, divmod(True, 2), divmod(x.shape[0], 2), divmod(7.5, 2)

    return f


@program(F(3), calls=2)
def test_operators_that_are_not_there():
    class A:
        pass

    def f(x):
        a, found = A(), []
        for wrong in (
            lambda: divmod(x, 2),
            lambda: divmod(2, x),
            lambda: divmod(a, 1),
            lambda: divmod([], 1),
            lambda: round(a),
            lambda: round(a, 2),
            lambda: abs(a),
            lambda: super(A, 1).__repr__,
        ):
            try:
                found.append(wrong())
            except TypeError as e:
                found.append(str(e))
        return found, x + 1

    return f


@program(F(3), graphs=1)
def test_metaclass_with_getattr():
    class Meta(type):
        def __getattr__(cls, name):
            return f"{cls.__name__} {name}"

    class A(metaclass=Meta):
        def __init__(self, x):
            self.x = x

    kept = A(3)

    def f(x):
        a, b = A(x), kept
        b = b.x
        return a.x + b, A.nothing

    return f


@program(Turn(5, 7, 2, 9, -1, 300), Turn("a", "bb", "a", "dd", "bb", "c"), F(2), calls=6)
def test_keys_that_are_equal_to_others():
    """Keys of dicts and elements of sets keep their class: named tuples, sizes, numbers that are equal to others"""
    Key = collections.namedtuple("Key", "a b")
    counts, seen = {}, {Key(0, "z"), 1.0, (3, 4)}
    fixed = {1.0: 0, True + 1: 3, Key(3, 4): 9, False: 2}

    def f(n, s, x):
        counts[Key(n % 2, s)] = counts.get(Key(n % 2, s), 0) + n
        fixed[1] = n
        fixed[3, 4] += 1
        fixed.setdefault(0, []), fixed.pop(True, None)
        fixed[True] = s
        seen.add(Key(n, s))
        seen.add(1)
        made = {Key(n, s), x.shape}, frozenset([Key(1, s)]), {(Key(n, s), 1)}, {frozenset({Key(1, 2)}): 2}
        told = [sorted(map(repr, m)) for m in made]
        return x + 1, sorted(counts.items()), [*counts], [*fixed.items()], {k for k in fixed if type(k) is Key}, made, told

    def observe():
        return counts, fixed, sorted(map(repr, seen))

    return f, observe


def test_classes_of_elements_that_leave():
    """The same sets, looked at element by element"""
    Key = collections.namedtuple("Key", "a b")
    f = lambda x, n: (x + 1, {Key(n, 1)}, {x.shape}, frozenset([(Key(n, 2), 3)]))
    compiled = bytejit.compile(f, backend="eager")
    for n in (3, 4, 5):
        assert repr(compiled(torch.ones(2), n)[1:]) == repr(f(torch.ones(2), n)[1:])
