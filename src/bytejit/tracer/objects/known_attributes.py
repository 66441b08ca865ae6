"""Attributes of constants, modules, classes, functions and methods."""

from __future__ import annotations

import contextvars
import enum
import types
from typing import Any

from bytejit.common import special_cases
from bytejit.guards.sources import Attr, Global, InstanceDict, KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import is_c_enumeration, is_constant
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.open_values import OpenVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import TextVar
from bytejit.tracer.core.values import NONE, DictVar, FuncVar, Known, MethodVar, SeqVar, SymVar, Var
from bytejit.tracer.core.versions import ANNOTATES
from bytejit.tracer.objects.attributes import C_METHODS
from bytejit.tracer.sizes.called_anew import call_anew

from .class_facts import MISSING, class_lookup, docstring, is_data_descriptor

ENUMS_OWN = frozenset({"_name_", "_value_", "_sort_order_", "__objclass__", "__dict__", "__class__"})  # set once, by enum

# what a class gives as it is when it is read there
GIVE_THEMSELVES = (types.FunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, *C_METHODS)


class KnownAttributes(Component):
    """The part of the tracer that reads attributes of constants, modules, classes and functions."""

    def known_getattr(self, v: Known, name: str) -> Var:
        if type(v) in (SymVar, TextVar, OpenVar) and (found := self._of_open_value(v, name)) is not None:
            return found
        obj = v.obj
        if isinstance(obj, types.ModuleType):
            return self.python_module_getattr(v, name)
        if isinstance(obj, type):
            return self.class_getattr(v, name)
        if isinstance(obj, enum.Enum) and (found := self._member_attribute(v, name)) is not None:
            return found
        if is_constant(obj):
            return self._constant_attribute(obj, name)
        if isinstance(obj, contextvars.ContextVar) and isinstance(found := vars(type(obj)).get(name), types.MethodDescriptorType):
            return MethodVar(Known(found), v)
        try:
            value = getattr(obj, name)
        except AttributeError as e:
            if v.source is not None:
                self.t.guard("ATTR_ABSENT", v.source, name)
            raise self.t.raised(e) from None
        if v.source is None:
            return self.t.values.constant(value)
        return self.t.values.lazy(value, Attr(v.source, name))

    def _of_open_value(self, v: Known, name: str) -> Var | None:
        """A method, or a part, of a value that changes between calls; None for what is a constant."""
        found = class_lookup(self.t.type_of(v), name)[0]
        if isinstance(found, types.MethodDescriptorType):
            return MethodVar(Known(found), v)
        if type(v) is OpenVar and isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return call_anew(self.t, getattr, [v, Known(name)])
        return None

    def _member_attribute(self, v: Known, name: str) -> Var | None:
        """An attribute that the program stored on an enum member, and may change; None for one of the class or of enum itself."""
        obj, cls = v.obj, type(v.obj)
        found = class_lookup(cls, name)[0]
        if found is not MISSING and is_data_descriptor(found) or name in ENUMS_OWN:
            return None
        source = KnownSource.of(obj)
        if name in obj.__dict__:
            return self.t.values.memo_lazy(("e", id(obj), name), obj.__dict__[name], lambda: Attr(source, name))
        if found is MISSING or not name.startswith("__"):  # a method may be hidden; a special one is not read here
            self.t.guard("DICT_ABSENT", InstanceDict(source), name)
        if found is not MISSING:
            return None
        getter, owner = class_lookup(cls, "__getattr__")
        if isinstance(getter, types.FunctionType):
            return self.t.calls.call(self.t.attributes.class_value(owner, "__getattr__", getter), [v, Known(name)], {})
        return None

    def _constant_attribute(self, obj: Any, name: str) -> Var:
        """An attribute of an immutable value."""
        cls = type(obj)
        found, owner = class_lookup(cls, name)
        if isinstance(found, (types.FunctionType, property)) and not isinstance(found, types.DynamicClassAttribute):
            if not special_cases.ENUM.made(owner) and not is_c_enumeration(cls):
                return self.t.attributes.bind_descriptor(found, owner, Known(obj), cls, name)
        try:
            value = getattr(obj, name)
        except AttributeError as e:
            raise self.t.raised(e) from None
        if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            return Known(value)
        return self.t.values.constant(value)

    def python_module_getattr(self, v: Known, name: str) -> Var:
        module = v.obj
        found, owner = class_lookup(type(module), name)
        if not is_library(module.__name__):  # its class can be another one later
            self.t.guard("TYPE_IS", v.source or KnownSource.of(module), type(module))
        if found is not MISSING and is_data_descriptor(found) and name != "__dict__":
            return self.t.attributes.bind_descriptor(found, owner, v, type(module), name)
        deleted, value = self.t.names.known(module.__dict__, name)
        if value is not None:
            return value
        if deleted and (self.t.names.known(module.__dict__, "__getattr__")[1] or "__getattr__" in module.__dict__):
            raise Break(f"the attribute {name} of a module with a __getattr__, deleted in the region")
        if deleted and name != "__dict__" and found is MISSING:
            raise self.t.raised(AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module))
        if not deleted and name in module.__dict__:
            return self.t.values.memo_lazy(
                ("g", id(module.__dict__), name), module.__dict__[name], lambda: Global.of(module.__dict__, name)
            )
        if name == "__dict__":
            raise Break("a module's __dict__")
        source = v.source or KnownSource.of(module)
        try:
            value = getattr(module, name)  # a module's __getattr__: lazy imports of libraries
        except AttributeError as e:
            self.t.guard("ATTR_ABSENT", source, name)
            raise self.t.raised(e) from None
        return self.t.values.lazy(value, Attr(source, name))

    def check_annotations(self, owner: type, name: str) -> None:
        """Asking a class or a module for annotations that it has not makes them. Raises: Break, but for a class of the trace."""
        if name == "__annotations__" and name not in vars(owner) and owner not in self.t.rebuilt_classes:
            raise Break(f"making the annotations of {owner.__name__}")

    def class_getattr(self, v: Known, name: str) -> Var:
        cls = v.obj
        meta, meta_owner = class_lookup(type(cls), name)
        if meta is not MISSING and is_data_descriptor(meta):
            if isinstance(meta, property):
                return self.t.attributes.bind_descriptor(meta, meta_owner, v, type(cls), name)
            if name == "__dict__":
                return self.t.classes.namespace(cls)
            self.check_annotations(cls, name)
            return self._of_type(cls, name)
        found, owner = class_lookup(cls, name)
        if found is not MISSING:
            return self.read_through_class(found, owner, v, name)
        if meta is not MISSING:
            return self.t.attributes.bind_descriptor(meta, meta_owner, v, type(cls), name)
        getter = class_lookup(type(cls), "__getattr__")[0]
        if isinstance(getter, types.FunctionType):
            return self.t.calls.call(self.t.values.constant(getter), [v, Known(name)], {})
        raise self.t.raised(AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'"))

    def read_through_class(self, found: Any, owner: type, v: Known, name: str) -> Var:
        """The value of a class attribute read through the class v, which has or inherits it."""
        attributes = self.t.attributes
        if isinstance(found, classmethod):
            return attributes.classmethod_value(found, owner, v)
        if isinstance(found, staticmethod):
            return attributes.lift(found.__func__, owner)
        if isinstance(found, types.ClassMethodDescriptorType):
            return attributes.c_classmethod(found, v)
        if type(found) is types.BuiltinFunctionType:
            return Known(found)
        getter = class_lookup(type(found), "__get__")[0]
        if isinstance(getter, types.FunctionType):
            return self.t.calls.call(self.t.values.constant(getter), [attributes.class_value(owner, name, found), NONE, v], {})
        if getter is MISSING or getter is property.__get__ or isinstance(found, GIVE_THEMSELVES):
            return attributes.class_value(owner, name, found)
        return self.t.values.constant(found.__get__(None, v.obj))

    def _of_type(self, cls: type, name: str) -> Var:
        """Reads what `type` stores about a class: its names and documentation, which may be changed, and its bases."""
        try:
            value = getattr(cls, name)
        except AttributeError as e:  # __abstractmethods__ of a class that has none
            raise self.t.raised(e) from None
        if (value is None or type(value) is str) and not self.t.cannot_change(cls):
            return self.t.values.lazy(value, Attr(KnownSource.of(cls), name))
        class_lookup(cls, name)  # guards its bases
        return self.t.values.constant(value)

    def function_getattr(self, v: FuncVar, name: str) -> Var:
        simple = {
            "__name__": lambda: Known(v.name),
            "__qualname__": lambda: Known(v.qualname),
            "__code__": lambda: Known(v.code),
            "__defaults__": lambda: SeqVar(list(v.defaults), tuple) if v.defaults else NONE,
            "__closure__": lambda: SeqVar(list(v.closure), tuple) if v.closure else NONE,
            "__class__": lambda: Known(types.FunctionType),
        }
        if name in v.attrs:
            return v.attrs[name]
        if name in ("__name__", "__qualname__") and v.real is not None and v.source is not None:
            return self.t.values.memo_lazy(("f", id(v), name), getattr(v, name.strip("_")), lambda: Attr(v.origin, name))
        if name in simple:
            return simple[name]()
        if name == "__kwdefaults__":
            if v.kwdefaults:  # what is written into it, calls use
                raise Break(f"{v.qualname}.__kwdefaults__, the dict itself")
            return NONE
        if name in ("__get__", "__call__"):
            return MethodVar(Known(getattr(types.FunctionType, name)), v)
        if v.real is not None:
            if name == "__dict__" and v.attrs:
                raise Break(f"{v.qualname}.__dict__, of which the region has set attributes")
            try:
                value = getattr(v.real, name)
            except AttributeError as e:
                self.t.guard("ATTR_ABSENT", v.source, name)
                raise self.t.raised(e) from None
            return self.t.values.memo_lazy(("f", id(v), name), value, lambda: Attr(v.origin, name))
        if name in ("__module__", "__doc__"):
            return self.t.values.constant(v.globals.get("__name__") if name == "__module__" else docstring(v.code))
        if name == "__dict__":
            return DictVar({k: (Known(k), a) for k, a in v.attrs.items() if k not in vars(types.FunctionType)})
        if name == "__annotations__":
            v.attrs[name] = self.annotations_of(v)
            return v.attrs[name]
        if name == "__annotate__" and ANNOTATES:
            return v.annotations if v.annotations is not None else NONE
        if name == "__type_params__":
            return SeqVar([], tuple)
        if (of_type := slot_of(types.FunctionType, name, v)) is not None:
            return of_type
        raise self.t.raised(AttributeError(f"'function' object has no attribute '{name}'"))

    def annotations_of(self, v: FuncVar) -> Var:
        """The dict of annotations of a function made in the trace: of its pairs, or (3.14) what its __annotate__ makes."""
        if isinstance(v.annotations, SeqVar):
            pairs = zip(v.annotations.items[::2], v.annotations.items[1::2])
            return DictVar({self.t.const(k): (self.t.values.real(k), a) for k, a in pairs})
        if isinstance(v.annotations, FuncVar):
            return self.t.values.real(self.t.calls.call(v.annotations, [Known(1)], {}))  # annotationlib.Format.VALUE
        return DictVar({})

    def method_getattr(self, v: MethodVar, name: str) -> Var:
        if name == "__self__":
            return v.self
        if name == "__func__":
            return v.func
        if name == "__class__":
            return self.t.values.constant(self.t.type_of(v))
        if name == "__call__":
            return v
        if (of_type := slot_of(self.t.type_of(v), name, v)) is not None:  # before what the function has
            return of_type
        return self.t.attributes.getattr(v.func, name)


def slot_of(cls: type, name: str, v: Var) -> Var | None:
    """A special method that a class written in C gives its instances, bound to one; None for other names."""
    found = class_lookup(cls, name)[0]
    return MethodVar(Known(found), v) if type(found) is types.WrapperDescriptorType else None
