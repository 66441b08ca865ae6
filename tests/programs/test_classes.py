# ruff: noqa: E742 - what the programs do is the point
"""Classes and objects"""

import abc
import collections.abc
import dataclasses
import enum
import functools
import inspect
import typing
import weakref
from collections import namedtuple
from unittest import mock

import torch

import bytejit

from .harness import F, Sign, Turn, case, program


class Vec:
    """Operators over a tensor."""

    scale = 2

    def __init__(self, t, name="v"):
        self.t, self.name = t, name

    def __add__(self, o):
        return Vec(self.t + (o.t if isinstance(o, Vec) else o))

    def __radd__(self, o):
        return Vec(o + self.t, "r")

    def __iadd__(self, o):
        self.t = self.t + o
        return self

    def __matmul__(self, o):
        return self.t @ o.t

    def __neg__(self):
        return Vec(-self.t)

    def __getitem__(self, i):
        return self.t[i]

    def __setitem__(self, i, v):
        self.t = torch.cat([self.t[:i], v.reshape(1), self.t[i + 1 :]])

    def __len__(self):
        return 4

    def __bool__(self):
        return self.name != "no"

    def __eq__(self, o):
        return isinstance(o, Vec) and self.name == o.name

    def __hash__(self):
        return hash(self.name)

    def __lt__(self, o):
        return self.name < o.name

    def __contains__(self, v):
        return v == self.name

    def __call__(self, k, *, plus=0):
        return self.t * k + plus

    @property
    def double(self):
        return self.t * self.scale

    @double.setter
    def double(self, v):
        self.t = v / self.scale

    @classmethod
    def zeros(cls, n):
        return cls(torch.zeros(n), cls.__name__)

    @staticmethod
    def twice(t):
        return t * 2


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Base:
    def __init__(self, k):
        self.k = k

    def go(self, x):
        return x * self.k


class Left(Base):
    def go(self, x):
        return super().go(x) + 1


class Right(Base):
    def go(self, x):
        return super().go(x) * 10


class Both(Left, Right):
    def __init__(self, k):
        super().__init__(k + 1)

    def go(self, x):
        return super().go(x) - 3


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: int = 3
    tags: list = dataclasses.field(default_factory=list)

    def moved(self, d):
        return dataclasses.replace(self, x=self.x + d)


@dataclasses.dataclass(frozen=True, order=True)
class Size:
    w: int
    h: int

    def __post_init__(self):
        object.__setattr__(self, "w", self.w * 2)


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2

    def total(self):
        return self.a + self.b


Old = namedtuple("Old", "u v")


class Mode(enum.Enum):
    ADD = "add"
    MUL = 2

    def run(self, x):
        return x + 1 if self is Mode.ADD else x * self.value


class Flag(enum.IntFlag):
    R = 1
    W = 2


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self, x): ...

    def twice(self, x):
        return self.area(x) * 2


class Square(Shape):
    def area(self, x):
        return x * x


@case(F(4), graphs=1)
def test_instances_made_inside(x):
    """Instances created, changed, returned"""
    v = Vec(x)
    v.t = v.t + 1
    v.extra = 3
    return v, v.extra


@case(F(4), graphs=1)
def test_operators(x):
    """Binary, reflected, in-place, unary operators, `@`, subscript, len, bool, in, call"""
    v, w = Vec(x), Vec(x + 1)
    s = v + w
    r = 1 + v
    v += 5
    v[1] = x[0]
    return (
        s.t,
        r.t,
        v.t,
        (-v).t,
        v @ w,
        v[0],
        len(v),
        bool(v),
        "v" in v,
        v(2, plus=1),
        v == w,
        v != Vec(x, "o"),
        {v: 1}[w],
        sorted([Vec(x, "b"), Vec(x, "a")])[0].name,
    )


@case(F(4), graphs=1)
def test_properties(x):
    """Properties and setters, class and static methods, class attributes"""
    v = Vec(x)
    v.double = x * 8
    return v.t, v.double, Vec.zeros(4).t + x, v.twice(x), Vec.scale, type(v).__name__


@program(F(4), graphs=1)
def test_object_outside_changed():
    """An object from outside, attributes set and deleted: seen outside"""

    class Obj:
        pass

    o = Obj()
    o.a, o.gone = 1, 2

    def f(x):
        o.last = x * 2
        o.a = 10
        if hasattr(o, "gone"):
            del o.gone
        return o.last + o.a

    return f, lambda: o


@program(F(4))
def test_object_counter():
    """A counter on an object from outside, read and written"""

    class Obj:
        n = 0

    o = Obj()

    def f(x):
        o.n += 1
        return x * o.n

    return f, lambda: o.n


@program(F(4), graphs=1)
def test_class_attribute_set():
    """A class attribute set from inside"""

    class Obj:
        count = 5

    def f(x):
        Obj.count = 7
        Obj.fresh = "new"
        return x * Obj.count

    return f, lambda: (Obj.count, Obj.fresh)


@case(F(4), graphs=1)
def test_descriptors(x):
    """Descriptors: data, non-data, `__set_name__`"""

    class Scaled:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.name) * 2

        def __set__(self, obj, v):
            setattr(obj, self.name, v + 1)

    class Lazy:
        def __get__(self, obj, owner=None):
            return "lazy"

    class Thing:
        s = Scaled()
        z = Lazy()

    t = Thing()
    t.s = x
    before = t.z
    t.z = "own"
    return t.s, before, t.z, isinstance(Thing.s, Scaled)


