"""Attributes of objects of any class, read without running code of the program: no __getattr__, no __getattribute__."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

METHODS = (types.MethodType, classmethod, staticmethod)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a program can have made
_OF_CLASS = type.__dict__["__dict__"].__get__
_MRO = type.__dict__["__mro__"].__get__
_FLAGS = type.__dict__["__flags__"].__get__


def function_of(fn: Any) -> Any:
    """What a bound method, a classmethod or a staticmethod is made of; anything else is returned as it is."""
    return fn.__func__ if issubclass(type(fn), METHODS) else fn


def own_attributes(obj: object) -> Mapping[str, Any]:
    """The attributes of an object itself, not those of its class; none where it has no place for them."""
    if issubclass(type(obj), type):
        return _OF_CLASS(obj)
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}


def class_attribute(obj: object, name: str) -> Any:
    """What an object's class, or one of its bases, has under a name, unbound; None without one."""
    return next((_OF_CLASS(c)[name] for c in _MRO(type(obj)) if name in _OF_CLASS(c)), None)


def name_of(fn: object) -> str:
    """A callable's qualified name, as a message names it: for an instance, that of its class."""
    of = fn if issubclass(type(fn), type) or not _FLAGS(type(fn)) & HEAP_TYPE else type(fn)
    found = type.__dict__["__qualname__"].__get__(of) if issubclass(type(of), type) else getattr(of, "__qualname__", None)
    return found or type(fn).__name__
