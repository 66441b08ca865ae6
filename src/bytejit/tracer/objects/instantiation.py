"""Making instances: cls(*args, **kwargs), __new__ and __init__."""

from __future__ import annotations

import collections
import enum
import types
from typing import Any

from bytejit.common import special_cases
from bytejit.common.quiet_reads import FLAGS, HEAP_TYPE, IS_ABSTRACT, derives
from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.exceptions import exception_var
from bytejit.tracer.core.frame import bind
from bytejit.tracer.core.library_code import is_of_library
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import UnreadText
from bytejit.tracer.core.values import (
    NONE,
    DeferredVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    SeqVar,
    SetVar,
    TensorVar,
    Var,
    expect,
)
from bytejit.tracer.objects.pure_functions import is_pure

from .argument_counts import describe
from .class_facts import MRO, NAMESPACE, class_attribute, class_lookup, hides_dict, is_named_tuple, is_slot


class Instantiation(Component):
    """The part of the tracer that makes instances of classes."""

    def instantiate(self, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """cls(*args, **kwargs): the metaclass's __call__, else __new__ and __init__."""
        meta_call, owner = class_lookup(type(cls), "__call__")
        if isinstance(meta_call, types.FunctionType):
            if meta_call is enum.EnumMeta.__call__ and is_of_library(class_attribute(cls, "_missing_")):
                return self._fold_class(cls, args, kwargs)
            return self.t.calls.call(self.t.attributes.class_value(owner, "__call__", meta_call), [Known(cls), *args], kwargs)
        if meta_call is dict:  # a TypedDict
            return self.t.calls.call_python(dict, args, kwargs)
        if meta_call is not type.__call__:
            if is_pure(cls):
                return self._fold_class(cls, args, kwargs)
            raise Break(f"making a {describe(cls)}")
        return self.make_instance(cls, args, kwargs)

    def make_instance(self, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """type.__call__: __new__ and __init__."""
        obj = self._new(cls, args, kwargs)
        if issubclass(cls, type) and isinstance(obj, Known) and derives(type(obj.obj), cls):
            init, init_owner = class_lookup(type(obj.obj), "__init__")
            if isinstance(init, types.FunctionType):
                self.t.calls.call(self.t.attributes.class_value(init_owner, "__init__", init), [obj, *args], kwargs)
        if isinstance(obj, (InstanceVar, TensorVar)) and obj.cls is not None and cls in MRO(obj.cls):
            init, init_owner = class_lookup(obj.cls, "__init__")
            if isinstance(init, types.FunctionType):
                self._returns_none(self.t.attributes.class_value(init_owner, "__init__", init), [obj, *args], kwargs)
            elif init is object.__init__:
                new = class_lookup(cls, "__new__")[0]
                if (args or kwargs) and new is object.__new__:
                    raise self.t.raised(TypeError(f"{cls.__name__}() takes no arguments"))
            elif self.t.calls.has_handler(init):
                self.t.calls.call(Known(init), [obj, *args], kwargs)
            elif not is_slot(init, "__init__"):  # a partialmethod, any callable
                self._returns_none(self.t.attributes.find_special(obj, "__init__") or NONE, args, kwargs)
            elif isinstance(obj.base, (DictVar, SeqVar, SetVar)) and (args or kwargs) and obj.base.cls is not tuple:
                raise Break(f"making a {describe(cls)}")
        return obj

    def _returns_none(self, init: Var, args: list[Var], kwargs: dict[str, Var]) -> None:
        """Call an `__init__`. Raises: Raised(TypeError) where it returns something."""
        result = self.t.values.real(self.t.calls.call(init, args, kwargs))
        if not self.t.comparisons.is_same(result, NONE):
            raise self.t.raised(TypeError(f"__init__() should return None, not '{self.t.type_of(result).__name__}'"))

    def _new(self, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var:
        new, owner = class_lookup(cls, "__new__")
        if isinstance(new, (staticmethod, types.FunctionType)):
            fn = new.__func__ if isinstance(new, staticmethod) else new
            if hasattr(cls, "_fields") and special_cases.NAMED_TUPLES.made(fn):
                return self._named_tuple(cls, fn, args, kwargs)
            return self.t.values.real(self.t.calls.call(self.t.values.constant(fn), [Known(cls), *args], kwargs))
        if new is object.__new__:
            if solid_base(cls) is not object:
                raise Break(f"making a {describe(cls)} through object.__new__")
            return self.object_new(cls)
        if new is type.__new__:
            return self.t.calls.call_python(new, [Known(cls), *args], kwargs)
        if issubclass(cls, BaseExceptionGroup):
            return self.t.calls.call_python(BaseExceptionGroup.__new__, [Known(cls), *args], kwargs)
        if issubclass(cls, (OSError, SyntaxError, UnicodeError)) and not kwargs and not cls.__flags__ & HEAP_TYPE:
            return self._exception_of_constants(cls, args)
        if issubclass(cls, BaseException):
            made = self.object_new(cls)
            made.slots["args"] = SeqVar(list(args), tuple)
            if issubclass(cls, (OSError, SyntaxError, UnicodeError)):
                raise Break(f"making a {describe(cls)}")
            return made
        for base in (dict, list, set, tuple, int, float, str) if not issubclass(cls, numpy_types.SCALAR) else ():
            if issubclass(cls, base) and new is class_lookup_new(base, cls):
                return self._new_of_builtin(cls, base, args, kwargs)
        if is_pure(cls):
            return self._fold_class(cls, args, kwargs)
        raise Break(f"making a {describe(cls)}")

    def _exception_of_constants(self, cls: type, args: list[Var]) -> Var:
        """A built-in exception that reads its arguments (OSError picks a subclass by errno)."""
        try:
            made = exception_var(cls(*(to_python(self.t, a) for a in args)))
        except NotConstant:
            raise Break(f"making a {describe(cls)}") from None
        except TypeError as e:
            raise self.t.raised(e) from None
        made.step = self.t.limits.steps
        return made

    def object_new(self, cls: type) -> InstanceVar:
        if FLAGS(cls) & IS_ABSTRACT:
            try:
                object.__new__(cls)
            except TypeError as e:
                raise self.t.raised(e) from None
        if hides_dict(cls):
            raise Break(f"making a {describe(cls)}, which replaces __dict__")
        if class_lookup(cls, "__del__")[1] is not None:
            raise Break(f"making a {describe(cls)}, which has a finalizer")
        self.t.effects.mutations += 1
        made = InstanceVar(cls, step=self.t.limits.steps)
        if not any("__dict__" in NAMESPACE(c) for c in MRO(cls)):
            made.ns = None
        return made

    def _new_of_builtin(self, cls: type, base: type, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """An instance of a user's subclass of a built-in type; the part __init__ fills stays empty here."""
        made = self.object_new(cls)
        if base is dict:
            known = (collections.OrderedDict, collections.defaultdict)
            kind = next((k for k in known if issubclass(cls, k)), dict)
            made.base = DictVar({}, kind, factory=NONE)
        elif base is list:
            made.base = SeqVar([], list)
        elif base is set:
            made.base = SetVar({})
        else:
            made.base = self.t.calls.call_python(base, args[:1] if base is tuple else args, {} if base is tuple else kwargs)
            if type(made.base) is UnreadText or isinstance(made.base, DeferredVar):
                self.t.const(made.base)
            made.new_args = list(args)
        return made

    def _named_tuple(self, cls: type, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        maker = self.t.values.passing(fn) if cls in self.t.rebuilt_classes else self.t.values.constant(fn)
        bound = bind(self.t, expect(maker, FuncVar), [Known(cls), *args], kwargs)
        items = SeqVar([bound[name] for name in getattr(cls, "_fields")], cls)
        if cls.__new__ is fn and is_named_tuple(cls):
            return items
        made = self.object_new(cls)
        made.base = SeqVar(items.items, tuple)
        return made

    def _fold_class(self, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var:
        try:
            real_args = [self.t.calls.given_to_c(self.t.values.real(a)) for a in args]
            real_kwargs = {k: self.t.calls.given_to_c(self.t.values.real(v)) for k, v in kwargs.items()}
        except NotConstant as e:
            raise Break(f"making a {describe(cls)} from {e}") from None
        return self.t.calls.folded(cls, real_args, real_kwargs)


def solid_base(cls: type) -> type:
    """The class written in C that an instance of `cls` begins as."""
    return next((c for c in MRO(cls)[:-1] if not c.__flags__ & HEAP_TYPE), object)


def class_lookup_new(base: type, cls: type) -> Any:
    """The C-level __new__ that a subclass of `base` inherits when no Python class on its way defines one."""
    found = class_attribute(cls, "__new__")
    maker = getattr(found, "__self__", None)
    own = maker is not None and (issubclass(maker, base) if base in (dict, list, set) else maker is base)
    return found if own else base.__new__