@case(F(4), graphs=1)
def test_slots(x):
    """`__slots__`: set, unset, no `__dict__`"""
    s = Slotted(x)
    s.b = x + 1
    try:
        s.c = 1
    except AttributeError:
        s.a = s.a * 2
    return s, hasattr(s, "b"), hasattr(s, "__dict__")


@case(F(4), graphs=1)
def test_getattr_family(x):
    """`__getattr__`, `__setattr__`, `__getattribute__`, getattr/setattr/delattr/vars"""

    class Bag:
        def __init__(self):
            self.__dict__["d"] = {}

        def __getattr__(self, name):
            try:
                return self.__dict__["d"][name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name, v):
            self.d[name] = v

    b = Bag()
    b.t = x
    setattr(b, "u", x + 1)
    return b.t + b.u, getattr(b, "nope", 3), hasattr(b, "q"), sorted(vars(b)), list(b.d)


@case(F(4), graphs=1)
def test_super(x):
    """`super()` over a diamond, explicit `super(C, self)`, unbound methods"""
    b = Both(2)
    return b.go(x), super(Left, b).go(x), Base.go(b, x), [c.__name__ for c in Both.__mro__]


@case(F(4), graphs=1)
def test_metaclass(x):
    """Metaclasses, `__init_subclass__`, `__class_getitem__`, `type(...)` made inside"""

    class Meta(type):
        def __call__(cls, *a):
            o = super().__call__(*a)
            o.made = cls.__name__
            return o

        def __len__(cls):
            return 7

    class Reg(metaclass=Meta):
        seen = []

        def __init_subclass__(cls, tag=None, **k):
            super().__init_subclass__(**k)
            Reg.seen.append((cls.__name__, tag))

    class Sub(Reg, tag="t"):
        pass

    Dyn = type("Dyn", (Base,), {"k2": 3})
    return x + len(Sub), Sub().made, Reg.seen, Dyn(2).go(x) * Dyn.k2


@case(F(4), graphs=1)
def test_dataclasses(x):
    """Dataclasses: fields, replace, asdict, eq, order, frozen, post-init"""
    p = Point(x, tags=["a"])
    q = p.moved(1)
    s = Size(1, 2)
    try:
        s.w = 3
    except dataclasses.FrozenInstanceError:
        ok = True
    return (
        q,
        p.y,
        [f.name for f in dataclasses.fields(p)],
        s,
        Size(1, 2) == s,
        Size(0, 1) < s,
        ok,
        hash(s) == hash(Size(1, 2)),
        dataclasses.asdict(s),
    )


@case(F(4), graphs=1)
def test_namedtuples(x):
    """NamedTuple and namedtuple: fields, `_replace`, `_asdict`, unpacking"""
    p = Pair(x)
    o = Old(x, 1)._replace(v=5)
    a, b = p
    return p.total(), p, o, o.v, a + b, list(o._asdict()), p[1], Pair._fields, isinstance(p, tuple)


@case(F(4), graphs=1)
def test_enums(x):
    """Enum, IntFlag: members, value, name, iteration, lookup, methods"""
    return (
        Mode.ADD.run(x),
        Mode(2).run(x),
        Mode["ADD"].value,
        [m.name for m in Mode],
        Flag.R | Flag.W,
        Flag.W in (Flag.R | Flag.W),
        Mode.ADD == Mode.MUL,
        isinstance(Flag.R, int),
    )


@case(F(4), Turn(Mode.ADD, Mode.MUL), graphs=1, total=2)
def test_enum_argument(x, m):
    """An Enum as argument"""
    return m.run(x), m


@case(F(4), graphs=1)
def test_abc_and_protocol(x):
    """ABC, abstract error, Protocol, `isinstance` against ABCs"""
    from collections.abc import Mapping, Sequence

    try:
        Shape()
    except TypeError:
        x = x + 1
    return Square().twice(x), isinstance([], Sequence), isinstance({}, Mapping), isinstance(Square(), Shape)


@case(F(4), breaks=True)
def test_generic_class(x):
    """Generic classes and typing at run time"""
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

    return Box[torch.Tensor](x).v + 1, typing.cast(int, 3), Box(x).v


@case(F(4), graphs=1)
def test_partial(x):
    """functools.partial, partialmethod"""
    p = functools.partial(torch.add, x, alpha=2)
    q = functools.partial(functools.partial(lambda a, b, c: a * b + c, 2), c=5)

    class M:
        def go(self, k, t):
            return t * k

        three = functools.partialmethod(go, 3)

    return p(x), q(x), M().three(x), p.keywords, q.args


@case(F(4), graphs=1)
def test_wraps(x):
    """functools.wraps and decorators with arguments"""

    def times(k):
        def deco(f):
            @functools.wraps(f)
            def g(*a, **kw):
                return f(*a, **kw) * k

            return g

        return deco

    @times(3)
    def inner(t, p=1):
        """doc"""
        return t + p

    return inner(x, p=2), inner.__name__, inner.__doc__, inner.__wrapped__(x)


