"""The real class behind one that is made in the trace: stubs stand for what its body holds."""

from __future__ import annotations

import types
from typing import Any

from bytejit.common.quiet_reads import HEAP_TYPE
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.numpy_values import NumpyVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, InstanceVar, Known, PropertyVar, SymVar, Var

from .class_facts import class_lookup

IN_CREATION = ("__slots__", "__module__", "__qualname__", "__doc__", "__match_args__", "__annotations__")


class SkipsInitSubclass:
    """First base while a real class is built: its __init_subclass__ keeps the user's from running."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        pass


# what a class cannot be given after it was made: `type` keeps it elsewhere
STATIC, CLASS = frozenset({"__new__"}), frozenset({"__init_subclass__", "__class_getitem__"})
NOT_IN_CLASSES = frozenset(
    {
        "__class__",
        "__dict__",
        "__mro__",
        "__bases__",
        "__base__",
        "__flags__",
        "__basicsize__",
        "__itemsize__",
        "__weakrefoffset__",
        "__dictoffset__",
    }
)
PLAIN_BASES = (object, dict, list, tuple, set, frozenset, int, float, str, type)


def real_class(t: Tracer, meta: type, name: str, bases: tuple[type, ...], items: dict[str, Var]) -> type:
    """The stand-in: a real class with the parts of its namespace that decide its layout."""
    first: dict[str, object] = {}
    for key in IN_CREATION:
        if key in items:
            try:
                first[key] = to_python(t, items[key], classes=True)
            except NotConstant:
                if key == "__slots__":
                    raise Break("a class whose __slots__ are no constant") from None
    if "__classcell__" in items:
        first["__classcell__"] = types.CellType()
    hook = any(not isinstance(class_lookup(b, "__init_subclass__")[0], types.ClassMethodDescriptorType) for b in bases)
    try:
        real: type = type.__new__(meta, name, (SkipsInitSubclass, *bases) if hook else bases, first)
        if hook:
            type.__setattr__(real, "__bases__", bases)
    except (TypeError, ValueError) as e:
        if hook:
            raise Break(f"a class that cannot be made while tracing ({e})") from None
        raise t.raised(e) from None
    t.keep.append(real)
    return real


def wrapped(t: Tracer, key: str, value: Var) -> Var:
    """__new__ becomes a static method and __init_subclass__ a class method by themselves."""
    value = t.values.real(value) if key in STATIC | CLASS else value
    if isinstance(value, FuncVar) and key in STATIC | CLASS:
        return PropertyVar(staticmethod if key in STATIC else classmethod, [value])
    return value


def stub(t: Tracer, v: Var) -> object:
    """A real object of the right type that stands for a value in a real class; the trace finds the value by it."""
    v = t.values.real(v)
    if not isinstance(v, (SymVar, NumpyVar)):  # numbers that change between calls: looking at one would make it a constant
        if isinstance(v, Known):
            return v.obj
        if (real := getattr(v, "real", None)) is not None:
            return real
    found = t.stubs.get(id(v))
    if found is None:
        found = t.stubs[id(v)] = _new_stub(t, v)
        t.by_id[id(found)] = v
        t.keep.extend((found, v))
    return found


def _new_stub(t: Tracer, v: Var) -> object:
    if isinstance(v, FuncVar):
        made = types.FunctionType(v.code, v.globals, v.name, None, tuple(types.CellType() for _ in v.code.co_freevars))
        setattr(made, "__isabstractmethod__", _is_abstract(t, v))
        return made
    if isinstance(v, PropertyVar):
        if v.cls is property:
            parts: list[Any] = [stub(t, a) for a in v.args[:3]]
            return property(*parts)
        return v.cls(stub(t, v.args[0]))
    if isinstance(v, InstanceVar) and v.base is None and v.cls.__flags__ & HEAP_TYPE:
        return object.__new__(v.cls)
    return _Value()


class _Value:
    """Stands for a value that is no descriptor: a tensor, a list, a symbolic number..."""


def _is_abstract(t: Tracer, v: FuncVar) -> bool:
    flag = v.attrs.get("__isabstractmethod__")
    return flag is not None and t.comparisons.truth(flag)
