"""Writes to attributes, and their deletion."""

from __future__ import annotations

import collections
import types

from bytejit.common.quiet_reads import DICT_OFFSET
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.exceptions import name_missed
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.values import NONE, NULL, TRUE, DictVar, FuncVar, InstanceVar, Known, SeqVar, TensorVar, Var
from bytejit.tracer.core.versions import ANNOTATES, NO_DICT

from . import thread_locals
from .class_facts import MISSING, MODULE_DELATTR, MODULE_SETATTR, class_lookup, is_data_descriptor, is_slot

CHAIN = {"__cause__": (BaseException,), "__context__": (BaseException,), "__traceback__": (types.TracebackType,)}


class AttributeWrites(Component):
    """The part of the tracer that sets and deletes attributes."""

    def setattr(self, v: Var, name: str, value: Var) -> None:
        """v.name = value, recorded for the exit when v is from outside. Raises: Raised, Break."""
        v = self.t.values.real(v)
        if isinstance(v, InstanceVar):
            setter, owner = class_lookup(v.cls, "__setattr__")
            if isinstance(setter, types.FunctionType) and setter is not MODULE_SETATTR:
                self.t.calls.call(self.t.attributes.class_value(owner, "__setattr__", setter), [v, Known(name), value], {})
            elif setter is MODULE_SETATTR and self.needs_module_setattr(v, name, value):
                self.t.calls.call(self.t.attributes.class_value(owner, "__setattr__", setter), [v, Known(name), value], {})
            elif setter is thread_locals.WRITES:
                thread_locals.write(self.t, v, name, value)
            elif not isinstance(setter, types.FunctionType) and not is_slot(setter, "__setattr__"):
                self._by_own(v, "__setattr__", [Known(name), value])
            else:
                self.generic_setattr(v, name, value)
        elif isinstance(v, FuncVar) and v.real is None:
            self._set_function_attribute(v, name, value)
        elif isinstance(v, FuncVar) and v.source is not None and not hasattr(types.FunctionType, name):
            self._set_outside_function(v, name, value)
        elif isinstance(v, TensorVar):
            self.t.tensor_attributes.tensor_setattr(v, name, value)
        elif isinstance(v, DictVar) and v.cls is collections.OrderedDict and class_lookup(v.cls, name)[0] is MISSING:
            v.attrs[name] = value
            self.t.touch(v)
        elif isinstance(v, Known) and isinstance(v.obj, types.ModuleType):
            self._set_in_module(v, name, value)
        elif isinstance(v, Known) and isinstance(v.obj, type):
            self.t.classes.class_setattr(v, name, value)
        else:
            raise Break(f"setting the attribute {name} of a {self.t.type_of(v).__name__}")

    def _by_own(self, v: InstanceVar, method: str, args: list[Var]) -> None:
        """Call a special method of a class that is no Python function: a method of a builtin type, or any callable object."""
        found = self.t.attributes.find_special(v, method)
        self.t.calls.call(NONE if found is None else found, args, {})

    def needs_module_setattr(self, v: InstanceVar, name: str, value: Var) -> bool:
        """Whether nn.Module.__setattr__ would do more than store into __dict__: it files parameters, modules, buffers."""
        value = self.t.values.real(value)
        special = isinstance(value, (TensorVar, InstanceVar))
        if v.real is not None:
            tables = [v.real.__dict__.get(k) or {} for k in ("_parameters", "_modules", "_buffers")]
            return special or any(name in d for d in tables)
        return True

    def _set_function_attribute(self, v: FuncVar, name: str, value: Var) -> None:
        value = self.t.values.real(value)
        if name == "__name__":
            v.name = self.t.const(value)
        elif name == "__qualname__":
            v.qualname = self.t.const(value)
        elif name == "__defaults__":
            v.defaults = tuple(value.items) if isinstance(value, SeqVar) else ()
        elif name == "__kwdefaults__":
            v.kwdefaults = {k: e for k, (_, e) in value.items.items()} if isinstance(value, DictVar) else {}
        elif name == "__code__" and v.real is None:
            self._set_code(v, value)
        elif name in ("__code__", "__closure__", "__dict__"):
            raise Break(f"setting a function's {name}")
        elif name == "__annotate__" and ANNOTATES:
            v.annotations = value if isinstance(value, FuncVar) else None
            v.attrs.pop("__annotations__", None)
        else:
            v.attrs[name] = value
        self.t.effects.mutations += 1

    def _set_outside_function(self, v: FuncVar, name: str, value: Var) -> None:
        """An attribute of a function from outside, such as the calls that a decorator counts. Raises: Break."""
        if ("f", id(v), "__dict__") in self.t.memo:
            raise Break(f"setting an attribute of {v.qualname}, whose __dict__ the region looks at")
        v.attrs[name] = value
        self.t.touch(v)

    def _set_code(self, v: FuncVar, value: Var) -> None:
        """`function.__code__ = code` of a function made in the trace. Its names stay."""
        if not isinstance(value, Known) or type(value.obj) is not types.CodeType:
            raise Break("setting a function's __code__ to what is no code object")
        want, new = len(v.closure), len(value.obj.co_freevars)
        if want != new:
            raise self.t.raised(ValueError(f"{v.name}() requires a code object with {want} free vars, not {new}"))
        v.code = value.obj

    def _set_in_module(self, v: Known, name: str, value: Var) -> None:
        """A module's class may decide what a write does: `torch.backends.cudnn.benchmark = True` sets a flag of torch's."""
        module, cls = v.obj, type(v.obj)
        if not is_library(module.__name__):  # its class can be another one later
            self.t.guard("TYPE_IS", v.source or KnownSource.of(module), cls)
        found, setter = class_lookup(cls, name)[0], class_lookup(cls, "__setattr__")[0]
        if setter is not types.ModuleType.__setattr__:
            raise Break(f"setting {module.__name__}.{name}, where the module's class has its own __setattr__")
        if self._by_descriptor(v, cls, name, value):
            return
        if found is not MISSING and is_data_descriptor(found):
            raise Break(f"setting {module.__name__}.{name}")
        self.t.names.bind(module.__dict__, name, value)

    def _by_descriptor(self, v: Var, cls: type, name: str, value: Var) -> bool:
        """Call the class's property, or other Python descriptor, of that name; False without one. Raises: Raised."""
        found, owner = class_lookup(cls, name)
        if isinstance(found, property):
            if found.fset is None:
                raise self.t.raised(AttributeError(f"property '{name}' of '{cls.__qualname__}' object has no setter"))
            self.t.calls.call(self.t.attributes.lift(found.fset, owner), [v, value], {})
            return True
        setter = class_lookup(type(found), "__set__")[0] if found is not MISSING else MISSING
        if isinstance(setter, types.FunctionType):
            self.t.calls.call(self.t.values.constant(setter), [self.t.attributes.class_value(owner, name, found), v, value], {})
        return isinstance(setter, types.FunctionType)

    def generic_setattr(self, v: InstanceVar, name: str, value: Var) -> None:
        """object.__setattr__."""
        if self._by_descriptor(v, v.cls, name, value):
            return
        found = class_lookup(v.cls, name)[0]
        if isinstance(found, types.MemberDescriptorType) or (
            isinstance(found, types.GetSetDescriptorType) and issubclass(v.cls, BaseException)
        ):
            if name in CHAIN:
                self._set_in_chain(v, name, value)
            v.slots[name] = value
            self.t.touch(v)
            return
        if name == "__class__" and v.real is None and v.base is None and not v.slots:
            self.t.classes.change_class(v, value)
            return
        if name == "__class__" or isinstance(found, types.GetSetDescriptorType):
            raise Break(f"setting {v.cls.__name__}.{name}")
        if isinstance(class_lookup(type(found), "__delete__")[0], types.FunctionType):
            raise self.t.raised(AttributeError("__set__"))
        self.set_in_dict(v, name, value)

    def _set_in_chain(self, v: InstanceVar, name: str, value: Var) -> None:
        """An exception's cause, context or traceback set; a cause also hides the context."""
        value = self.t.values.real(value)
        if not issubclass(self.t.type_of(value), (types.NoneType, *CHAIN[name])):
            raise Break(f"setting an exception's {name} to a {self.t.type_of(value).__name__}")
        if name == "__cause__":
            v.slots["__suppress_context__"] = TRUE

    def set_in_dict(self, v: Var, name: str, value: Var) -> None:
        if not isinstance(v, InstanceVar) or v.ns is None or v.real is not None and not DICT_OFFSET(type(v.real)):
            raise self._no_dict(v, name)
        self.t.subscript_writes.dict_set(v.ns, Known(name), value)

    def _no_dict(self, v: Var, name: str) -> Raised:
        """The error for setting or deleting an attribute of an object without a dict."""
        cls = self.t.type_of(v)
        if class_lookup(cls, name)[0] is not MISSING:
            return self.t.raised(AttributeError(f"'{cls.__name__}' object attribute '{name}' is read-only"))
        plain = all(class_lookup(cls, n)[0] is getattr(object, n) for n in ("__setattr__", "__delattr__"))
        if NO_DICT:
            error = self.t.attributes.no_attribute(cls.__name__, name, NO_DICT if plain else "")
            name_missed(error.exc, v, name)
            return error
        return self.t.raised(AttributeError(f"'{cls.__name__}' object has no attribute '{name}'"))

    def delattr(self, v: Var, name: str) -> None:
        v = self.t.values.real(v)
        if not isinstance(v, InstanceVar):
            raise Break(f"deleting the attribute {name} of a {self.t.type_of(v).__name__}")
        deleter, owner = class_lookup(v.cls, "__delattr__")
        if isinstance(deleter, types.FunctionType) and deleter is not MODULE_DELATTR:
            self.t.calls.call(self.t.attributes.class_value(owner, "__delattr__", deleter), [v, Known(name)], {})
            return
        if deleter is thread_locals.DELETES:
            thread_locals.delete(self.t, v, name)
            return
        if not isinstance(deleter, types.FunctionType) and not is_slot(deleter, "__delattr__"):
            self._by_own(v, "__delattr__", [Known(name)])
            return
        self.generic_delattr(v, name)

    def generic_delattr(self, v: InstanceVar, name: str) -> None:
        found, owner = class_lookup(v.cls, name)
        deleter, setter = (class_lookup(type(found), n)[0] for n in ("__delete__", "__set__"))
        if isinstance(found, property):
            if found.fdel is None:
                raise self.t.raised(AttributeError(f"property '{name}' of '{v.cls.__qualname__}' object has no deleter"))
            self.t.calls.call(self.t.attributes.lift(found.fdel, owner), [v], {})
        elif isinstance(deleter, types.FunctionType):
            self.t.calls.call(self.t.values.constant(deleter), [self.t.attributes.class_value(owner, name, found), v], {})
        elif isinstance(setter, types.FunctionType):
            raise self.t.raised(AttributeError("__delete__"))
        elif isinstance(found, types.MemberDescriptorType) and v.slots.get(name, NULL) is not NULL:
            v.slots[name] = NULL
            self.t.touch(v)
        elif isinstance(found, types.MemberDescriptorType):
            raise self.t.raised(AttributeError(name))
        elif v.ns is not None and self.t.values.lookup(v.ns, name) is not None:
            self.t.subscript_writes.dict_del(v.ns, name)
        elif v.ns is None:
            raise self._no_dict(v, name)
        else:
            raise self.t.raised(AttributeError(f"'{v.cls.__name__}' object has no attribute '{name}'"))
