"""A class changes after the first call: every program over every change, each as eager is before and after it"""

import types

import pytest
import torch
from torch import nn

from bytejit.common.options import Options
from bytejit.guards import native_checker
from bytejit.kernels.build_cpp import build

from . import targets


def read(o, x):
    return x * o.a


def write(o, x):
    o.a = 7
    return x * o.__dict__["a"]


def delete(o, x):
    del o.a
    return x * (2 if "a" in o.__dict__ else 3)


def has(o, x):
    return x * (2 if hasattr(o, "a") else 3)


def late(o, x):
    return x * getattr(o, "late", 1)


def shared(o, x):
    return x * o.shared


def method(o, x):
    return o.method(x)


def bound(o, x):
    m = o.method
    return m(x) if callable(m) else x * m


def of_class(o, x):
    return x * type(o).shared


def of_super(o, x):
    return x * super(type(o), o).shared


def static(o, x):
    return o.static(x)


def by_class(o, x):
    return o.by_class(x)


def got(o, x):
    return x * o.got


def described(o, x):
    return x * o.described


def length(o, x):
    return x * len(o)


def truth(o, x):
    return x * 5 if o else x * 1


def equal(o, x):
    return x * 5 if o == 3 else x * 2


def less(o, x):
    return x * 5 if o < 3 else x * 2


def iterated(o, x):
    return x * sum(o)


def contains(o, x):
    return x * 5 if 3 in o else x * 2


def item(o, x):
    return x * o[0]


def put(o, x):
    o[0] = 2
    return x * o.__dict__.get("put", 1)


def called(o, x):
    return o(x)


def is_callable(o, x):
    return x * 5 if callable(o) else x * 1


def hashed(o, x):
    return x * 5 if o in {3: 4} else x * 2


def entered(o, x):
    with o as y:
        return x * y


def added(o, x):
    return x * (o + 1)


def radded(o, x):
    return x * (1 + o)


def inplace(o, x):
    o += 2
    return x * o


def negated(o, x):
    return x * -o


def number(o, x):
    return x * int(o)


def index(o, x):
    return x * [3, 4][o]


def said(o, x):
    return x * len(str(o)[:1] + format(o)[:1])


def matched(o, x):
    match o:
        case Other():
            return x * 2
        case Shape(a=a):
            return x * a
    return x * 9


def is_instance(o, x):
    return x * (2 if isinstance(o, Other) else 3)


def is_subclass(o, x):
    return x * (2 if issubclass(type(o), Other) else 3)


def named(o, x):
    return x * len(type(o).__name__ + type(o).__qualname__ + (type(o).__doc__ or ""))


def of_kind(o, x):
    return x * (2 if type(o) is o.__class__ else 3) * len(type(o).__mro__) * len(type(o).__bases__[0].__name__)


def made_anew(o, x):
    return x * type(o)().a


PROGRAMS = [f for f in list(globals().values()) if isinstance(f, types.FunctionType) and f.__module__ == __name__]


class Descriptor:
    def __get__(self, o, cls):
        return 8


class Data:
    def __get__(self, o, cls):
        return 9

    def __set__(self, o, value):
        o.__dict__["a"] = 10

    def __delete__(self, o):
        o.__dict__["a"] = 11


class Other:
    shared = 12


class Shape:
    pass


def made(kind):
    """An instance of a class of its own, with bases and a descriptor class of its own, that has every special method."""

    class Own(Descriptor):
        pass

    class Root(Shape, kind):
        shared = 2
        described = Own()

        def __init__(self):
            super().__init__()
            self.a, self.__dict__["described"] = 3, 13

        def method(self, x):
            return x * 4

        static = staticmethod(lambda x: x * 5)
        by_class = classmethod(lambda cls, x: x * 6)
        got = property(lambda self: 7)
        __len__ = __int__ = lambda self: 2
        __index__ = lambda self: 1
        __bool__ = lambda self: True
        __eq__ = __lt__ = __contains__ = lambda self, other: True
        __hash__ = lambda self: 3
        __iter__ = lambda self: iter([1, 2])
        __getitem__ = lambda self, i: [14, 3][i]
        __setitem__ = lambda self, i, value: self.__dict__.update(put=15)
        __call__ = lambda self, x: x * 16
        __enter__ = lambda self: 17
        __exit__ = lambda self, *args: None
        __add__ = __radd__ = __iadd__ = lambda self, other: 18
        __neg__ = lambda self: 19
        __str__ = lambda self: "20"
        __format__ = lambda self, spec: "2"

    class Base(Root):
        pass

    class Sub(Base):
        pass

    return Sub()


SPECIAL = [
    "__" + name + "__"
    for name in (
        "len int index bool eq lt contains hash iter getitem setitem call enter exit add radd iadd neg str format"
    ).split()
]


def sets(name, value, place=0):
    return lambda o: setattr(type(o).__mro__[place], name, value)


def deletes(name):
    return lambda o: delattr(type(o).__mro__[2], name)


def other_bases(o):
    type(o).__bases__ = (type("New", (Other, type(o).__bases__[0]), {}),)


def other_class(o):
    o.__class__ = type("New", (Other, type(o)), {"shared": 21})


def renamed(o):
    type(o).__name__, type(o).__doc__ = "Longer", "text"
    type(o).__mro__[1].__name__ = "LongerToo"


def own_set(o):
    type(type(o).__mro__[2].__dict__["described"]).__set__ = lambda self, o, value: None


def all_again(self, name):
    return 22


