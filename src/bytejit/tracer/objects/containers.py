"""Keys of modelled dicts and sets, and turning modelled values into real ones when all of them are constants."""

from __future__ import annotations

import datetime
import enum
import types
from collections.abc import Iterable
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.compat import numpy_types
from bytejit.guards.sources import Source, dict_item
from bytejit.tracer.core.made_ids import IdKey, IdVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.values import (
    ArrayVar,
    DeferredVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SetVar,
    SliceVar,
    TensorVar,
    Var,
)
from bytejit.tracer.core.versions import NAMES_THE_KEY
from bytejit.tracer.core.words import shown_name, words

from .class_facts import class_attribute
from .identities import keyed

# immutable values whose operations may be carried out at trace time
VALUE_TYPES = frozenset({datetime.date, datetime.time, datetime.datetime, datetime.timedelta, *numpy_types.SCALARS})
CONSTANT_TYPES = VALUE_TYPES | frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
        types.CodeType,
        torch.finfo,
        torch.iinfo,
        *numpy_types.DTYPES,
    }
)


def is_constant(obj: object) -> bool:
    """Whether a real object is an immutable value, equal objects being interchangeable."""
    cls = type(obj)
    if cls in CONSTANT_TYPES or issubclass(cls, enum.Enum):
        return True
    if cls in (tuple, frozenset, torch.Size):
        return all(map(is_constant, obj))
    return cls is slice and is_constant(obj.start) and is_constant(obj.stop) and is_constant(obj.step)


def item_source(d: DictVar, key: object) -> Source:
    """Where the value under a real key of a dict from outside comes from."""
    own_getitem = isinstance(d.real, dict) and isinstance(class_attribute(type(d.real), "__getitem__"), types.FunctionType)
    return dict_item(d.source, key, own_getitem)


def is_unchanged(d: DictVar, key: object, value: Var) -> bool:
    """Whether what a dict from outside has under a key is what it had, in every call that the guards let pass. That the two
    are one object now does not tell: nothing may have looked at either, and in the next call they are two."""
    return type(value) is Lazy and value.source == item_source(d, key)


class ByIdentity:
    """The key of a value that hashes by identity."""

    __slots__ = ("var",)

    def __init__(self, var: Var) -> None:
        self.var = var

    def __hash__(self) -> int:
        return id(self.var)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.var is self.var


class ByHash:
    """The key of an instance made in the trace whose class defines __hash__ and __eq__: both run in the trace."""

    __slots__ = ("t", "var", "hash")

    def __init__(self, t: Any, var: InstanceVar) -> None:
        self.t, self.var = t, var
        before = t.effects.mutations
        self.hash = hash(t.const(t.calls.call(t.attributes.special(var, "__hash__"), [], {})))
        if t.effects.mutations != before:  # a container that leaves is made anew, and hashes its keys once more
            raise Break(f"a __hash__ that has effects ({var.cls.__name__})")

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ByIdentity | ByHash):
            return self.t.comparisons.equal(self.var, other.var)
        return self.t.comparisons.equal(self.var, self.t.values.constant(other))


DICT_KEY, ELEMENT = "a dict key", "a set element"


def key_of(t: Any, var: Var, role: str = DICT_KEY):
    """A hashable key for a modelled dict: equal values get equal keys. `role`: what 3.14 says that it was to be.

    Raises: Raised(TypeError) for unhashable ones.
    """
    if not NAMES_THE_KEY:
        return plain_key(t, var)
    try:
        return plain_key(t, var)
    except Raised as e:
        if e.exc.cls is not TypeError:
            raise
        why = t.const(t.calls.call_python(str, [e.exc]))
        raise t.raised(TypeError(f"cannot use '{full_name(t.type_of(var))}' as {role} ({why})")) from None


def elements(t: Any, values: Iterable[Var]) -> dict:
    """Items of a set of these values: of equal ones the first stays."""
    out: dict = {}
    for v in map(t.values.real, values):
        out.setdefault(key_of(t, v, ELEMENT), v)
    return out


def full_name(cls: type) -> str:
    """A type's name with its module, as the newer messages of CPython have it."""
    return cls.__qualname__ if special_cases.SHORT_NAMES.made(cls) else f"{cls.__module__}.{cls.__qualname__}"


