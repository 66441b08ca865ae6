"""What a program adds to objects, classes, modules and tensors after the first call is seen by the next"""

import abc
import collections
import enum
import functools
import importlib.metadata
import importlib.util
import shutil
import sys
import types

import pytest
import torch
from torch import nn

import bytejit

from . import targets


def has(o, x):
    return x * 2 if hasattr(o, "late") else x * 1


def default(o, x):
    return x * getattr(o, "late", 1)


def caught(o, x):
    try:
        return x * o.late
    except AttributeError:
        return x * 1


def listed(o, x):
    return x * vars(o).get("late", 1) if hasattr(o, "__dict__") else x * 1


def truth(o, x):
    return x * 5 if o else x * 1


def length(o, x):
    try:
        return x * len(o)
    except TypeError:
        return x * 9


def is_callable(o, x):
    return x * 5 if callable(o) else x * 1


def total(o, x):
    try:
        return x * sum(o)
    except TypeError:
        return x * 9


def within(o, x):
    try:
        return x * 5 if 3 in o else x * 2
    except TypeError:
        return x * 9


def equal(o, x):
    return x * 5 if o == 3 else x * 2


def index(o, x):
    try:
        return x * o[0]
    except TypeError:
        return x * 9


def text(o, x):
    return x * len(f"{o!s:>3}") if type(o).__str__ is not object.__str__ else x * 4


class Times3(nn.Module):
    def __rmul__(self, other):
        return other * 3


class Quiet:
    def __getattr__(self, name):
        raise AttributeError(name)


class Slot:
    __slots__ = ("late",)


class Read:
    def __get__(self, o, cls):
        return 6


class Meta(type):
    pass


def made(base=object, **names):
    """An instance of a class of its own, with a base of its own."""
    return type("Sub", (type("Base", (base,), {}),), names)()


def numbered(base=enum.Enum):
    class Number(base):
        A = 1

    return Number


ENUMS = (enum.Enum, enum.IntEnum, enum.Flag)


class Deep(types.ModuleType):
    @property
    def late(self):
        return 3


def takes_class(m):
    m.__class__ = Deep


def own_meta():
    return type("M", (type,), {})("Q", (), {})


def sets(o):
    o.late = 3


def sets_class(o):
    type(o).late = 3


def late_class(e):
    type.__setattr__(type(e), "late", 3)


def sets_base(o):
    type(o).__mro__[1].late = 3


def registers(kind):
    def change(o):
        value = torch.tensor(3.0)
        if kind == "buffer":
            o.register_buffer("late", value)
        elif kind == "parameter":
            o.register_parameter("late", nn.Parameter(value))
        else:
            o.late = Times3()

    return change


def special(name, value):
    def change(o):
        setattr(type(o).__mro__[1], name, value)

    return change