CHANGES = {
    "property": sets("a", property(lambda self: 23)),
    "property of a base": sets("a", property(lambda self: 23, lambda self, value: None, lambda self: None), 1),
    "data descriptor": sets("a", Data(), 1),
    "descriptor": sets("a", Descriptor()),
    "value": sets("a", 24),
    "late": sets("late", 25, 1),
    "__getattribute__": sets("__getattribute__", all_again),
    "__getattr__": sets("__getattr__", all_again, 1),
    "__setattr__": sets("__setattr__", lambda self, name, value: self.__dict__.update({name: 26}), 1),
    "__delattr__": sets("__delattr__", lambda self, name: None),
    "shared": sets("shared", 27, 1),
    "shared property": sets("shared", property(lambda self: 28), 1),
    "shared data": sets("shared", Data(), 2),
    "method": sets("method", lambda self, x: x * 29, 1),
    "method static": sets("method", staticmethod(lambda x: x * 30), 2),
    "method value": sets("method", 31, 2),
    "static": sets("static", lambda self, x: x * 32, 2),
    "by_class": sets("by_class", staticmethod(lambda x: x * 33), 2),
    "got": sets("got", property(lambda self: 34), 2),
    "got value": sets("got", 35, 2),
    "descriptor's class": own_set,
    "__bases__": other_bases,
    "__class__": other_class,
    "names": renamed,
    **{f"deleted {n}": deletes(n) for n in SPECIAL},
    **{
        f"another {n}": sets(n, (lambda k: lambda self, *args: k)("3" if n in ("__str__", "__format__") else 0), 1)
        for n in SPECIAL
    },
    "hash none": sets("__hash__", None),
    "iter none": sets("__iter__", None, 1),
    "new": sets("__new__", staticmethod(lambda cls: Other())),
    "init": sets("__init__", lambda self: self.__dict__.update(a=36)),
}
BROAD = [n for n in CHANGES if not n.startswith(("deleted", "another"))]
USES = {  # special methods that a program goes by
    "length": "len",
    "truth": "bool len",
    "equal": "eq",
    "less": "lt",
    "iterated": "iter getitem",
    "contains": "contains iter getitem",
    "item": "getitem",
    "put": "setitem",
    "called": "call",
    "is_callable": "call",
    "hashed": "hash eq",
    "entered": "enter exit",
    "added": "add",
    "radded": "radd",
    "inplace": "iadd add",
    "negated": "neg",
    "number": "int index",
    "index": "index",
    "said": "str format",
}


def changes_for(program):
    special = [f"__{n}__" for n in USES.get(program, "").split()]
    return BROAD + [f"{how} {n}" for n in special for how in ("deleted", "another")]


def outcome(run, o, x):
    try:
        return run(o, x).tolist()
    except Exception as e:
        return type(e), str(e)


def both(fn, make, change):
    """Outcomes of fn twice before and twice after a change, plainly and compiled; and how often it was compiled."""
    found, backend = [], targets.Counter()
    for compiled in (False, True):
        own = types.FunctionType(fn.__code__, fn.__globals__)
        run, o, x = targets.compiled(own, backend) if compiled else own, make(), torch.ones(2)
        seen = [outcome(run, o, x) for _ in range(2)]
        change(o)
        found.append([*seen, *(outcome(run, o, x) for _ in range(2))])
    return (*found, backend.count)


@pytest.fixture(params=["python", "native"])
def checker(request):
    if request.param == "native" and targets.TARGET == "bytejit":
        native_checker.CHECKER.install(lambda text: build([text], Options()).calls[0])
        assert native_checker.CHECKER.usable
    else:
        native_checker.CHECKER.install(None)
    yield
    native_checker.CHECKER.install(None)


AS_MODULES = ("read", "write", "delete", "shared", "bound", "got", "described", "called", "entered", "length", "is_instance")
CASES = [(f, object, "python") for f in PROGRAMS] + [(f, nn.Module, "native") for f in PROGRAMS if f.__name__ in AS_MODULES]


@pytest.mark.parametrize("fn,kind,checker", CASES, ids=lambda v: getattr(v, "__name__", v), indirect=["checker"])
def test_class_change(fn, kind, checker):
    """Whatever of a class decided what a program did, and changes, is seen by the next call"""
    wrong = []
    for name in changes_for(fn.__name__):
        plain, ours, _ = both(fn, lambda: made(kind), CHANGES[name])
        if plain != ours:
            wrong.append((name, plain, ours))
    assert not wrong


@pytest.mark.parametrize("checker", ["python", "native"], indirect=True)
def test_class_that_counts(checker):
    """A class whose attributes change in every call is compiled once, and its changes are seen"""

    def change(o):
        type(o).count = type(o).__dict__.get("count", 0) + 1

    backend, o, x = targets.Counter(), made(object), torch.ones(2)
    run = targets.compiled(read, backend)
    for _ in range(12):
        change(o)
        assert run(o, x).tolist() == [3, 3]
    assert backend.count == 1 or targets.TARGET != "bytejit"
    type(o).a = property(lambda self: 4)
    assert run(o, x).tolist() == [4, 4]


def in_dict(d, x):
    return x * (2 if "a" in d else 3)


def unused(d, x):
    d["a"]
    return x * 2


def deleted(d, x):
    del d["a"]
    return x * 2


def default_of(d, x):
    return x * (2 if d.get("a", 0) is not None else 3)


@pytest.mark.parametrize("fn", [in_dict, unused, deleted, default_of, has, delete], ids=lambda f: f.__name__)
def test_gone(fn):
    """That something was there, too, is seen when it has gone, where nothing looked at its value"""

    def gone(o):
        (o if isinstance(o, dict) else o.__dict__).pop("a", None)

    plain, ours, _ = both(fn, lambda: made(object) if fn in (has, delete) else {"a": torch.ones(1)}, gone)
    assert ours == plain
