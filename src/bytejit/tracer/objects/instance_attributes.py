"""Attributes of instances of classes written in Python, modules among them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from bytejit.guards.module_sources import ModuleBuffer, ModuleParam, SubModule
from bytejit.guards.source import Source
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.exceptions import name_missed
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.values import DictVar, InstanceVar, Known, Lazy, Var, expect

from . import thread_locals
from .class_facts import MISSING, MODULE_GETATTR, class_lookup, is_data_descriptor

GENERIC_GETATTR = (
    object.__getattribute__,
    BaseException.__getattribute__,
    functools.partial.__getattribute__,
    types.SimpleNamespace.__getattribute__,
)


class InstanceAttributes(Component):
    """The part of the tracer that reads attributes of instances."""

    def instance_getattr(self, v: InstanceVar, name: str) -> Var:
        cls = v.cls
        lookup, owner = class_lookup(cls, "__getattribute__")
        if lookup not in GENERIC_GETATTR:
            if isinstance(lookup, types.FunctionType):
                try:
                    return self.t.calls.call(
                        self.t.attributes.class_value(owner, "__getattribute__", lookup), [v, Known(name)], {}
                    )
                except Raised as e:
                    return self._by_getattr(v, name, e)
            if lookup is thread_locals.READS:
                return thread_locals.attribute(self.t, v, name)
            if not issubclass(cls, (dict, list, tuple, str, int, float, bytes, set)):
                raise Break(f"reading {cls.__name__}.{name} of a C object")
        return self.generic_getattr(v, name)

    def says_class(self, cls: type) -> bool:
        """Whether what an instance names as its `__class__` is for the program to say (proxies, mocks)."""
        return class_lookup(cls, "__class__")[1] is not object or isinstance(
            class_lookup(cls, "__getattribute__")[0], types.FunctionType
        )

    def generic_getattr(self, v: InstanceVar, name: str, fallback: bool = True) -> Var:
        """object.__getattribute__, then __getattr__."""
        cls = v.cls
        if name == "__class__" and class_lookup(cls, name)[1] is object:
            return self.t.values.constant(cls)
        if name == "__dict__" and v.ns is not None:
            return v.ns
        found, owner = class_lookup(cls, name)
        if found is not MISSING and is_data_descriptor(found):
            try:
                return self.t.attributes.bind_descriptor(found, owner, v, cls, name)
            except Raised as e:
                if not fallback:
                    raise
                return self._by_getattr(v, name, e)
        if v.ns is not None:
            value = self.t.values.lookup(v.ns, name)
            if value is not None:
                return value
        if found is not MISSING:
            return self.t.attributes.bind_descriptor(found, owner, v, cls, name)
        if fallback:
            return self._by_getattr(v, name)
        missed = self.t.attributes.no_attribute(cls.__name__, name)
        name_missed(missed.exc, v, name)
        raise missed

    def _by_getattr(self, v: InstanceVar, name: str, missed: Raised | None = None) -> Var:
        """Calls the class's __getattr__ for a name that was not found. Raises: missed, where it has none."""
        found, owner = class_lookup(v.cls, "__getattr__")
        if owner is None or missed is not None and not issubclass(missed.exc.cls, AttributeError):
            raise missed or self.t.attributes.no_attribute(v.cls.__name__, name)
        if found is MODULE_GETATTR:
            return self.module_getattr(v, name)
        if isinstance(found, types.FunctionType):
            return self.t.calls.call(self.t.attributes.class_value(owner, "__getattr__", found), [v, Known(name)], {})
        return self.t.calls.call(self.t.attributes.special(v, "__getattr__"), [Known(name)], {})

    def _entry_of(self, kind: Callable[[Source, str], Source], v: InstanceVar, name: str) -> Source:
        """The source of what a module holds, whose module is then known by it."""
        source = kind(v.origin, name)
        self.t.modules[source] = v.real
        return source

    def module_getattr(self, v: InstanceVar, name: str) -> Var:
        """nn.Module.__getattr__: parameters, buffers, submodules, in that order."""
        unread = []
        for table, kind in (("_parameters", ModuleParam), ("_buffers", ModuleBuffer), ("_modules", SubModule)):
            d = self.t.values.lookup(v.ns, table, decides=False) if v.ns is not None else None
            if d is None:
                continue
            raw = d.obj if type(d) is Lazy and d.var is None else None
            if type(raw) is dict and v.source is not None:
                # the common case: not yet looked at, so it is read through the short source
                if name in raw:
                    return self.t.values.memo_lazy(("m", id(v), table, name), raw[name], lambda: self._entry_of(kind, v, name))
                unread.append(d)  # where a later table has the name its entry decides: register_* keeps names apart
                continue
            value = self.t.subscripts.found(self.t.values.real(d), name)
            if value is not None:
                return value
        for d in unread:
            self.t.values.lookup(expect(self.t.values.real(d), DictVar), name)  # adds a guard that the name is absent
        raise self.t.raised(AttributeError(f"'{v.cls.__name__}' object has no attribute '{name}'"))
