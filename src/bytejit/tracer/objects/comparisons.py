"""Comparisons, identity and truth of modelled values."""

from __future__ import annotations

import collections
import contextvars
import operator
import types

from bytejit.common.quiet_reads import derives
from bytejit.compat import numpy_types
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.descriptions import shown_name, words
from bytejit.tracer.core.library_code import is_of_library
from bytejit.tracer.core.made_ids import IdVar
from bytejit.tracer.core.numpy_values import ArrayVar, NumpyVar
from bytejit.tracer.core.open_values import OpenVar
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import is_open
from bytejit.tracer.core.values import (
    FALSE,
    TRUE,
    DeferredVar,
    DictVar,
    DictView,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SetVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    is_object,
)
from bytejit.tracer.objects.class_facts import class_attribute
from bytejit.tracer.sizes.called_anew import call_anew
from bytejit.tracer.sizes.numpy_numbers import compare_numpy, plain_number

from . import identities
from .containers import base_of, keys_source, real_length
from .external_lists import ExternalList, is_filled
from .made_dicts import MadeDict
from .open_writes import ExternalDict
from .own_methods import c_operator, is_number, refused
from .plain_parts import plain_equal

COMPARISONS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge}
REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


# what an instance compares by whose class says nothing
OF_OBJECT = tuple(getattr(object, f"__{name}__") for name in ("eq", "ne", "lt", "le", "gt", "ge"))


