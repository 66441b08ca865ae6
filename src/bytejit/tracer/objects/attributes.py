"""Attributes: Python's lookup rules over modelled values. https://docs.python.org/3/howto/descriptor.html"""

from __future__ import annotations

import collections
import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.quiet_reads import HEAP_TYPE, derives
from bytejit.common.type_forms import FORMS
from bytejit.guards.item_sources import DictItem
from bytejit.guards.sources import Attr, InstanceDict, KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import to_python
from bytejit.tracer.core.exceptions import name_missed
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.values import (
    NONE,
    NULL,
    CellVar,
    DeferredVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    MethodVar,
    SeqVar,
    SliceVar,
    SuperVar,
    TensorVar,
    TracebackVar,
    Var,
    expect,
)
from bytejit.tracer.core.versions import CLASSMETHODS_CHAIN, FULL_NAMES_OF_SLOTS, NAMES_THE_ENTER

from .class_facts import MISSING, NAMESPACE, WRITTEN, class_lookup, structseq_fields
from .containers import full_name

FIELD = type(NAMESPACE(collections.namedtuple("_OfField", "a"))["a"])  # the descriptor that reads a field of a named tuple
InstanceMethod = type(torch._C._InferenceMode.__dict__["__enter__"])
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
BINDS_ITSELF = (types.FunctionType, functools._lru_cache_wrapper)  # read through an instance, it is a method of it


