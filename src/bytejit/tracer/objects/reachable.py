"""Which values of a trace others refer to."""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from bytejit.guards.sources import Local, StackSlot
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import CellVar, DictVar, FuncVar, InstanceVar, MethodVar, SeqVar, SetVar, TensorVar, Var

from .changing_keys import all_new
from .class_facts import NAMESPACE
from .containers import is_unchanged, real_key
from .external_lists import ExternalList
from .made_dicts import MadeDict
from .open_writes import ExternalDict

CONTAINERS = (CellVar, DictVar, FuncVar, InstanceVar, MethodVar, SeqVar, SetVar)


def reachable(roots: Iterable[object], weakly: bool = True) -> set[int]:
    """The ids of the tensors, containers, cells, functions and instances that can be got at from some values, these included.

    Not through iterators and generators. weakly: also through weak references made in the region.
    """
    found: set[int] = set()
    todo = list(roots)
    while todo:
        v = todo.pop()
        v = getattr(v, "var", v) or v
        if id(v) in found or not isinstance(v, (*CONTAINERS, TensorVar)):
            continue
        found.add(id(v))
        if isinstance(v, TensorVar):
            continue
        if isinstance(v, FuncVar):
            todo += [*v.closure, *v.defaults, *v.kwdefaults.values(), *v.attrs.values()]
        elif isinstance(v, MethodVar):
            todo += [v.func, v.self]
        elif isinstance(v, CellVar):
            todo.append(v.content)
        elif isinstance(v, InstanceVar):
            todo += [v.ns, v.base, *(v.slots.values() if weakly or v.cls is not weakref.ReferenceType else ())]
        elif isinstance(v, DictVar):
            pairs = [*v.known.values(), *v.late.values()] if isinstance(v, (ExternalDict, MadeDict)) else v.items.values()
            todo += [x for pair in pairs for x in pair]
        elif isinstance(v, ExternalList) and v.tail is not None:
            todo += [*v.tail, *(x for pair in v.late.values() for x in pair)]
        else:
            todo += v.items.values() if isinstance(v, SetVar) else v.items
    return found


def lost(t: Tracer) -> bool:
    """Whether the region may have dropped the last reference to an object from outside."""
    if t.lost or t.effects.globals_written:
        return True
    if any(not holds_nothing(NAMESPACE(cls).get(n)) for cls, names in t.effects.classes_written.items() for n in names):
        return True
    return any(v.source is not None and lets_go(t, v) for v in t.effects.dirty.values())


def lets_go(t: Tracer, v: Var) -> bool:
    """Whether a change to an object from outside may have taken its last reference from another object of the program."""
    if isinstance(v, TensorVar):
        return bool(v.attrs.keys() - {"grad"}) or not holds_nothing(v.real.grad)
    if isinstance(v, (ExternalDict, ExternalList)) and v.late:
        return not all_new(t, v)
    if isinstance(v, ExternalList):
        return (v.tail is None or v.maxlen is not None) and bool(v.real)  # an empty one is guarded to be so
    if isinstance(v, CellVar) and v.real is not None:
        return v.real != types.CellType() and not holds_nothing(v.real.cell_contents)
    if isinstance(v, SetVar) and v.real is not None:
        return any(x not in v.items and not holds_nothing(x) for x in v.real)
    if not isinstance(v, DictVar) or type(v.real) not in (dict, collections.OrderedDict):
        return True
    for key in (*v.deleted, *v.items):
        old = v.real.get(real_key(key))
        new = v.items[key][1] if key in v.items and key not in v.deleted else None
        if not holds_nothing(old) and not (new is not None and is_unchanged(v, key, new)):
            return True
    return False


def holds_nothing(x: Any) -> bool:
    """Whether a value refers to no object of the program."""
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        return not x.__dict__ and x.grad_fn is None and (not x.is_leaf or x.grad is None or holds_nothing(x.grad))
    return type(x) in (type(None), bool, int, float, complex, str, bytes)


def surely_held(t: Tracer, value: Var) -> bool:
    """Whether the program holds a value now, as far as can be told: it came from outside and nothing was dropped, a frame holds
    it, or what came from outside and changed."""
    if value.source is not None and not isinstance(value.source, (Local, StackSlot)) and not lost(t):
        return True
    roots: list[object] = [v for v in t.effects.touched.values() if v.source is not None]
    roots += [v for _, changes in t.effects.globals_written.values() for v in changes.values()]
    frame = t.frame
    while frame is not None:
        roots += [*frame.locals.values(), *frame.stack, *frame.cells.values(), frame.func]
        frame = frame.parent
    return id(value) in reachable(roots, weakly=False)