class Comparisons(Component):
    """The part of the tracer that compares values and asks for their truth."""

    def compare(self, name: str, a: Var, b: Var) -> Var:
        a, b = self.t.values.real(a), self.t.values.real(b)
        if isinstance(a, DeferredVar) or isinstance(b, DeferredVar):
            if (read := self.t.reads.compare(COMPARISONS[name], a, b)) is not None:
                return read
            raise Break(f"{words(a if isinstance(a, DeferredVar) else b)} compared")
        if isinstance(a, ArrayVar) or isinstance(b, ArrayVar):
            return self.t.numpy_arrays.array_call(COMPARISONS[name], [a, b])
        if type(a) is IdVar or type(b) is IdVar:
            return self._compare_ids(name, a, b)
        if type(a) is NumpyVar or type(b) is NumpyVar:
            found = compare_numpy(self.t, COMPARISONS[name], a, b)
            if found is not None:
                return found
        if {type(a), type(b)} == {SymVar, OpenVar} and (found := call_anew(self.t, COMPARISONS[name], [a, b])) is not None:
            return found
        if type(a) is SymVar or type(b) is SymVar:
            found = self._compare_symbols(name, a, b)
            if found is not None:
                return found
        if isinstance(a, Known) and isinstance(b, Known):
            if (is_open(a) or is_open(b)) and (found := call_anew(self.t, COMPARISONS[name], [a, b])) is not None:
                return found
            if is_constant(a.obj) and is_constant(b.obj):
                return self.t.operators.fold(COMPARISONS[name], a.obj, b.obj)
            if name in ("eq", "ne") and (
                isinstance(a.obj, (type, types.ModuleType, types.BuiltinFunctionType)) or is_constant(a.obj) or is_constant(b.obj)
            ):
                return self.t.operators.fold(COMPARISONS[name], a.obj, b.obj)
        if isinstance(a, TensorVar) or isinstance(b, TensorVar):
            other = b if isinstance(a, TensorVar) else a
            if isinstance(other, InstanceVar) and issubclass(other.cls, numpy_types.SCALAR):
                raise Break(f"a tensor compared with a {other.cls.__name__}")
            if isinstance(a, TensorVar) and is_number(b):
                b = other = base_of(b)
            if (
                type(other) in (TensorVar, SymVar)
                or isinstance(other, Known)
                and (self.t.type_of(other) in numpy_types.COMPARED or isinstance(other.obj, (int, float, bool, complex)))
            ):
                return self.t.overrides.of_operator(COMPARISONS[name], [a, b])
            if name in ("eq", "ne") and not isinstance(other, InstanceVar):
                return self.t.values.constant(name == "ne")
            if not isinstance(other, InstanceVar):
                raise Break(f"a tensor compared with a {self.t.type_of(other).__name__}")
        found = self._compare_containers(name, a, b)
        return found if found is not None else self._compare_special(name, a, b)

    def _compare_symbols(self, name: str, a: Var, b: Var) -> Var | None:
        """A comparison with a symbolic number: what it comes to is a condition. None where the other is no number."""
        found = self.t.numbers.on_numbers(COMPARISONS[name], a, b)
        other = b if type(a) is SymVar else a
        if found is not None or name not in ("eq", "ne"):
            return found
        never = (
            isinstance(other, (SeqVar, DictVar, SetVar))
            or type(other) is Known
            and isinstance(other.obj, (types.NoneType, str, type))
        )
        return self.t.values.constant(name == "ne") if never else None

    def _compare_containers(self, name: str, a: Var, b: Var, strict: bool = False) -> Var | None:
        """A comparison of containers of one kind, None of others. strict: also where two lists of other kinds are unequal."""
        if isinstance(a, SeqVar) and isinstance(b, SeqVar):
            if not (a.cls is b.cls or issubclass(a.cls, tuple) and issubclass(b.cls, tuple)):
                return self.t.values.constant(name == "ne") if name in ("eq", "ne") and not strict else None
            return self._compare_sequences(name, a.items, b.items)
        if isinstance(a, DictVar) and isinstance(b, DictVar) and name in ("eq", "ne"):
            self.t.values.complete(a)
            self.t.values.complete(b)
            ordered = all(issubclass(v.cls, collections.OrderedDict) for v in (a, b))
            equal = (
                len(a.items) == len(b.items)
                and (not ordered or list(a.items) == list(b.items))
                and all(k in b.items and self.equal(v, b.items[k][1]) for k, (_, v) in a.items.items())
            )
            return self.t.values.constant(equal == (name == "eq"))
        a, b = (
            SetVar({k: self.t.values.constant(k) for k in v.obj}, frozenset)
            if isinstance(v, Known) and type(v.obj) is frozenset
            else v
            for v in (a, b)
        )
        if all(isinstance(v, SetVar) or isinstance(v, DictView) and v.kind != "values" for v in (a, b)):
            left, right = frozenset(self.t.subscripts.as_set(a).items), frozenset(self.t.subscripts.as_set(b).items)
            return self.t.values.constant(COMPARISONS[name](left, right))
        if name in ("eq", "ne") and isinstance(a, SliceVar) and isinstance(b, SliceVar):
            equal = all(self.equal(x, y) for x, y in zip(a.parts, b.parts))
            return self.t.values.constant(equal == (name == "eq"))
        return None

    def _compare_sequences(self, name: str, left: list, right: list) -> Var:
        if name in ("eq", "ne") and len(left) != len(right):
            return self.t.values.constant(name == "ne")
        for x, y in zip(left, right):
            if not self.equal(x, y):
                if name in ("eq", "ne"):
                    return self.t.values.constant(name == "ne")
                return self.compare(name, x, y)
        return self.t.values.constant(COMPARISONS[name](len(left), len(right)))

    def equal(self, a: Var, b: Var) -> bool:
        """`a is b or a == b`, as containers compare their items."""
        return self.is_same(a, b) or self.truth(self.compare("eq", a, b))

    def _compare_ids(self, name: str, a: Var, b: Var) -> Var:
        """Compare id() of objects that the region made: equal for the same value, different from every number known before."""
        if name not in ("eq", "ne") or not all(type(v) is IdVar or type(v) is Known and is_constant(v.obj) for v in (a, b)):
            raise Break("id() of a value made in the region compared by its size")
        same = isinstance(a, IdVar) and isinstance(b, IdVar) and self.is_same(a.of, b.of)
        return TRUE if same is (name == "eq") else FALSE

    def _compare_special(self, name: str, a: Var, b: Var) -> Var:
        a_cls, b_cls = self.t.type_of(a), self.t.type_of(b)
        attempts = [(a, f"__{name}__", b), (b, f"__{REFLECTED[name]}__", a)]
        if b_cls is not a_cls and derives(b_cls, a_cls):
            attempts.reverse()
        for v, method, other in attempts:
            if (result := self._asked(name, v, method, other)) is not None:
                return result
        if name in ("eq", "ne"):
            return self._equal_by_default(name, a, b)
        if (worded := refused(self.t, COMPARISONS[name], a, b)) is not None:
            raise worded
        symbol = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[name]
        raise self.t.raised(
            TypeError(f"'{symbol}' not supported between instances of '{shown_name(a_cls)}' and '{shown_name(b_cls)}'")
        )

    def _asked(self, name: str, v: Var, method: str, other: Var) -> Var | None:
        """The result of a comparison method of `v`. None if `v` has no such method, or if it returns NotImplemented."""
        if isinstance(other, InstanceVar) and not isinstance(v, InstanceVar) and not self._is_class(v):
            if self.t.overrides.asked_by_tensor(v, other):
                return self.t.overrides.of_operator(COMPARISONS[method.strip("_")], [v, other])
            if (result := self.in_c(method, v, base_of(other))) is not None:
                return result
        if isinstance(v, Known) and self._has_method(v, method):
            return self.t.operators.try_special(v, method, [other])
        if not isinstance(v, InstanceVar):
            return None
        own = class_attribute(v.cls, method)
        if v.base is not None and own is class_attribute(_base_class(v), method):
            return self.in_c(method, v.base, base_of(other))
        if own not in OF_OBJECT:
            return self.t.operators.try_special(v, method, [other])
        if name != "ne" or class_attribute(v.cls, "__eq__") is object.__eq__:
            return None
        result = self.t.operators.try_special(v, "__eq__", [other])  # object.__ne__ asks it
        return None if result is None else self.t.values.constant(not self.truth(result))

    def _equal_by_default(self, name: str, a: Var, b: Var) -> Var:
        """`==` or `!=` of values no method of which says more: by value where they are plain, else by identity. Raises: Break."""
        found = plain_equal(self.t, name, a, b)
        if found is not None:
            return found
        for v in (a, b):
            if isinstance(v, Known) and not isinstance(v.obj, (type, types.ModuleType)) and not is_constant(v.obj):
                if type(v.obj).__eq__ is not object.__eq__ and not callable(v.obj):
                    raise Break(f"comparing a {type(v.obj).__name__}")
        same = (
            self.is_same(a.func, b.func) and self.is_same(a.self, b.self)
            if isinstance(a, MethodVar) and isinstance(b, MethodVar)
            else self.is_same(a, b)
        )
        return self.t.values.constant(same == (name == "eq"))

    def _is_class(self, v: Var) -> bool:
        return isinstance(v, Known) and isinstance(v.obj, type)

    def in_c(self, method: str, a: Var, b: Var) -> Var | None:
        """Compares one built-in value with another in C; None where the comparison declines."""
        if isinstance(b, InstanceVar) and issubclass(b.cls, (set, frozenset)) and isinstance(a, (SetVar, DictView)):
            raise Break(f"a set compared with a {b.cls.__name__} that is not modelled")
        if SymVar in (type(a), type(b)):
            return self._compare_symbols(method.strip("_"), a, b)
        if isinstance(a, Known) and isinstance(b, Known):
            return c_operator(self.t, method, a, b)
        if isinstance(a, TensorVar) or isinstance(b, TensorVar):
            return self.compare(method.strip("_"), a, b) if isinstance(b, TensorVar) and isinstance(a, Known) else None
        return self._compare_containers(method.strip("_"), a, b, strict=True)

    def is_same(self, a: Var, b: Var) -> bool:
        """a is b."""
        if type(a) is Lazy and type(b) is Lazy and (told := identities.told_apart(self.t, a, b)) is not None:
            return told
        a, b = self.t.values.real(a), self.t.values.real(b)
        if type(a) is SymVar or type(b) is SymVar:
            return a is b or self._same_number(a, b)
        if is_open(a) or is_open(b):
            cls = self.t.type_of(a)
            if a is b or cls is not self.t.type_of(b):
                return a is b
            if cls is not complex and not self.truth(self.compare("eq", a, b)):
                return False
            if cls in (int, str):  # equal ones are taken to be one object
                return True
        if isinstance(a, Known) and isinstance(b, Known):
            return a.obj is b.obj or (
                is_constant(a.obj) and type(a.obj) is type(b.obj) and a.obj == b.obj and isinstance(a.obj, (int, str))
            )
        if a is not b:
            if any(isinstance(v, ReadVar) and v.kind is not float and not is_object(w, None) for v, w in ((a, b), (b, a))):
                raise Break("the identity of a tensor's value")  # of bools and of small integers there is one each
            identities.are_two(self.t, a, b)
        if isinstance(a, TensorVar) and isinstance(b, TensorVar) and a is not b:
            self.t.copying.rely_on_copies(a, b)  # x.contiguous() is x, where it copies nothing
        if a is not b and type(a) is type(b) and a.source is not None and b.source is not None:
            if not (isinstance(a.source, KnownSource) and isinstance(b.source, KnownSource)):
                self.t.guards.add("ALIAS", a.source, (b.source, False))  # in another call they may be one
        return a is b

    def _same_number(self, a: Var, b: Var) -> bool:
        """Whether two numbers, one of them symbolic, are one object: equal integers are taken to be."""
        if self.t.type_of(a) is not int or self.t.type_of(b) is not int:
            return False
        return self.truth(self.compare("eq", a, b))

    def truth(self, v: Var) -> bool:
        """bool(v). Raises: Break when a tensor would decide, Raised."""
        v = self.t.values.real(v)
        if type(v := plain_number(self.t, v)) is SymVar:
            return bool(v.value != 0)
        if is_open(v) and (found := call_anew(self.t, bool, [v])) is not None:
            return self.t.const(found)
        if isinstance(v, Known):
            if v.obj is NotImplemented:  # 3.14+: TypeError
                return self.t.const(self.t.operators.fold(bool, v.obj))
            if self._has_method(v, "__bool__") or self._has_method(v, "__len__"):
                return self._instance_truth(v)
            if is_constant(v.obj) or isinstance(v.obj, (type, types.ModuleType, types.BuiltinFunctionType)):
                return bool(v.obj)
            return True
        if isinstance(v, TensorVar):
            return self.t.tensors.tensor_truth(v)
        if isinstance(v, ExternalList):
            return is_filled(self.t, v)
        if isinstance(v, (SeqVar, SetVar, DictView)):
            return self.t.subscripts.length(v) > 0
        if isinstance(v, DictVar):
            if isinstance(v, (ExternalDict, MadeDict)) and v.late:
                return True
            if not v.complete and not v.items and not v.deleted:
                filled = real_length(v.real) > 0
                self.t.guard("BOOL", keys_source(v), filled)
                return filled
            if any(k not in v.deleted for k in v.items):
                return True
            return self.t.subscripts.length(v) > 0
        if isinstance(v, DeferredVar):
            if v.kind is contextvars.Token:
                return True
            do = "use torch.where, or let this block run in the original code" if isinstance(v, ReadVar) else ""
            raise Break(f"{words(v)} decides a branch", do)
        if isinstance(v, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(bool, [v]))
        if isinstance(v, InstanceVar):
            return self._instance_truth(v)
        return True

    def _has_method(self, v: Known, name: str) -> bool:
        """Whether an object is a class, and its metaclass has code of the program's for an operator."""
        if not isinstance(v.obj, type) or type(v.obj) is type:
            return False
        found = class_attribute(type(v.obj), name)
        return isinstance(found, types.FunctionType) and not is_of_library(found)

    def _instance_truth(self, v: InstanceVar | Known) -> bool:
        cls = self.t.type_of(v)
        for method in ("__bool__", "__len__"):
            found = class_attribute(cls, method)
            if isinstance(found, types.FunctionType):
                result = self.t.values.real(self.t.calls.call(self.t.attributes.special(v, method), [], {}))
                if not isinstance(result, Known):
                    raise Break(f"the truth of a {cls.__name__} depends on a tensor")
                if method == "__bool__" and type(result.obj) is not bool:
                    raise self.t.raised(TypeError(f"__bool__ should return bool, returned {type(result.obj).__name__}"))
                return bool(result.obj if method == "__bool__" else self.t.subscripts.as_length(result))
            if found is not None:
                if isinstance(v, InstanceVar) and v.base is not None:
                    return self.truth(v.base)
                raise Break(f"the truth of a {cls.__name__}, a C object")
        return True


def _base_class(v: InstanceVar) -> type:
    if isinstance(v.base, Known):
        return type(v.base.obj)
    assert isinstance(v.base, (SeqVar, DictVar, SetVar)), v.base
    return v.base.cls