def plain_key(t: Any, var: Var):
    """key_of, with the error that `hash` raises."""
    var = t.values.real(var)
    if isinstance(var, Known):
        try:
            hash(var.obj)
        except TypeError as e:
            raise t.raised(e) from None
        return var.obj
    if isinstance(var, SliceVar):
        try:
            hash(made := slice(*(plain_key(t, v) for v in var.parts)))  # since 3.12
        except TypeError as e:
            raise t.raised(e) from None
        return made
    if isinstance(var, SeqVar):
        if var.cls in (tuple, torch.Size) or issubclass(var.cls, tuple):
            return tuple(plain_key(t, v) for v in var.items)
        raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
    if isinstance(var, (DictVar, SetVar)):
        if isinstance(var, SetVar) and var.cls is frozenset:
            return frozenset(var.items)
        raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
    if type(var) is IdVar:
        return IdKey(t.values.real(var.of))
    if isinstance(var, FuncVar) and var.real is not None:
        keyed(t, var)
        return var.real
    if isinstance(var, InstanceVar):
        if isinstance(var.base, Known) and not isinstance(getattr(var.cls, "__hash__", None), types.FunctionType):
            return plain_key(t, var.base)
        if var.real is not None and getattr(var.cls, "__hash__", None) is object.__hash__:
            keyed(t, var)
            return var.real
        cls_hash = getattr(var.cls, "__hash__", None)
        if cls_hash is None:
            raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
        if cls_hash is not object.__hash__ and cls_hash is not BaseException.__hash__:
            if var.real is not None or not isinstance(cls_hash, types.FunctionType):
                raise Break(f"a key with its own __hash__ ({var.cls.__name__})")
            return ByHash(t, var)
    if isinstance(var, DeferredVar):
        raise Break("a random number used as a key")
    if isinstance(var, ArrayVar):
        if t.type_of(var) in numpy_types.SCALARS:
            raise Break("a number of NumPy's that the graph computes used as a key")
        raise t.raised(TypeError("unhashable type: 'numpy.ndarray'"))
    if isinstance(var, MethodVar):
        raise Break("a bound method as a key")
    if isinstance(var, TensorVar) and var.real is not None:
        keyed(t, var)
        return var.real
    return ByIdentity(var)


class NotConstant(Exception):
    """A value has parts that exist only when the graph runs, or that may not be touched while tracing."""


def to_python(t: Any, var: Var, *, classes: bool = False) -> object:
    """The real value of a Var made of constants (deeply). Raises: NotConstant. `classes`: admit functions and classes."""
    var = t.values.real(var)
    if isinstance(var, Known):
        if classes or is_constant(var.obj) or isinstance(var.obj, (type, types.BuiltinFunctionType, types.ModuleType)):
            return var.obj
        raise NotConstant(words(var))
    if isinstance(var, SeqVar):
        items = [to_python(t, v, classes=classes) for v in var.items]
        return _sequence(var, items)
    if isinstance(var, DictVar):
        t.values.complete(var)
        if var.cls is dict:
            return {to_python(t, k, classes=classes): to_python(t, v, classes=classes) for k, v in var.items.values()}
    if isinstance(var, SetVar):
        return var.cls(to_python(t, v, classes=classes) for v in var.items.values())
    if isinstance(var, ArrayVar) and not var.shared:
        return var.array
    if isinstance(var, SliceVar):
        return slice(*(to_python(t, v, classes=classes) for v in var.parts))
    if isinstance(var, InstanceVar) and isinstance(var.base, Known) and var.real is not None:
        return var.real
    if classes and isinstance(var, FuncVar) and var.real is not None:
        return var.real
    raise NotConstant(words(var))


def _sequence(var: SeqVar, items: list):
    if var.cls in (list, tuple, torch.Size):
        return var.cls(items)
    if hasattr(var.cls, "_fields"):
        return var.cls._make(items)
    raise NotConstant(words(var))


def base_of(v: Var) -> Var:
    """The built-in part of a subclass instance; the value itself otherwise."""
    return v.base if isinstance(v, InstanceVar) and v.base is not None else v
