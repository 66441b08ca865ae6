"""Checks of objects for runtime protocols (typing.Protocol): their classes, and attributes of their own, decide."""

from __future__ import annotations

import inspect
import typing

from bytejit.guards.references import Ref
from bytejit.guards.sources import Computed, KnownSource
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, InstanceVar, Known, SeqVar, SetVar, Var

from .class_facts import MRO


class _Nothing(typing.Protocol):
    pass


PLAIN_CONTAINERS = (list, tuple, dict, set, frozenset)
OF_EVERY_ONE = {*vars(_Nothing), *dir(typing.Generic), "__slots__", "__protocol_attrs__", "__non_callable_proto_members__"}


def members(protocol: type) -> set[str]:
    """The names that a protocol asks for."""
    asked = [c for c in MRO(protocol) if c is not typing.Protocol and c.__dict__.get("_is_protocol")]
    return {name for c in asked for name in (*vars(c), *inspect.get_annotations(c))} - OF_EVERY_ONE


def has_members(t: Tracer, subject: Var, protocol: type) -> bool:
    """Whether an object, whose class does not say so, has what a protocol names. Raises: Raised, Break."""
    if isinstance(subject, Known):
        return isinstance(subject.obj, protocol)
    if isinstance(subject, (SeqVar, DictVar, SetVar)) and subject.cls in PLAIN_CONTAINERS:
        return isinstance(subject.cls(), protocol)
    real, own = getattr(subject, "real", None), subject.ns if isinstance(subject, InstanceVar) else None
    if real is None or subject.source is None or own is not None and id(own) in t.effects.dirty:
        names = members(protocol)
        if own is None or {*own.items} & names or not all(callable(getattr(protocol, name, None)) for name in names):
            raise Break("a check for a protocol of an object that the region made or changed")
        return False
    try:
        found = isinstance(real, protocol)
    except TypeError as e:
        raise t.raised(e) from None
    t.guard("ID_IS", Computed(Ref(isinstance), (subject.source, KnownSource.of(protocol))), found)
    return found