@functools.lru_cache(None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.singledispatch
def kind(v):
    return "object"


@kind.register
def _(v: int):
    return "int"


@kind.register(torch.Tensor)
def _(v):
    return v + 1


@case(F(4), graphs=1)
def test_lru_cache(x):
    """functools.lru_cache"""
    return x + fib(10)


@case(F(4), graphs=1)
def test_singledispatch(x):
    """functools.singledispatch"""
    return kind(3), kind("s"), kind(x)


@case(F(4), graphs=1)
def test_cached_property(x):
    """functools.cached_property, total_ordering, cmp_to_key, reduce"""

    class C:
        n = 0

        @functools.cached_property
        def p(self):
            self.n += 1
            return x * 2

    c = C()

    @functools.total_ordering
    class O:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    return c.p + c.p, c.n, O(1) >= O(1), sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


@case(F(4), graphs=1)
def test_bound_methods(x):
    """Bound and unbound methods as values, `__self__`, `__func__`"""
    v = Vec(x)
    m = v.__add__
    s = x.sin
    return m(1).t, s(), torch.Tensor.cos(x), m.__self__ is v, m.__func__ is Vec.__add__, [].append.__name__


@case(F(4), graphs=1)
def test_instance_dict_tricks(x):
    """`__dict__` written, `__class__` assigned, `__new__`"""

    class A:
        def __new__(cls, *a):
            o = super().__new__(cls)
            o.born = True
            return o

        def who(self):
            return "A"

    class B(A):
        def who(self):
            return "B"

    a = A()
    a.__dict__["t"] = x
    a.__dict__.update(k=2)
    a.__class__ = B
    return a.t * a.k, a.who(), a.born, type(a).__name__


@program(F(4), graphs=1)
def test_bound_method_compiled():
    """A bound method as the compiled function"""

    class Layer:
        def __init__(self):
            self.w, self.calls = 3, 0

        def run(self, x):
            self.last = x
            return x * self.w

    lay = Layer()
    return lay.run, lambda: lay.w


@program(F(4), graphs=1)
def test_callable_object_compiled():
    """A callable object as the compiled function"""

    class Layer:
        k = 4

        def __call__(self, x):
            return x * self.k

    return Layer()


@program(F(4), graphs=1)
def test_partial_compiled():
    """A functools.partial as the compiled function"""
    return functools.partial(lambda k, x, p=0: x * k + p, 3, p=1)


@case(F(4), graphs=1)
def test_repr_str_format(x):
    """`__repr__`, `__str__`, `__format__`, `__hash__` of user classes"""

    class R:
        def __repr__(self):
            return "R!"

        def __format__(self, spec):
            return "F" + spec

    return x + 1, f"{R()}|{R()!r}|{R():>3}", str(R()), repr([R()])


@case(F(4), graphs=1)
def test_comparison_protocols(x):
    """`__index__`, `__int__`, `__float__`, `__bool__`, `__len__` as truth"""

    class N:
        def __index__(self):
            return 2

        def __float__(self):
            return 1.5

    class E:
        def __len__(self):
            return 0

    return x[N()], [1, 2, 3][N()], float(N()), int(N()), bool(E()), list(range(N()))


@case(Sign(4), breaks=True)
def test_break_in_method(x):
    """Break inside a method of an object made inside"""

    class Gate:
        def __init__(self, t):
            self.t, self.state = t, []

        def step(self):
            self.state.append("start")
            if self.t.sum() > 0:
                self.t = self.t + 1
            self.state.append("end")
            return self.t

    g = Gate(x * 2)
    y = g.step()
    return y + 1, g.state


@case(Sign(4), breaks=True)
def test_break_in_property_and_operator(x):
    """Break inside a property, an operator, `__getitem__`, `__init__`"""

    class P:
        def __init__(self, t):
            self.t = t + 1 if t.sum() > 0 else t - 1

        @property
        def up(self):
            return self.t * 2 if self.t.sum() > 0 else self.t * 3

        def __add__(self, o):
            return self.t + o if self.t.sum() > 0 else self.t - o

    p = P(x)
    return p.up + 1, p + 5


@program(F(4), graphs=1)
def test_weakref_and_id():
    """Objects from outside keep their identity"""

    class K:
        pass

    k = K()
    d = {k: 1}

    def f(x):
        return x * d[k], k, k is list(d)[0]

    return f


@program(F(4))
def test_finalizers_run_when_the_last_name_goes():
    """Objects with `__del__`: run when the last name goes, seen by what follows"""

    class Held:
        count = 0

        def __init__(self):
            Held.count += 1

        def __del__(self):
            Held.count -= 1

    def f(x):
        one = Held()
        seen = [Held.count]
        del one
        seen.append(Held.count)
        many = [Held(), Held(), Held()]
        try:
            a, b = iter(many)
        except ValueError:
            seen.append(Held.count)
        del many
        seen.append(Held.count)
        return x + 1, seen

    return f


@program(F(4))
def test_hash_with_effects():
    """Keys whose `__hash__` counts its calls"""

    class Counted(int):
        hashed = 0

        def __hash__(self):
            Counted.hashed += 1
            return int.__hash__(self)

    def f(x):
        d = dict.fromkeys(map(Counted, range(3)))
        s = set(d)
        s.discard(1)
        return x + 1, len(s), sorted(map(int, d))

    return f, lambda: Counted.hashed


class _Held:
    pass


def _with_box(f, x):
    held = _Held()
    box = [held, weakref.ref(held)]
    del held
    return f(x, box), box[0]


@case(F(4), drive=_with_box, breaks=True)
def test_weak_reference_after_the_last_holder(x, box):
    """A weak reference read after what held its object let go of it"""
    ref = box[1]
    y = x + 1
    box[0] = None
    return y, ref() is None


class _Watcher:
    def __init__(self, held):
        self.held, self.ref = held, weakref.ref(held)

    def same(self):
        return any(self.ref() is h for h in (self.held,))


def _watched(f, x):
    return f(x, _Watcher(_Held()))


@case(F(4), drive=_watched)
def test_weak_reference_after_cells_of_the_region(x, watcher):
    """A weak reference read after cells of functions called within were written: they held nothing from outside"""
    k = 2

    def scaled(v):
        nonlocal k
        k += 1
        return v * k

    return scaled(x), k, watcher.same()


class _Proxy:
    def __init__(self, of):
        object.__setattr__(self, "of", of)

    @property
    def __class__(self):
        return type(self.of)

    def __getattr__(self, name):
        return getattr(self.of, name)


class _Named:
    size = 3


@case(F(4), lambda: _Proxy(_Named()), lambda: _Named())
def test_proxy_names_its_class(x, proxy, plain):
    """isinstance() and __class__ of a proxy, whose class says that it is another; type() does not"""
    y = x * 2 if isinstance(proxy, _Named) else x
    return (
        y * proxy.size,
        proxy.__class__ is _Named,
        type(proxy) is _Named,
        isinstance(plain, _Proxy),
        isinstance(proxy, (int, list)),
    )


class _Watching:
    """Writes down what is asked of its instances."""

    asked = []

    def __init__(self):
        self.weight = 2

    def __getattribute__(self, name):
        _Watching.asked.append(name)
        return object.__getattribute__(self, name)

    @property
    def __class__(self):
        _Watching.asked.append("the class")
        return _Watching


def _asked(f, x):
    _Watching.asked.clear()
    return f(x, _Watching()), f(x, _Watching()), list(_Watching.asked)


@case(F(4), drive=_asked)
def test_an_object_is_asked_what_the_program_asks(x, watching):
    """An object whose __getattribute__ or __class__ has effects: the compiler asks it nothing of its own"""
    y = x * 2
    return y + watching.weight, type(watching) is _Watching


@case(F(4), drive=_asked)
def test_an_object_is_set_and_asked_nothing(x, watching):
    """Attributes of an object whose __getattribute__ has effects set: it is not asked for anything"""
    watching.other = x + 1
    y = x * 2
    watching.count = 3
    return y


class _HidesDict:
    asked = []
    size = 3

    @property
    def __dict__(self):
        _HidesDict.asked.append(1)
        return {}


def _hidden(f, x):
    _HidesDict.asked.clear()
    return f(x, _HidesDict()), len(_HidesDict.asked)


@case(F(4), drive=_hidden, breaks=True)
def test_dict_of_its_own(x, odd):
    """An object whose class replaces `__dict__`"""
    y = x * 2
    return y * odd.size


class _Meta(type):
    asked = []

    def __getattribute__(cls, name):
        _Meta.asked.append(name)
        return type.__getattribute__(cls, name)


class _OfMeta(metaclass=_Meta):
    size = 3


def _meta_asked(f, x):
    _Meta.asked.clear()
    return f(x), list(_Meta.asked)


@case(F(4), drive=_meta_asked, breaks=True)
def test_metaclass_is_asked_what_the_program_asks(x):
    """A class whose metaclass has a `__getattribute__` with effects"""
    y = x * 2
    return y * _OfMeta.size


@case(F(4), breaks=True)
def test_class_and_dict_properties_made_inside(x):
    """A class made inside that defines `__class__` or `__dict__`"""
    y = x + 1

    class A:
        @property
        def __class__(self):
            return int

    class B:
        @property
        def __dict__(self):
            return {"k": 3}

    return y * 2, isinstance(A(), int), type(A()).__name__, vars(B())


def _dispatch_with_cache(f, x):
    with mock.patch.object(weakref, "WeakKeyDictionary", dict):
        one = functools.singledispatch(lambda v: v * 2)
    cache = one.dispatch.__closure__[one.dispatch.__code__.co_freevars.index("dispatch_cache")].cell_contents
    return f(x, one, cache), len(cache)


@case(F(4), drive=_dispatch_with_cache, breaks=True)
def test_singledispatch_with_a_cache_of_the_program(x, one, cache):
    """functools.singledispatch whose cache the program can look into: it is filled by the program's calls only"""
    before = len(cache)
    return x + 1 + one(3), before, len(cache)


@case(F(4), breaks=True)
def test_singledispatch_without_an_order(x):
    """functools.singledispatch between two abstract classes without an order raises"""

    class C:
        pass

    _HasA.register(C)
    _HasB.register(C)
    try:
        _unordered(C())
    except RuntimeError as e:
        said = str(e).partition(":")[0]
    return x + 1, said


class _HasA(abc.ABC):
    @abc.abstractmethod
    def a(self):
        """"""


class _HasB(abc.ABC):
    @abc.abstractmethod
    def b(self):
        """"""


@functools.singledispatch
def _unordered(v):
    return 0


_unordered.register(_HasA, lambda v: 1)
_unordered.register(_HasB, lambda v: 2)


@case(F(4), graphs=1)
def test_abstract_methods_of_a_plain_class(x):
    """`__abstractmethods__` of a class that has none, and of one that has"""
    return x + 1, hasattr(_Named, "__abstractmethods__"), hasattr(_HasA, "__abstractmethods__")


class _Asked:
    size = 3

    def __getattribute__(self, name):
        if super().__getattribute__("__dict__").get("hidden") == name:
            raise LookupError(name)
        return super().__getattribute__(name)


@case(F(4))
def test_class_through_getattribute(x):
    """__class__ of an object whose __getattribute__ hands on to object's"""
    asked = _Asked()
    return x * asked.size, asked.__class__.__name__, asked.__class__ is type(asked), isinstance(asked, _Asked)


class _ListThroughObject(list):
    __new__ = object.__new__


class _NoInit:
    def __init__(self, n=0):
        self.n = n


@case(F(4), breaks=True)
def test_object_new_and_init_called_as_they_are(x):
    """object.__new__ and object.__init__ with too many arguments, with none, and for a class that begins as a list"""

    def said(call, *args):
        try:
            return type(call(*args)).__name__
        except TypeError as e:
            return str(e)

    y = x + 1
    made = _ListThroughObject()
    made.append(3)
    return (
        y,
        made,
        said(object.__new__),
        said(object.__new__, list),
        said(object.__new__, _ListThroughObject),
        said(object.__new__, _NoInit),
        said(object.__new__, _NoInit, 5),
        said(object.__new__, _Named, 5),
        said(object.__init__, _NoInit(), 5),
        said(object.__init__, _Named(), 5),
        said(object.__init__),
    )


def used_outside(f, x):
    """The classes and instances that came out, used by the caller."""
    a, cls, other, error, plain = f(x)
    try:
        raise error
    except cls.Failed as e:
        said = e.args, str(e)
    other.extra = 2
    return (
        a.double(),
        a.twice,
        cls.of(x).value,
        cls.add(1),
        type(a) is cls,
        a == other,
        a.value,
        other.both(),
        said,
        cls.__qualname__,
        cls.__module__,
        type(other).__mro__[1] is cls,
        plain.q,
        hasattr(plain, "__dict__"),
        hash(plain) == 3,
    )


@case(F(4), graphs=1, drive=used_outside)
def test_classes_that_leave(x):
    """Classes made inside that leave with their instances: methods, super(), properties, slots, exceptions, closures"""
    scale = x.sum()

    class A:
        """Doc."""

        k = 3

        class Failed(ValueError):
            pass

        def __init__(self, value):
            self.value = value

        def double(self):
            return self.value * self.k + scale

        @property
        def twice(self):
            return self.value * 2

        @classmethod
        def of(cls, value):
            return cls(value)

        @staticmethod
        def add(n):
            return n + 1

        def __eq__(self, other):
            return isinstance(other, A)

    class B(A):
        def __init__(self, value, more):
            super().__init__(value)
            self.more = more

        def both(self):
            return super().double() + self.more

    class Slotted:
        __slots__ = ("q",)

        def __hash__(self):
            return 3

    plain = Slotted()
    plain.q = x * 2
    return A(x + 1), A, B(x, 1.0), A.Failed("a", 1), plain


@case(F(4))
def test_classes_with_hooks_that_leave(x):
    """Classes whose making runs code of the program leave it: `__set_name__`, `__init_subclass__`, a metaclass"""
    log = []

    class Named:
        def __set_name__(self, owner, name):
            log.append(name)

    class Meta(type):
        def __new__(mcs, name, bases, ns):
            log.append(name)
            return super().__new__(mcs, name, bases, ns)

    class C(metaclass=Meta):
        field = Named()

    class Base:
        def __init_subclass__(cls, **kw):
            log.append(cls.__name__)

    class D(Base):
        pass

    return C().field, D(), log, x + 1


@case(F(4), graphs=1)
def test_annotations_inside(x):
    """annotations of functions and classes made inside: asked for, written, copied by wraps; docstrings"""

    def plain(a: int, b: "text" = 1) -> torch.Tensor:  # noqa: F821
        return "no docstring"

    def documented():
        "a docstring"

    @functools.wraps(plain)
    def wrapper(*args):
        return plain(*args)

    documented.__annotations__["more"] = x.dtype

    class Record:
        size: int = 3
        kind: x.dtype = None

        def scaled(self, by: size) -> "Record":
            return self

    given = Record.scaled.__annotations__
    return (
        x * 2,
        plain.__annotations__,
        wrapper.__annotations__,
        documented.__annotations__,
        given,
        [f.__doc__ for f in (plain, documented, wrapper)],
        documented.__annotations__ is documented.__annotations__,
    )


def annotated_class_made(x):
    class Record:
        size: int = 3
        kind: x.dtype = None

        def scaled(self, by: size) -> "Record":
            return self

    def of(record: Record) -> int:
        return record.size

    return x + 1, Record, of


def test_annotations_of_what_leaves():
    """A class and a function that leave the region have their annotations (3.14: made when asked for)."""
    fn, x = bytejit.optimize("eager", nopython=True)(annotated_class_made), torch.ones(2)
    for _ in range(2):
        y, record, of = fn(x)
        assert y.tolist() == [2.0, 2.0] and record.__annotations__ == {"size": int, "kind": torch.float32}
        assert record.scaled.__annotations__ == {"by": 3, "return": "Record"}
        assert of.__annotations__ == {"record": record, "return": int} and "__classdictcell__" not in vars(record)


@case(F(3), graphs=1)
def test_named_tuples_made_inside(x):
    """NamedTuple classes and namedtuple() made inside: methods, properties, defaults, leaving with their instances"""

    class Pair(typing.NamedTuple):
        a: torch.Tensor
        b: int = 3

        def total(self):
            return self.a * self.b

        @property
        def first(self):
            return self.a[0]

    point = namedtuple("Point", "u v", defaults=(4,))
    typed = typing.NamedTuple("Typed", [("u", int)])  # noqa: UP014
    pair = Pair(x)
    return (
        pair.total(),
        pair.first,
        pair._replace(b=4).b,
        repr(Pair(1, 2)),
        point(1),
        point(1)._asdict(),
        typed(2).u,
        Pair._fields,
        Pair.__module__,
        point.__module__,
        isinstance(pair, Pair),
        pair == (x, 4),
    )


FieldType = int


def test_annotations_of_classes_made_inside_follow_globals():
    """A global that an annotation names is guarded: rebound, the class made inside has the new one"""

    def f(x):
        class Pair(typing.NamedTuple):
            a: FieldType

        class Options(typing.TypedDict):
            size: FieldType

        return x + 1, Pair.__annotations__["a"] is int, Options.__annotations__["size"] is int

    compiled = bytejit.compile(f, fullgraph=True)
    x = torch.ones(2)
    assert compiled(x)[1:] == (True, True)
    globals()["FieldType"] = float
    try:
        assert compiled(x)[1:] == (False, False)
    finally:
        globals()["FieldType"] = int


@case(F(3), graphs=1)
def test_enums_made_inside(x):
    """Enum classes made inside: values, auto(), methods, lookups, flags, match"""

    class Mode(enum.Enum):
        A = 1
        B = "b"

        def tag(self):
            return self.name.lower() + str(self.value)

        @classmethod
        def default(cls):
            return cls.A

    class Bits(enum.IntFlag):
        LOW = enum.auto()
        HIGH = enum.auto()

    match Mode("b"):
        case Mode.A:
            y = x
        case Mode.B:
            y = x * (Bits.LOW | Bits.HIGH) + Bits.HIGH
    return y, Mode.B.tag(), Mode.default() is Mode.A, [m.name for m in Mode], {Mode.A: 1}[Mode.A], Mode["A"].value, len(Mode)


@case(F(3))
def test_enum_member_that_leaves(x):
    """A member of an Enum made inside, returned with its class"""

    class Mode(enum.Enum):
        A = 1

    return x + Mode.A.value, Mode.A.name, type(Mode.A) is Mode


@case(F(3), graphs=1)
def test_typed_dicts_made_inside(x):
    """TypedDict classes made inside: their instances are dicts"""

    class Options(typing.TypedDict, total=False):
        scale: int

    options = Options(scale=2)
    options["more"] = 1
    return x * options["scale"], options, type(options) is dict, Options.__total__, list(Options.__annotations__)


class Scale(enum.IntEnum):
    """Numbers with names."""

    TWO = 2


@case(F(3), graphs=1)
def test_int_enum_in_operations(x):
    """Members of an IntEnum as numbers and sizes of operations"""
    return x * Scale.TWO + Scale.TWO, torch.zeros(Scale.TWO), x[: Scale.TWO], x.sum(Scale.TWO - 2)


@program(F(4))
def test_a_weak_reference_to_what_the_region_lets_go_of():
    """Weak references made in a region: alive while something holds the object, dead afterwards"""

    class Held:
        pass

    def held():
        one = Held()
        return weakref.ref(one)

    def f(x):
        print(end="")
        one = Held()
        a = weakref.ref(one)
        one = Held()
        dead = [a() is None, held()() is None]
        return x + 1, dead

    return f


@program(F(2), graphs=1)
def test_class_attribute_counted_and_returned():
    """A class attribute written in `__new__` and by the program, then returned, by the class and by an instance"""

    class Counted:
        count = 0
        last = None

        def __new__(cls, *args):
            Counted.count += 1
            return super().__new__(cls)

        def __init__(self, x):
            self.x = x
            type(self).last = x

    def f(x):
        a, b = Counted(x), Counted(x + 1)
        return a.x + b.x, Counted.count, b.count, Counted.last, {"n": Counted.count}

    return f, lambda: (Counted.count, Counted.last)


class Gone:
    """A descriptor that is told when it is deleted."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, cls=None):
        return self if obj is None else obj.__dict__.get(self.name, "none")

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value * 2

    def __delete__(self, obj):
        obj.deleted = [*getattr(obj, "deleted", []), self.name]


class OnlySet:
    def __set__(self, obj, value):
        obj.put = value


class OnlyDelete:
    def __delete__(self, obj):
        obj.deleted = "only"


class WithDescriptors:
    gone, put_only, delete_only = Gone(), OnlySet(), OnlyDelete()
    fixed = property(lambda self: 1)

    @property
    def told(self):
        return 2

    @told.deleter
    def told(self):
        self.deleted = "told"


@case(F(3), graphs=1)
def test_descriptors_deleted(x):
    """`del` of an attribute calls its descriptor; those that take no deletion or no value say so"""
    o, said = WithDescriptors(), []
    o.gone = x
    y = o.gone + 1
    del o.gone
    said.append(o.deleted)
    for act in (
        lambda: delattr(o, "told"),
        lambda: delattr(o, "fixed"),
        lambda: delattr(o, "put_only"),
        lambda: delattr(o, "delete_only"),
        lambda: setattr(o, "delete_only", 1),
        lambda: setattr(o, "put_only", 5),
        lambda: delattr(o, "nothing"),
    ):
        try:
            act()
            said.append(o.deleted)
        except AttributeError as e:
            said.append(str(e))
    return y, said, o.put


class Field(enum.IntEnum):
    LEFT = 0
    RIGHT = 2

    @classmethod
    def width(cls):
        return cls.RIGHT - cls.LEFT + 1

    if classmethod(property(lambda cls: 3)).__get__(None, int) == 3:

        @classmethod
        @property
        def both(cls):
            return slice(cls.LEFT, cls.RIGHT + 1)

    else:
        both = enum.nonmember(slice(0, 3))


@case(F(2, 5), graphs=1)
def test_property_of_a_class(x):
    """A classmethod of a property, until Python 3.12: read of the class, it is the property's value"""
    return x[:, Field.both] * Field.width(), Field.both


@case(F(3), graphs=1)
def test_types_of_bound_methods(x):
    """The types of methods bound to tensors, lists and strings: some are written in C"""
    bound = (x.sin, x.split, x.__add__, [].append, "".join, "".__len__, {}.get, test_types_of_bound_methods.__call__)
    return x + 1, [type(m).__name__ for m in bound], [inspect.ismethod(m) for m in bound], inspect.isbuiltin(x.sin)


@case(F(3), graphs=1)
def test_namespace_of_a_function(x):
    """A function's __dict__ holds what was set on it, not its documentation, module or annotations"""

    def f(y: int = 3):
        return y

    f.note, f.__doc__, f.__module__ = x, "about", "elsewhere"
    return x + 1, f.__annotations__, sorted(f.__dict__), f.__doc__, f.__module__


@case(F(3), graphs=1)
def test_weak_references_to_tensors(x):
    """A weak reference to a tensor that is held: an argument, one made inside, one in a list"""
    y = x + 1
    held = [y]
    of_x, of_y = weakref.ref(x), weakref.ref(y)
    del y
    return of_x() * of_y(), of_y() is held[0], of_x() is x, held, of_y


@case(F(3))
def test_a_weak_reference_to_a_tensor_let_go_of(x):
    """A weak reference to a tensor whose last name is gone"""
    y = x + 1
    ref = weakref.ref(y)
    z = y * 2
    del y
    return ref() is None, z


T, P = typing.TypeVar("T"), typing.ParamSpec("P")


@case(F(4), graphs=1)
def test_annotations_computed(x):
    """Annotations of functions and classes made inside, of type variables and forms of typing; forms kept and asked"""

    def wraps(fn: collections.abc.Callable[P, T]) -> typing.Callable[[T], typing.Any]:
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> typing.Iterator[T]:
            return fn(*args, **kwargs)

        return wrapped

    def g(a: int | None, b: typing.Union[int, T], c: typing.Literal["a"], d: tuple[T, ...], *e: typing.Annotated[int, 3]):  # noqa: UP007
        return a

    class Pair(typing.NamedTuple):
        a: torch.Tensor
        b: typing.Optional[T] = None  # noqa: UP045

    known = collections.abc.Callable[[T], T], list[T], dict[str, typing.Sequence[T]]
    pair = Pair(wraps(torch.sin)(x))
    return tuple(pair), sorted(g.__annotations__), known[0].__args__, typing.get_origin(known[2]), g(1, 2, "a", ())


@case(F(4), Turn(T, typing.TypeVar("U")), graphs=1, total=2)
def test_type_variable_as_argument(x, v):
    """A type variable that is another one in the next call"""
    return x + 1, typing.Sequence[v].__args__[0].__name__


@program(F(4))
def test_metaclass_property_without_getter():
    """A property of a metaclass that can only be set"""

    class Meta(type):
        level = property(None, lambda cls, value: None)

    class Plain(metaclass=Meta):
        pass

    def f(x):
        try:
            return x + Plain.level
        except AttributeError as e:
            return x * 2, str(e)

    return f


@program(F(4))
def test_class_made_inside_with_a_metaclass_that_watches_writes():
    """A metaclass whose __setattr__ counts, of a class made in the function"""
    seen = []

    class Meta(type):
        def __setattr__(cls, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    class Base(metaclass=Meta):
        def __init_subclass__(cls):
            cls.made = True

    def f(x):
        class Sub(Base):
            scale = 3

        Sub.late = 1
        return x * Sub.scale + Sub.late

    return f, lambda: seen


@program(F(4))
def test_class_of_an_instance_that_watches_writes_changed():
    """An instance whose __setattr__ counts gets another class"""
    seen = []

    class Before:
        def __setattr__(self, name, value):
            seen.append(name)
            object.__setattr__(self, name, value)

    class After:
        def scaled(self, x):
            return x * self.k

    def f(x):
        v = Before()
        v.k = 3
        v.__class__ = After
        return v.scaled(x)

    return f, lambda: seen


@program(F(4))
def test_messages_of_properties_of_nested_classes():
    """A property that cannot be read, set or deleted names its class in full"""

    class Plain:
        written = property(None, lambda self, value: None)
        read = property(lambda self: 1)

    def f(x):
        v, said = Plain(), []
        for what in (lambda: v.written, lambda: setattr(v, "read", 2), lambda: delattr(v, "read")):
            try:
                what()
            except AttributeError as e:
                said.append(str(e))
        return x + 1, said

    return f


@program(F(4))
def test_descriptors_read_by_super_in_a_class_method():
    """super() in a class method: descriptors, properties and functions of the class behind"""

    class Doubled:
        def __get__(self, instance, owner):
            return instance, owner.__name__, 2

    class Base:
        twice = Doubled()
        read = property(lambda self: 1)
        count = 5

        @staticmethod
        def plain(x):
            return x + 1

    class Sub(Base):
        twice = read = plain = None

        @classmethod
        def seen(cls, x):
            above = super()
            return above.twice, type(above.read).__name__, above.count, above.plain(x), above.__init__ is Base.__init__

    return lambda x: Sub.seen(x * 2)


@program(F(4), graphs=1)
def test_members_of_an_enumeration_of_texts():
    """Iterating an Enum whose members are iterable themselves"""

    class Kind(str, enum.Enum):  # noqa: UP042 - as programs have it
        ADD = "add"
        MUL = "mul"

    def f(x):
        for kind in Kind:
            x = x + 2 if kind is Kind.ADD else x * 3
        return x, [k.value for k in Kind], list(reversed(Kind)), len(Kind)

    return f


@program(F(3), Turn(3, 1))
def test_what_numbers_are_made_of():
    """int(), float(), complex() and indices of objects: by which method, and what it may return"""

    class Small(int):
        pass

    class Said:
        def __init__(self, value):
            self.value = value

    kinds = [
        type(name, (Said,), {name: lambda self: self.value}) for name in ("__int__", "__index__", "__float__", "__complex__")
    ]

    def f(x, n):
        found = []
        for of in kinds:
            for value in (n, 1.5, 2j, "a", None, True, Small(2)):
                for make in (int, float, complex, range, lambda v: [1, 2, 3, 4][v], lambda v: [1, 2][v:]):
                    try:
                        found.append(make(of(value)))
                    except (TypeError, IndexError) as e:
                        found.append(str(e))
        return x * n, found

    return f


@program(F(3), Turn(0, 1))
def test_items_of_a_class_whose_metaclass_has_them():
    """`cls[key]`: a metaclass's `__getitem__` comes before the class's `__class_getitem__`"""

    class Meta(type):
        asked = []

        def __getitem__(cls, key):
            Meta.asked.append(key)
            return cls.__name__, key

    class Base(metaclass=Meta):
        def __class_getitem__(cls, key):
            return key

    class Sub(Base):
        pass

    class Other:
        def __class_getitem__(cls, key):
            return cls.__name__, key

    class Names(enum.Enum):
        A = 1

        def __class_getitem__(cls, key):
            return "never"

    def f(x, n):
        return x * n, Base["k"], Sub[n], Other[n], Names["A"]

    return f, lambda: Meta.asked


@program(F(3), Turn(0, 1))
def test_finalizers_of_what_is_taken_out():
    """Objects with `__del__` in containers: taken out, replaced, or made and used nowhere, they end at that place"""
    log = []

    class Held:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(("end", self.name))

    kept = {i: Held(f"kept {i}") for i in range(8)}

    def f(x, n):
        made = [Held("a"), Held("b"), Held("c")]
        made.pop(n)
        log.append("popped")
        made[0] = None
        log.append("replaced")
        made.clear()
        log.append("cleared")
        table = {1: Held("d"), 2: Held("e")}
        table.pop(1)
        log.append("taken")
        del table[2]
        log.append("deleted")
        [Held("f"), Held("g")]
        log.append("listed")
        kept.pop(n, None)
        log.append("of outside")
        kept.popitem()
        return x + len(kept), len(log)

    return f, lambda: log


@program(F(3))
def test_bases_that_only_issubclass_knows():
    """Operators, `except` and `super()` go by real bases, not by registered ones or `__subclasscheck__`"""

    class Asked(type):
        def __subclasscheck__(cls, other):
            log.append(("asked", cls.__name__, other.__name__))
            return other is not int

        def __instancecheck__(cls, obj):
            return True

    class Sum(collections.abc.Hashable):
        __hash__ = object.__hash__

        def __init__(self, v):
            self.v = v

        def __add__(self, other):
            return self.v + other.v

        def __lt__(self, other):
            return self.v < other.v

    @Sum.register
    class Difference:
        def __init__(self, v):
            self.v = v

        def __radd__(self, other):
            return other.v - self.v

        def __gt__(self, other):
            return other.v > self.v

    class Fault(Exception, metaclass=Asked):
        pass

    class Base(metaclass=Asked):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__()
            log.append((cls.__name__, kwargs))

    log = []

    def f(x):
        found = Sum(x) + Difference(x * 2), Sum(x) < Difference(x * 2)
        try:
            try:
                raise KeyError("k")
            except Fault:
                log.append("a handler of another class")
        except KeyError as e:
            log.append(str(e))

        class Derived(Base, size=3):
            @classmethod
            def order(cls):
                return [c.__name__ for c in super().__mro__]

        log.append((Derived.order(), issubclass(bool, Base), issubclass(int, Base), isinstance(3, Fault)))
        return found

    return f, lambda: log
