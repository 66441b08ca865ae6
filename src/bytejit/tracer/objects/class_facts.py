"""What the tracer asks of real classes: attributes past what a metaclass says of them, and whose classes they are."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

from bytejit.guards.references import module_of
from bytejit.tracer.core.versions import DOCSTRING_FLAG

MISSING = object()

# owner: the one trace that runs; what it stored into classes from outside: class -> name -> stub (see tracer/objects/classes.py)
WRITTEN: dict[type, dict[str, object]] = {}


NAMESPACE = type.__dict__["__dict__"].__get__  # past a metaclass's __getattribute__, and quicker
MRO = type.__dict__["__mro__"].__get__


def class_lookup(cls: type, name: str, after: type | None = None):
    """(value, owner) of a class attribute by MRO, after `after` when given; (MISSING, None) without one."""
    mro = MRO(cls)
    for c in mro[mro.index(after) + 1 :] if after is not None else mro:
        if WRITTEN and c in WRITTEN and name in WRITTEN[c]:
            return WRITTEN[c][name], c
        found = NAMESPACE(c).get(name, MISSING)
        if found is not MISSING:
            return found, c
    return MISSING, None


def replaces_lookup(obj: object) -> bool:
    """Whether an object's class, or the class that the object is, has a metaclass with code of its own for what the tracer
    asks of classes."""
    return answers_itself(type(type(obj))) or issubclass(type(obj), type) and answers_itself(type(obj))


def answers_itself(meta: type) -> bool:
    """Whether a metaclass has code of its own for what the tracer asks of classes: their attributes, and their hash."""
    return meta is not type and (
        class_lookup(meta, "__hash__")[0] is not NAMESPACE(object)["__hash__"]
        or any(
            type(NAMESPACE(c).get(name)) in (types.FunctionType, property)
            for c in MRO(meta)
            if c not in (type, object)
            for name in ("__getattribute__", "__dict__", "__mro__", "__class__")
        )
    )


def hides_dict(cls: type) -> bool:
    """Whether reading `__dict__` of an instance runs code of the program, so that its own namespace cannot be had."""
    found = class_lookup(cls, "__dict__")[0]
    return found is not MISSING and type(found) not in (types.GetSetDescriptorType, types.MemberDescriptorType)


def is_data_descriptor(value: object) -> bool:
    cls = type(value)
    return hasattr(cls, "__set__") or hasattr(cls, "__delete__")


def docstring(code: types.CodeType) -> str | None:
    """The docstring of a function's code."""
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) and (not DOCSTRING_FLAG or code.co_flags & DOCSTRING_FLAG) else None


@functools.cache
def is_library(module: object) -> bool:
    """Whether what a class or function keeps as its `__module__` is of Python or of an installed package, whose classes
    nobody changes after the first call."""
    if not isinstance(module, str):
        return False
    if module.partition(".")[0] in sys.stdlib_module_names:
        return module != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file


@functools.cache
def structseq_fields(cls: type) -> dict[str, int]:
    """Place of each field of a C struct sequence (torch.return_types.*, os.stat_result), those past its items included."""
    if not cls.n_unnamed_fields:
        return {n: i for i, n in enumerate(cls.__match_args__)}
    members = [n for n in dir(cls) if isinstance(getattr(cls, n), types.MemberDescriptorType)]
    probe = cls(range(cls.n_fields))
    return {n: getattr(probe, n) for n in members}


def of_library(cls: type) -> bool:
    """Whether a class is a library's."""
    return is_library(module_of(cls))


def class_attribute(cls: type, name: str) -> Any:
    """A class attribute found by MRO, unbound; None without one."""
    found = class_lookup(cls, name)[0]
    return None if found is MISSING else found
