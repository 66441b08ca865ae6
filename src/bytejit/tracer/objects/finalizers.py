"""Objects whose end runs code of the program: what lets go of one is done by the original code, at its place."""

from __future__ import annotations

import weakref
from collections import deque
from types import FunctionType, ModuleType
from typing import Any

import torch

from bytejit.common.plain_types import PLAIN_TYPES
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Lazy

from .class_facts import class_attribute
from .code_reach import method_and_callees
from .containers import runs_code


def ends_by_code(obj: Any, deep: bool = True) -> bool:
    """Whether an object, or one of a small container's items, has a finalizer, or weak references that tell its end."""
    if type(obj) in (list, tuple, set, deque):
        return deep and len(obj) <= 64 and any(ends_by_code(o, False) for o in obj)
    if type(obj) is dict:
        return deep and len(obj) <= 64 and any(ends_by_code(o, False) for o in obj.values())
    if class_attribute(type(obj), "__del__") is not None:
        return True
    known = isinstance(obj, (torch.Tensor, torch.nn.Module, type, FunctionType, ModuleType))
    return not known and weakref.getweakrefcount(obj) > 0


def code_at_the_end(obj: Any) -> list[Any] | None:
    """Returns the code that runs when an object dies, and the objects that this code can reach. None if that is not known."""
    if type(obj) in (list, tuple, set, deque, dict):
        parts = [code_at_the_end(o) for o in (obj.values() if type(obj) is dict else obj)]
        known = [p for p in parts if p is not None]
        return [x for p in known for x in p] if len(known) == len(parts) else None
    roots: list[Any] = []
    if class_attribute(type(obj), "__del__") is not None:
        methods = method_and_callees(type(obj), "__del__")
        if not methods or hasattr(type(obj), "__slots__"):
            return None
        roots += [*methods, *vars(obj).values()]
    for ref in weakref.getweakrefs(obj) if type(obj) not in PLAIN_TYPES else ():
        told = getattr(ref, "__callback__", None)
        if isinstance(told, weakref.finalize):
            _, function, args, kwargs = told.peek() or (None, None, (), {})
            roots += [function, *args, *(kwargs or {}).values()]
        else:
            roots.append(told if told is not None else ref)
    return roots


def check_replaced(t: Tracer, d: DictVar, key: object) -> None:
    """Before a write of an item, or its deletion, in a dict from outside (that of an object's attributes too). Raises: Break
    where the object that goes has a finalizer: the region's writes are made at its end, too late for that. Under nopython it
    ends with the region where that makes no difference."""
    if d.real is None or key in d.deleted or runs_code(key):
        return
    if key in d.items:
        held = d.items[key][1]
        old = held.obj if type(held) is Lazy else getattr(held, "real", None)
    else:
        old = d.real.get(key)
    if old is not None and ends_by_code(old):
        if t.job.measure and (roots := code_at_the_end(old)) is not None and t.program_operators.ends_late(roots):
            return
        raise Break("an object with a finalizer is replaced")
