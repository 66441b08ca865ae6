"""Classes, descriptors and exceptions made in a region: what a program can see must be what Python shows."""

import functools
import gc
import sys

import torch

import bytejit
from tests.programs.harness import F, case


class Base:
    tags = []

    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        Base.tags.append(cls.__name__)

    def size(self):
        return 1


@case(F(3))
def test_class_leaves(x):
    """A class made inside is returned: a new one in each call, its methods see the closure"""
    y = x + 1

    class C:
        """doc"""

        k: int = 3

        def f(self):
            return y * self.k

    z = y * 2
    c = C()
    return c.f() + z, C.__name__, C.__qualname__, C.__doc__, C.__annotations__, type(c) is C


@case(F(3), graphs=1)
def test_closure_class(x):
    """Methods over a tensor, super(), properties with setters, class and static methods"""

    class A:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v + x

        @v.setter
        def v(self, new):
            self._v = new * 2

        @classmethod
        def make(cls, v):
            return cls(v)

        @staticmethod
        def half(t):
            return t / 2

    class B(A):
        def __init__(self, v):
            super().__init__(v)
            self.extra = 1

        @property
        def v(self):
            return super().v + self.extra

    b = B.make(x)
    a = A(x)
    a.v = x + 3
    return b.v, a.v, A.half(x), b.half(x), isinstance(b, A), [c.__name__ for c in B.__mro__]


@case(F(3), watch=())
def test_init_subclass(x):
    """__init_subclass__ runs once a call, and the bases forget the trace's stand-ins"""
    before = len(Base.tags)
    y = x + 1

    class D(Base):
        pass

    return y * D().size(), len(Base.tags) - before


def test_stand_ins_are_forgotten():
    class Root:
        pass

    def f(x):
        class Leaf(Root):
            def go(self):
                return 2

        return x * Leaf().go()

    compiled = bytejit.optimize("eager")(f)
    compiled(torch.ones(2))
    gc.collect()
    assert Root.__subclasses__() == []


@case(F(3))
def test_metaclass_conflict(x):
    """TypeError of two metaclasses"""

    class M(type):
        pass

    class N(type):
        pass

    class P(metaclass=M):
        pass

    y = x + 1
    try:

        class Q(P, metaclass=N):
            pass
    except TypeError as e:
        return y, str(e)


@case(F(3), graphs=1)
def test_own_hash_keys(x):
    """Instances with __hash__ and __eq__ as keys of dicts and sets made inside"""

    class K:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return self.n % 2

        def __eq__(self, o):
            return self.n == o.n

    d = {K(1): x, K(3): x + 1, K(2): x + 2}
    d[K(3)] = x * 5
    return d[K(1)] + d[K(3)], K(2) in d, K(4) in d, len({K(1), K(1), K(3)})


@case(F(3), graphs=1)
def test_tensor_keys(x):
    """Tensors and objects from outside as keys keep their identity"""
    d = {PARAM: 1, HOLDER: 2}
    return x + STATE[PARAM] + d[PARAM], x in STATE, HOLDER in d, PARAM in STATE


PARAM, HOLDER = torch.nn.Parameter(torch.ones(3)), Base()
STATE = {PARAM: 4}


@case(F(3))
def test_raised_exception_leaves(x):
    """A caught exception that is kept has its traceback"""
    y = x + 1
    try:
        raise ValueError("v", 1)
    except ValueError as e:
        kept = e
    return y * 2, kept.args, kept.__traceback__ is not None, kept.__context__


@case(F(3), graphs=1)
def test_except_star(x):
    """except*: nested groups, the rest raised on, notes and an else"""
    out = []
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [KeyError(2), OSError(3, "no")])])
        except* ValueError as g:
            out.append(("value", g.message, len(g.exceptions)))
        except* KeyError as g:
            out.append(("key", g.message, g.exceptions[0].message, g.exceptions[0].exceptions[0].args))
    except ExceptionGroup as left:
        out.append((str(left.message), type(left.exceptions[0].exceptions[0]).__name__))
    try:
        raise TypeError("naked")
    except* TypeError as g:
        out.append((g.message, g.exceptions[0].args))
    return x + len(out), out


@case(F(3))
def test_except_star_raises(x):
    """An exception raised in an except* clause joins what is left"""
    y = x + 1
    try:
        raise ExceptionGroup("a", [ValueError(1), TypeError(2)])
    except* ValueError:
        raise KeyError("new") from None
    return y


@case(F(3), graphs=1)
def test_exception_details(x):
    """OSError picks its class, notes, text, attributes, keywords"""
    e = OSError(2, "none")
    e.add_note("a note")
    n = NameError("nope", name="q")
    s = SystemExit(3)
    return (
        x + e.errno,
        type(e).__name__,
        e.strerror,
        e.__notes__,
        n.name,
        s.code,
        repr(KeyError("k")),
        str(KeyError("k")),
        str(ValueError(1, 2)),
        repr(ValueError()),
        str(AttributeError("t")),
    )


@case(F(3), drive=lambda f, x: _in_handler(f, x))
def test_exc_info_of_the_caller(x):
    """sys.exc_info() shows what a caller handles"""
    y = x + 1
    return y * 2, sys.exc_info()[0], str(sys.exc_info()[1])


def _in_handler(f, x):
    first = f(x)
    try:
        raise ValueError("outer")
    except ValueError:
        return first, f(x)


@functools.singledispatch
def kind(v):
    return "object"


@kind.register
def _(v: int):
    return "int"


def test_single_dispatch_registered_later():
    """A later register() is noticed"""

    def f(x, v):
        return x + 1, kind(v)

    compiled = bytejit.optimize("eager")(f)
    assert compiled(torch.ones(2), "s")[1] == "object"
    kind.register(str, lambda v: "str")
    assert compiled(torch.ones(2), "s")[1] == "str" == f(torch.ones(2), "s")[1]


def test_deep_recursion_compiles():
    """Near the recursion limit the compiler is no reason for a RecursionError"""
    compiled = bytejit.optimize("eager")(lambda x: x * 2 + 1)

    def down(n):
        return compiled(torch.ones(2)) if n == 0 else down(n - 1)

    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    assert down(limit - depth - 40).tolist() == [3, 3]
    assert sys.getrecursionlimit() == limit


@case(F(3), graphs=1)
def test_cells_that_die(x):
    """A variable of an inner function, rebound inside, read by a function that leaves or not"""
    n = 1

    def bump():
        nonlocal n
        n += 1
        return n

    bump()
    return x + bump(), (lambda: n), n


@case(F(3), graphs=1)
def test_class_written(x):
    """A class from outside written, read back through an instance"""
    Base.limit = 4
    return x * HOLDER.limit * Base.limit