ATTRIBUTES = {
    "instance": (made, sets),
    "class of an instance": (made, sets_class),
    "base of an instance": (made, sets_base),
    "class": (lambda: type(made()), sets),
    "base of a class": (lambda: type(made()), lambda c: setattr(c.__mro__[1], "late", 3)),
    "metaclass": (own_meta, sets_class),
    "function": (lambda: types.FunctionType(has.__code__, {}), sets),
    "python module": (lambda: types.ModuleType("m"), sets),
    "namespace": (types.SimpleNamespace, sets),
    "__getattr__": (lambda: type("Q", (Quiet,), {})(), sets_class),
    "__getattr__ added": (made, lambda o: setattr(type(o), "__getattr__", lambda self, name: 3)),
    "descriptor replaced": (lambda: made(late=Read()), sets_class),
    "slot": (Slot, sets),
    "tensor": (lambda: torch.ones(2), sets),
    "parameter": (lambda: nn.Parameter(torch.ones(2)), sets),
    "enum": (numbered, lambda e: type.__setattr__(e, "late", 3)),
    **{f"member of {base.__name__}": (lambda base=base: numbered(base).A, sets) for base in ENUMS},
    **{f"class of a member of {base.__name__}": (lambda base=base: numbered(base).A, late_class) for base in ENUMS},
    "class of a python module": (lambda: types.ModuleType("m"), takes_class),
    "partial": (lambda: functools.partial(abs), sets),
    "class of an exception": (lambda: made(ValueError), sets_class),
    "class of a dict": (lambda: made(dict), sets_class),
    "class of a list": (lambda: made(list), sets_class),
    "class of an int": (lambda: made(int), sets_class),
    "class of a named tuple": (lambda: type("P", (collections.namedtuple("P", "a"),), {})(1), sets_class),
    "class of a module": (lambda: made(nn.Module), sets_class),
    **{f"{kind} of a module": (nn.Identity, registers(kind)) for kind in ("buffer", "parameter", "module")},
    **{f"{kind} of a container": (nn.Sequential, registers(kind)) for kind in ("buffer", "parameter")},
}
SPECIAL = {
    "bool": (truth, special("__bool__", lambda self: False)),
    "len as truth": (truth, special("__len__", lambda self: 0)),
    "len": (length, special("__len__", lambda self: 4)),
    "call": (is_callable, special("__call__", lambda self: 2)),
    "iter": (total, special("__iter__", lambda self: iter([1, 2]))),
    "getitem as iter": (total, special("__getitem__", lambda self, i: [3, 4][i])),
    "contains": (within, special("__contains__", lambda self, x: True)),
    "iter as contains": (within, special("__iter__", lambda self: iter([3]))),
    "eq": (equal, special("__eq__", lambda self, other: True)),
    "getitem": (index, special("__getitem__", lambda self, i: [3, 4][i])),
    "str": (text, special("__str__", lambda self: "longer")),
}


def twice(fn, make, change):
    """fn before and after a change, plainly and compiled."""
    found = []
    for compiled in (False, True):
        own = types.FunctionType(fn.__code__, fn.__globals__)
        run, o, x = targets.compiled(own, targets.Counter()) if compiled else own, make(), torch.ones(2)
        before = run(o, x)
        change(o)
        found.append((before.tolist(), run(o, x).tolist()))
    return found


@pytest.mark.parametrize("kind", ATTRIBUTES)
@pytest.mark.parametrize("fn", [has, default, caught, listed])
def test_attribute(kind, fn):
    """An attribute that was not there in the first call"""
    if fn is listed and kind == "slot":
        return
    plain, ours = twice(fn, *ATTRIBUTES[kind])
    assert ours == plain


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("base", [object, nn.Module])
def test_special_method(kind, base):
    """A special method that a base of the class did not have in the first call"""
    fn, change = SPECIAL[kind]
    plain, ours = twice(fn, lambda: made(base), change)
    assert ours == plain


def module_of_functions():
    """A Python module whose functions are known by identity"""
    m = sys.modules["late_changes_of_functions"] = types.ModuleType("late_changes_of_functions")
    exec("def h(x, a=2): return x * a\ndef k(x, a=2): return x * 5\ndef f(x): return h(x) + 1", m.__dict__)
    return m.f, [lambda: setattr(m.h, "__code__", m.k.__code__), lambda: setattr(m, "h", torch.neg)]


def codes():
    class A:
        p = property(lambda self: 2)
        s = staticmethod(lambda x: x * 3)
        c = classmethod(lambda cls, x: x * 4)

    a = A()
    replace = [(A.p.fget, lambda self: 5), (A.s, lambda x: x * 6), (A.__dict__["c"].__func__, lambda cls, x: x * 7)]
    return lambda x: a.s(x) * a.p + a.c(x), [lambda f=f, by=by: setattr(f, "__code__", by.__code__) for f, by in replace]


def names_of_functions():
    def h(x):
        return x

    return lambda x: x * len(h.__name__ + h.__qualname__), [lambda: setattr(h, "__name__", "longer")]


