"""Attributes of threading.local objects: read, and guarded, in the thread that calls."""

from __future__ import annotations

import threading

from bytejit.guards.sources import Attr
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Var

from .class_facts import MISSING, class_lookup

READS, WRITES = threading.local.__getattribute__, threading.local.__setattr__


def attribute(t: Tracer, v: InstanceVar, name: str) -> Var:
    """v.name. Raises: Raised, Break for one made in the region and for what its class may decide."""
    if v.real is None or class_lookup(v.cls, name)[0] is not MISSING or class_lookup(v.cls, "__getattr__")[0] is not MISSING:
        raise Break(f"reading {v.cls.__name__}.{name} of a C object")
    try:
        value = getattr(v.real, name)
    except AttributeError as e:
        t.guard("ATTR_ABSENT", v.source, name)
        raise t.raised(e) from None
    return t.values.memo_lazy(("s", id(v), name), value, lambda: Attr(v.source, name))