class Attributes(Component):
    """The part of the tracer that reads and writes attributes."""

    def getattr(self, v: Var, name: str, default: Var | None = None) -> Var:
        """getattr(v, name[, default]). Raises: Raised(AttributeError), Break."""
        v = self.t.values.real(v)
        try:
            return self._getattr(v, name)
        except Raised as e:
            if default is not None and issubclass(e.exc.cls, AttributeError):
                return default
            name_missed(e.exc, v, name)
            raise

    def _getattr(self, v: Var, name: str) -> Var:
        if isinstance(v, InstanceVar):
            return self.t.instance_attributes.instance_getattr(v, name)
        if isinstance(v, TensorVar):
            return self.t.tensor_attributes.tensor_getattr(v, name)
        if isinstance(v, DeferredVar):
            if v.kind is contextvars.Token:
                return self.t.context_variables.token_attribute(v, name)
            if isinstance(v, ReadVar):
                raise Break(f"{name} of a tensor's value")
            raise Break("a random number used in the region" if v.kind is float else "a hook's handle used in the region")
        if isinstance(v, Known):
            return self.t.known_attributes.known_getattr(v, name)
        if isinstance(v, FuncVar):
            return self.t.known_attributes.function_getattr(v, name)
        if isinstance(v, SuperVar):
            return self.super_getattr(v, name)
        if isinstance(v, MethodVar):
            return self.t.known_attributes.method_getattr(v, name)
        return self.builtin_getattr(v, name)

    def no_attribute(self, cls_name: str, name: str, more: str = "") -> Raised:
        return self.t.raised(AttributeError(f"'{cls_name}' object has no attribute '{name}'{more}"))

    def builtin_getattr(self, v: Var, name: str) -> Var:
        """Lists, dicts, sets, iterators, generators...: methods of their type."""
        cls = self.t.type_of(v)
        if name == "__class__":
            return self.t.values.constant(cls)
        if isinstance(v, SliceVar) and name in ("start", "stop", "step"):
            return v.parts[("start", "stop", "step").index(name)]
        if isinstance(v, SeqVar) and isinstance(v.cls, type) and issubclass(v.cls, tuple):
            fields = getattr(v.cls, "_fields", None)
            if name == "_fields" and fields is not None:
                return self.t.values.constant(fields)
            if fields is not None and name in fields and not isinstance(class_lookup(cls, name)[0], property):
                return v.items[fields.index(name)]
            if hasattr(v.cls, "n_sequence_fields"):
                place = structseq_fields(v.cls).get(name, len(v.items))
                if place < len(v.items):
                    return v.items[place]
        if isinstance(v, DictVar) and name == "default_factory" and v.cls is collections.defaultdict:
            return v.factory or NONE
        if isinstance(v, SeqVar) and name == "maxlen" and v.cls is collections.deque:
            return self.t.values.constant(v.maxlen)
        if isinstance(v, CellVar) and name == "cell_contents":
            if v.content is None:
                raise self.t.raised(ValueError("Cell is empty"))
            return v.content
        if isinstance(v, ArrayVar) and (known := self.t.numpy_arrays.array_getattr(v, name)) is not None:
            return known
        found, owner = class_lookup(cls, name)
        if found is MISSING:
            if isinstance(v, DictVar) and cls is collections.OrderedDict and (own := self.ordered_dict_attribute(v, name)):
                return own
            # C types are called by their full names
            in_c = not special_cases.BUILTINS.made(cls) and not cls.__flags__ & HEAP_TYPE
            raise self.no_attribute(f"{cls.__module__}.{cls.__name__}" if in_c else cls.__name__, name)
        return self.bind_descriptor(found, owner, v, cls, name)

    def ordered_dict_attribute(self, v: DictVar, name: str) -> Var | None:
        """An attribute set on an OrderedDict, the one built-in container with a namespace (`state_dict()._metadata`)."""
        if name in v.attrs:
            return v.attrs[name]
        if v.real is None:
            return None
        if name not in v.real.__dict__:
            self.t.guard("ATTR_ABSENT", v.source, name)
            return None
        return self.t.values.memo_lazy(("od", id(v), name), v.real.__dict__[name], lambda: Attr(v.origin, name))

    def ordered_dict_attributes(self, v: DictVar) -> dict[str, Var]:
        """All attributes set on a dict."""
        if v.cls is collections.OrderedDict and v.real is not None:
            self.t.guard("DICT_KEYS", InstanceDict(v.origin), tuple(v.real.__dict__))
            found = {name: self.ordered_dict_attribute(v, name) for name in v.real.__dict__}
            return {**{name: value for name, value in found.items() if value is not None}, **v.attrs}
        return v.attrs

    def bind_descriptor(self, found: Any, owner: type, v: Var, cls: type, name: str) -> Var:
        """The value of a class attribute when it is read through an instance."""
        if isinstance(found, BINDS_ITSELF):
            return MethodVar(self.class_value(owner, name, found), v)
        if isinstance(found, C_METHODS) and not isinstance(found, types.BuiltinFunctionType):
            return MethodVar(Known(found), v)
        if isinstance(found, classmethod):
            return self.classmethod_value(found, owner, self.t.values.constant(cls))
        if type(found) is InstanceMethod:  # a method of a class that pybind11 made
            return MethodVar(Known(found.__func__), v)
        if isinstance(found, types.ClassMethodDescriptorType):
            return self.c_classmethod(found, expect(self.t.values.constant(cls), Known))
        if isinstance(found, staticmethod):
            return self.lift(found.__func__, owner)
        if isinstance(found, property):
            if found.fget is None:
                raise self.t.raised(AttributeError(f"property '{name}' of '{cls.__qualname__}' object has no getter"))
            return self.t.calls.call(self.lift(found.fget, owner), [v], {})
        if isinstance(found, functools.cached_property):
            holder = self.t.values.real(self.class_value(owner, name, found))
            func, attr = self.getattr(holder, "func"), self.t.const(self.getattr(holder, "attrname"))
            with self.t.calls.no_frame():
                value = self.t.calls.call(func, [v], {})
            self.t.attribute_writes.set_in_dict(v, attr, value)
            return value
        if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return self.c_attribute(v, found, name)
        if type(found) is FIELD and isinstance(v, InstanceVar) and isinstance(v.base, SeqVar):
            return v.base.items[found.__reduce__()[1][0]]
        getter = class_lookup(type(found), "__get__")[0]
        if isinstance(getter, types.FunctionType):
            descriptor = self.t.values.real(self.class_value(owner, name, found))
            return self.t.calls.call(self.t.values.constant(getter), [descriptor, v, self.t.values.constant(cls)], {})
        if getter is not MISSING:
            raise Break(f"reading the attribute {cls.__name__}.{name} ({type(found).__name__})")
        return self.class_value(owner, name, found)

    def classmethod_value(self, found: classmethod, owner: type, cls: Var) -> Var:
        """The value of a classmethod read from a class: its function, bound to the class."""
        inside = found.__func__
        chained = CLASSMETHODS_CHAIN and class_lookup(type(inside), "__get__")[0] is not MISSING
        if not chained or isinstance(inside, BINDS_ITSELF):
            return MethodVar(self.lift(inside, owner), cls)
        if not isinstance(inside, property):
            raise Break(f"a classmethod of a {type(inside).__name__}")
        return self.t.calls.call(self.lift(inside.fget, owner), [cls], {})

    def c_classmethod(self, found: types.ClassMethodDescriptorType, cls: Known) -> Var:
        """A class method written in C, read from a class: with its class apart where the tracer models the descriptor."""
        return MethodVar(Known(found), cls) if self.t.calls.has_handler(found) else Known(found.__get__(None, cls.obj))

    def lift(self, fn: Callable, owner: type) -> Var:
        """A function inside a class attribute (a property's getter, a classmethod's function): which it is is guarded with the
        class, here its code."""
        if type(fn) is types.FunctionType and not self.t.cannot_change(owner) and not is_library(fn.__module__):
            self.t.guard("FUNCTION", KnownSource.of(fn), fn)
        return self.t.values.passing(fn) if owner in self.t.rebuilt_classes else self.t.values.constant(fn)

    def class_value(self, owner: type, name: str, found: Any) -> Var:
        """A class attribute with its source, so that a change of the class is noticed."""
        made = self.t.made_classes.get(owner)
        if made is not None and name in made.contents:
            return made.contents[name]
        if owner in WRITTEN and name in WRITTEN[owner]:
            return self.t.effects.classes_written[owner][name]
        if owner in self.t.rebuilt_classes:
            return self.t.values.passing(found)
        source = KnownSource.of(owner)
        return self.t.values.memo_lazy(("c", owner, name), found, lambda: DictItem(InstanceDict(source), name))

    def c_attribute(self, v: Var, found: Any, name: str) -> Var:
        """A slot or a C-level attribute of an instance."""
        if isinstance(v, InstanceVar):
            if name in v.slots:
                value = v.slots[name]
                if value is NULL:
                    raise self.no_attribute(v.cls.__name__, name)
                return value
            if name == "__dict__" and v.ns is not None:
                return v.ns
            if name == "default_factory" and isinstance(v.base, DictVar) and v.base.factory is not None:
                return v.base.factory
            if issubclass(v.cls, BaseException):
                return self.exception_attribute(v, name)
            if v.cls in FORMS and v.real is not None:
                return self.t.operators.fold(getattr, to_python(self.t, v, classes=True), name)
            if v.real is None and isinstance(found, types.MemberDescriptorType):
                raise self.no_attribute(full_name(v.cls) if FULL_NAMES_OF_SLOTS else v.cls.__name__, name)
            if v.real is not None and (
                isinstance(found, types.MemberDescriptorType)
                and (found.__objclass__.__flags__ & HEAP_TYPE or v.cls is functools.partial)
            ):
                try:
                    value = found.__get__(v.real, v.cls)
                except AttributeError as e:
                    self.t.guard("ATTR_ABSENT", v.source, name)
                    raise self.t.raised(e) from None
                return self.t.values.memo_lazy(("s", id(v), name), value, lambda: Attr(v.origin, name))
        raise Break(f"reading the attribute {self.t.type_of(v).__name__}.{name} of a C object")

    def exception_attribute(self, v: InstanceVar, name: str) -> Var:
        if v.real is not None:
            try:
                value = getattr(v.real, name)
            except AttributeError as e:  # a field that no argument set
                self.t.guard("ATTR_ABSENT", v.source, name)
                raise self.t.raised(e) from None
            return self.t.values.memo_lazy(("s", id(v), name), value, lambda: Attr(v.origin, name))
        if name == "args":
            return SeqVar([], tuple)
        if name == "__traceback__" and id(v) in self.t.raised_at:
            return v.slots.setdefault(name, TracebackVar(self.t.limits.steps))
        if name in ("__cause__", "__context__", "__traceback__"):
            return NONE
        if name == "__suppress_context__":
            return self.t.values.constant(False)
        if name == "value" and issubclass(v.cls, StopIteration):
            args = expect(v.slots["args"], SeqVar).items
            return args[0] if args else NONE
        if name == "code" and issubclass(v.cls, SystemExit):
            args = expect(v.slots["args"], SeqVar).items
            return NONE if not args else args[0] if len(args) == 1 else SeqVar(list(args), tuple)
        if issubclass(v.cls, (AttributeError, NameError, ImportError, OSError, SyntaxError, UnicodeError)):
            return NONE
        raise Break(f"reading {v.cls.__name__}.{name}")

    # ---- special methods, super() ------------------------------------------------------------------------------------------
    def special(self, v: Var, name: str) -> Var:
        """A special method, looked up on the type as the interpreter does; bound. Raises: Raised."""
        found = self.find_special(v, name)
        if found is None:
            if name not in ("__enter__", "__exit__"):
                raise self.t.raised(AttributeError(name))
            cls = self.t.type_of(v)
            missed = f" (missed {name} method)" if NAMES_THE_ENTER or name == "__exit__" else ""
            shown = full_name(cls) if NAMES_THE_ENTER else cls.__name__
            raise self.t.raised(TypeError(f"'{shown}' object does not support the context manager protocol{missed}"))
        return found

    def find_special(self, v: Var, name: str) -> Var | None:
        """`special`, or None when the type has no such method."""
        v = self.t.values.real(v)
        cls = self.t.type_of(v)
        found, owner = class_lookup(cls, name)
        if found is MISSING or found is None:
            return None
        return self.bind_descriptor(found, owner, v, cls, name)

    def super_getattr(self, v: SuperVar, name: str) -> Var:
        obj = self.t.values.real(v.obj)
        start = v.cls
        if isinstance(obj, Known) and isinstance(obj.obj, type) and derives(obj.obj, start):
            # super() in a classmethod or __new__
            cls = obj.obj
            found, owner = class_lookup(cls, name, start)
            if found is MISSING:
                raise self.no_attribute("super", name)
            return self.t.known_attributes.read_through_class(found, owner, obj, name)
        cls = self.t.type_of(obj)
        found, owner = class_lookup(cls, name, start)
        if found is MISSING:
            raise self.no_attribute("super", name)
        if name == "__class__":
            return self.t.values.constant(super)
        return self.bind_descriptor(found, owner, obj, cls, name)