def members():
    class Number(enum.IntEnum):
        A = 1

        def __init__(self, value):
            self.scale, self.parts = 2.0, [1]

        @property
        def both(self):
            return self.scale + self.parts[0]

    a = Number.A

    def f(x):
        return x * a.both + Number.A.scale

    return f, [lambda: setattr(a, "scale", 5.0), lambda: a.parts.__setitem__(0, 4), lambda: setattr(a, "parts", [7])]


def hidden(n):
    """The class of a module that hides its attribute `k`."""
    return type("Hides", (types.ModuleType,), {"k": property(lambda self: n)})


# CPython 3.14.10 itself goes on to answer from the module's dict, past a property of its new class, once it has run a line
SEES_WHAT_HIDES = sys.version_info < (3, 14)


def module_classes():
    """A module whose class is replaced, with one that hides what the module holds, twice"""
    m = types.ModuleType("late_classes")
    m.k = 1
    hides = [hidden(n) for n in (3, 5)] if SEES_WHAT_HIDES else [types.ModuleType] * 2
    asked = type("Asked", (types.ModuleType,), {"__getattr__": lambda self, name: len(name)})

    def f(x):
        return x * m.k + getattr(m, "other", 0)

    return f, [lambda c=c: setattr(m, "__class__", c) for c in (hides[0], hides[1], asked, types.ModuleType)]


def metaclass_length():
    meta = type("Meta", (type,), {"__len__": lambda cls: 2})
    cls = meta("A", (), {})
    return lambda x: x * len(cls), [lambda: setattr(meta, "__len__", lambda cls: 5)]


def registered():
    class Base(abc.ABC):  # noqa: B024
        pass

    cls = type("A", (), {})
    o = cls()
    return lambda x: x * (2 if isinstance(o, Base) else 3), [lambda: Base.register(cls)]


def named_tuple():
    cls = collections.namedtuple("cls", "a b")
    t = cls(1, 2)
    return lambda x: x * t.a + t.b, [lambda: setattr(cls, "a", property(lambda self: 10))]


def torch_function():
    cls = type("T", (torch.Tensor,), {})
    t = torch.ones(2).as_subclass(cls)
    override = classmethod(lambda cls, func, types, args=(), kwargs=None: torch.full((2,), 9.0))
    return lambda x: (x * t).as_subclass(torch.Tensor), [lambda: setattr(cls, "__torch_function__", override)]


REPLACED = [module_of_functions, codes, names_of_functions, members, module_classes]
REPLACED += [metaclass_length, registered, named_tuple, torch_function]


@pytest.mark.parametrize("make", REPLACED)
def test_replaced(make):
    """What functions, metaclasses and abstract classes are told later"""
    found = []
    for compiled in (False, True):
        fn, changes = make()
        run, x = targets.compiled(fn, targets.Counter()) if compiled else fn, torch.ones(2)
        seen = [run(x).tolist()]
        for change in changes:
            change()
            seen.append(run(x).tolist())
        found.append(seen)
    assert found[0] == found[1]


def installed(x):
    try:
        version = importlib.metadata.version("late-package")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return x + (importlib.util.find_spec("late_package") is not None), version


def test_packages_that_come_and_go(tmp_path, monkeypatch):
    def install():
        (tmp_path / "late_package.py").write_text("")
        (tmp_path / "late_package-1.2.dist-info").mkdir()
        (tmp_path / "late_package-1.2.dist-info" / "METADATA").write_text("Name: late-package\nVersion: 1.2\n")

    def remove():
        (tmp_path / "late_package.py").unlink()
        shutil.rmtree(tmp_path / "late_package-1.2.dist-info")

    monkeypatch.syspath_prepend(str(tmp_path))
    compiled = bytejit.compile(installed, backend="eager", fullgraph=True)
    for change in (lambda: None, install, remove):
        change()
        importlib.invalidate_caches()
        assert compiled(torch.ones(1)) == installed(torch.ones(1))
