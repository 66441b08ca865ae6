"""Attributes of threading.local objects: read, and guarded, in the thread that calls, and written in it when the region ends."""

from __future__ import annotations

import threading

from bytejit.guards.sources import Attr
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, InstanceVar, Var

from .class_facts import MISSING, class_lookup

READS, WRITES, DELETES = threading.local.__getattribute__, threading.local.__setattr__, threading.local.__delattr__


def attribute(t: Tracer, v: InstanceVar, name: str) -> Var:
    """v.name. Raises: Raised, Break for one made in the region and for what its class may decide."""
    _check(v, name)
    if name in v.slots:
        if v.slots[name] is NULL:
            raise t.attributes.no_attribute(v.cls.__name__, name)
        return v.slots[name]
    try:
        value = getattr(v.real, name)
    except AttributeError as e:
        t.guard("ATTR_ABSENT", v.source, name)
        raise t.raised(e) from None
    return t.values.memo_lazy(("s", id(v), name), value, lambda: Attr(v.origin, name))


def write(t: Tracer, v: InstanceVar, name: str, value: Var) -> None:
    """v.name = value. Raises: Break as in `attribute`."""
    _check(v, name)
    v.slots[name] = value
    t.touch(v)


def delete(t: Tracer, v: InstanceVar, name: str) -> None:
    """del v.name. Raises: Raised, Break as in `attribute`."""
    attribute(t, v, name)
    if hasattr(v.real, name):
        v.slots[name] = NULL
    else:
        del v.slots[name]
    t.touch(v)


def _check(v: InstanceVar, name: str) -> None:
    """Raises: Break where the object is not from outside, or its class or whole namespace may decide."""
    if (
        v.real is None
        or name in ("__dict__", "__class__")
        or any(class_lookup(v.cls, n)[0] is not MISSING for n in (name, "__getattr__"))
    ):
        raise Break(f"the attribute {name} of a {v.cls.__name__}, a C object")
