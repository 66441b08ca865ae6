"""Attributes of objects of any class, read without running code of the program: no __getattr__, no __getattribute__."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

METHODS = (types.MethodType, classmethod, staticmethod)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a program can have made
IS_ABSTRACT = 1 << 20
NAMESPACE = type.__dict__["__dict__"].__get__  # past a metaclass's __getattribute__, and quicker
MRO = type.__dict__["__mro__"].__get__
FLAGS = type.__dict__["__flags__"].__get__
DICT_OFFSET = type.__dict__["__dictoffset__"].__get__  # of a class: not 0 where its instances have a dict of their own


def derives(cls: type, base: type) -> bool:
    """Whether a class is another or has it as a base, as the interpreter's own lookups ask: `issubclass` also asks the other's
    metaclass, whose `__subclasscheck__` is code of the program or knows registered classes."""
    return any(c is base for c in MRO(cls))


def function_of(fn: Any) -> Any:
    """Returns the function within a bound method, a classmethod or a staticmethod; anything else as it is."""
    return fn.__func__ if issubclass(type(fn), METHODS) else fn


def own_attributes(obj: object) -> Mapping[str, Any]:
    """The attributes of an object itself, not those of its class; none where it has no place for them."""
    if issubclass(type(obj), type):
        return NAMESPACE(obj)
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}


def special_method(obj: object, name: str) -> Any:
    """What the interpreter takes for a special method of an object: what its class or a base has, unbound; None without one."""
    return next((NAMESPACE(c)[name] for c in MRO(type(obj)) if name in NAMESPACE(c)), None)


def name_of(fn: object) -> str:
    """A callable's qualified name, as a message names it: for an instance, that of its class."""
    of = fn if issubclass(type(fn), type) or not FLAGS(type(fn)) & HEAP_TYPE else type(fn)
    found = type.__dict__["__qualname__"].__get__(of) if issubclass(type(of), type) else getattr(of, "__qualname__", None)
    return found or type(fn).__name__
