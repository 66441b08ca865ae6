"""What a constant is: real objects that are values, and turning modelled values into real ones when all of them are constants."""

from __future__ import annotations

import datetime
import enum
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.plain_types import ZONED, has_plain_zone
from bytejit.common.quiet_reads import MRO, NAMESPACE
from bytejit.common.type_forms import FORMS
from bytejit.compat import numpy_types
from bytejit.guards.sources import KnownSource

from .descriptions import words
from .library_code import is_library
from .numpy_values import ArrayVar
from .values import DictVar, FuncVar, InstanceVar, Known, SeqVar, SetVar, SliceVar, Var

# immutable types whose operations may be executed while tracing
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

C_CLASS = type(torch._C.DispatchKey)  # the metaclass of what pybind11 makes


def is_c_enumeration(cls: type) -> bool:
    """Whether a class is an enumeration that pybind11 made."""
    return type(cls) is C_CLASS and "__entries" in cls.__dict__


def is_placement(cls: type) -> bool:
    """Whether a class says how a tensor lies over several processes (`Shard`)."""
    name = cls.__name__
    if name not in ("Shard", "Replicate", "Partial") or not special_cases.PLACEMENTS.made(cls):
        return False
    return getattr(sys.modules.get(cls.__module__), name, None) is cls and any(type(c) is C_CLASS for c in MRO(cls))


def is_constant(obj: Any) -> bool:
    """Whether a real object is an immutable value, equal objects being interchangeable."""
    cls = type(obj)
    if cls in CONSTANT_TYPES:
        return cls not in ZONED or has_plain_zone(obj)
    if is_c_enumeration(cls) or is_placement(cls) or issubclass(cls, enum.Enum) and not has_operators(cls):
        return True
    if cls in (tuple, frozenset, torch.Size):
        return all(map(is_constant, obj))
    return cls is slice and is_constant(obj.start) and is_constant(obj.stop) and is_constant(obj.step)


# special methods that run when the class is made, or only for what the tracer leaves alone
_OF_THE_CLASS = frozenset(
    ("__new__", "__init__", "__init_subclass__", "__set_name__", "__class_getitem__", "__reduce__", "__reduce_ex__")
)
# and those of a metaclass for which a class is no value: calls, checks and attributes
_OF_USE = frozenset(
    (
        *("__call__", "__prepare__", "__instancecheck__", "__subclasscheck__", "__del__"),
        *("__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    )
)


def has_operators(cls: type, besides: frozenset[str] = frozenset()) -> bool:
    """Whether code of the program carries out operators on instances: it may have effects, and read what is not constant.
    besides: names of methods that are none."""
    return any(
        isinstance(value, types.FunctionType)
        and name[:2] == name[-2:] == "__"
        and name not in _OF_THE_CLASS
        and name not in besides
        for c in MRO(cls)
        if not is_library(c.__module__)
        for name, value in NAMESPACE(c).items()
    )


def is_own_class(obj: object) -> bool:
    """Whether an object is a class on which operators run code of the program, by its metaclass."""
    meta = type(obj)
    return meta is not type and issubclass(meta, type) and has_operators(meta, _OF_USE)


class NotConstant(Exception):
    """A value has parts that exist only when the graph runs, or that may not be touched while tracing."""


def are_keys(t: Any, values: Iterable[Var]) -> bool:
    """Whether elements of a set are what stands for them as keys: for a tuple of another class that is a plain one."""
    real = [t.values.real(v) for v in values]
    return not any(isinstance(v, InstanceVar) or isinstance(v, SeqVar) and v.cls is not tuple for v in real) and all(
        are_keys(t, v.items if isinstance(v, SeqVar) else v.items.values()) for v in real if isinstance(v, (SeqVar, SetVar))
    )


def to_python(t: Any, var: Var, *, classes: bool = False) -> Any:
    """The real value of a Var made of constants (deeply). Raises: NotConstant. `classes`: also accept functions and classes,
    and the objects of annotations, by identity."""
    var = t.values.real(var)
    if isinstance(var, Known):
        if is_own_class(var.obj):
            raise NotConstant(words(var))
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
    if isinstance(var, SetVar) and all(map(is_constant, var.items)) and are_keys(t, var.items.values()):
        return t.iteration.real_set(var)
    if isinstance(var, SetVar):
        return var.cls(to_python(t, v, classes=classes) for v in var.items.values())
    if isinstance(var, ArrayVar) and not var.shared:
        return var.array
    if isinstance(var, SliceVar):
        return slice(*(to_python(t, v, classes=classes) for v in var.parts))
    if isinstance(var, InstanceVar) and isinstance(var.base, Known) and var.real is not None and not has_operators(var.cls):
        return var.real
    if classes and isinstance(var, FuncVar) and var.real is not None:
        return var.real
    if classes and isinstance(var, InstanceVar) and var.cls in FORMS and var.real is not None:
        if var.source is not None and not isinstance(var.source, KnownSource):
            t.guard("ID_IS", var.source, var.real)
        return var.real
    raise NotConstant(words(var))


def _sequence(var: SeqVar, items: list) -> Any:
    if var.cls in (list, tuple, torch.Size):
        return var.cls(items)
    if (make := getattr(var.cls, "_make", None)) is not None:  # a named tuple
        return make(items)
    raise NotConstant(words(var))
