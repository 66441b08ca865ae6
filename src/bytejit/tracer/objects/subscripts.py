"""Items of modelled values: subscripts, `in` and length."""

from __future__ import annotations

import builtins
import collections
import operator
import sys
import types
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.type_forms import FORMS
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, is_constant, to_python
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.library_code import is_of_library
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.range_values import RangeVar
from bytejit.tracer.core.read_values import refuse_reads
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    NONE,
    DeferredVar,
    DictVar,
    DictView,
    InstanceVar,
    Known,
    SeqVar,
    SetVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    expect,
    is_object,
)
from bytejit.tracer.core.versions import CONTAINER, DEFAULTS_ARE_STORED
from bytejit.tracer.sizes.listed_numbers import tensor_made_anew

from .changing_keys import lacks, picked, picked_constant
from .class_facts import class_attribute, class_lookup
from .containers import elements, key_of, keys_source, real_length, set_part, sought_key
from .external_lists import ExternalList, added
from .folded_warnings import tell_of_index
from .made_dicts import MadeDict
from .open_parts import contains_anew, part_of_text
from .open_writes import ExternalDict
from .own_methods import OF_SEQUENCES, answers, refused, stand_in


class Subscripts(Component):
    """The part of the tracer that reads items."""

    def slice(self, parts: list[Var]) -> Var:
        return SliceVar([self.t.values.real(p) for p in parts])

    def index(self, v: Var) -> int:
        """operator.index(v) of a constant."""
        v = self.t.values.real(v)
        if isinstance(v, Known) and (isinstance(v.obj, int) or is_constant(v.obj) and hasattr(type(v.obj), "__index__")):
            return int(v.obj)
        if isinstance(v, TensorVar):
            if (known := self.t.tensor_values.python_value(v, operator.index)) is not None:
                return self.index(known)
            raise Break("a tensor's value used as an index")
        if isinstance(v, DeferredVar):
            refuse_reads(v)
            raise Break(f"{words(v)} used as an index")
        if isinstance(v, InstanceVar):
            said = v.base
            if not (isinstance(said, Known) and isinstance(said.obj, int)):
                if not self.is_index(v):
                    raise self.t.raised(TypeError(f"'{v.cls.__name__}' object cannot be interpreted as an integer"))
                said = self.t.values.real(self.t.calls.call(self.t.attributes.special(v, "__index__"), [], {}))
                if not issubclass(self.t.type_of(said), int):
                    raise self.t.raised(TypeError(f"__index__ returned non-int (type {self.t.type_of(said).__name__})"))
                if self.t.type_of(said) is not int:
                    tell_of_index(self.t, stand_in(said) if isinstance(said, InstanceVar) else self.t.const(said))
            return self.index(said)
        raise self.t.raised(TypeError(f"'{self.t.type_of(v).__name__}' object cannot be interpreted as an integer"))

    def open_index(self, v: Var) -> Any:
        """operator.index(v), which may be a symbol."""
        v = self.t.values.real(v)
        return v.value if type(v) is SymVar and isinstance(v.value, torch.SymInt) else self.index(v)

    def real_slice(self, v: SliceVar) -> builtins.slice:
        return slice(*(None if is_object(p, None) else self._bound(p) for p in v.parts))

    def _bound(self, v: Var) -> int:
        if not self.is_index(v):
            raise self.t.fold_error(operator.getitem, (), slice(""))
        return self.index(v)

    def is_index(self, v: Var) -> bool:
        """Whether a value is an integer, as __index__ says."""
        return isinstance(v, TensorVar) or class_attribute(self.t.type_of(v), "__index__") is not None

    def place(self, seq: SeqVar, key: Var) -> int:
        """The number of an item of a sequence. Raises: Raised for what is no index."""
        if not self.is_index(key):
            name = self.t.type_of(key).__name__
            if seq.cls is collections.deque:
                raise self.t.raised(TypeError(f"sequence index must be integer, not '{name}'"))
            kind = "list" if seq.cls is list else "tuple"
            raise self.t.raised(TypeError(f"{kind} indices must be integers or slices, not {name}"))
        return self.index(key)

    def getitem(self, container: Var, key: Var) -> Var:
        container, key = self.t.values.real(container), self.t.values.real(key)
        if isinstance(container, TensorVar):
            key = self.plain_index(key)
            return self.t.indexing.item(container, key) or self.t.tensors.call_tensor_op(operator.getitem, [container, key], {})
        if isinstance(container, ExternalList) and (found := container.appended(key)) is not None:
            return found
        if (found := picked(self.t, container, key)) is not None:
            return found
        if isinstance(container, SeqVar):
            return self._sequence_item(container, key)
        if isinstance(container, DictVar):
            return self.dict_item(container, key)
        if isinstance(container, ArrayVar):
            return self.t.numpy_arrays.array_call(operator.getitem, [container, key])
        if isinstance(container, Known):
            return part_of_text(self.t, container, key) or self._known_item(container, key)
        if isinstance(container, InstanceVar):
            if container.cls in FORMS and container.real is not None:
                return self._known_item(container, key)
            found = class_attribute(container.cls, "__getitem__")
            if isinstance(found, types.FunctionType):
                return self.t.calls.call(self.t.attributes.special(container, "__getitem__"), [key], {})
            if container.base is not None and found is not None:
                return self.getitem_of_base(container, key)
            if found is not None and self.t.calls.has_handler(found):
                return self.t.calls.call_python(found, [container, key])
            if found is not None:
                raise Break(f"indexing a {container.cls.__name__}, a C object")
            if worded := refused(self.t, operator.getitem, container, key):
                raise worded
        raise self.t.raised(TypeError(f"'{self.t.type_of(container).__name__}' object is not subscriptable"))

    def plain_index(self, key: Var) -> Var:
        """A tensor's index with what __index__ says in place of the instances that have one, and tensors in place of arrays."""
        if isinstance(key, ArrayVar):
            return self.t.numpy_arrays.as_index(key)
        if isinstance(key, SeqVar) and key.cls is list:
            return self._listed_index(key)
        if answers(key, OF_SEQUENCES) and issubclass(self.t.type_of(key), tuple):
            raise Break(f"a tensor indexed by a {self.t.type_of(key).__name__}, which is a sequence of its own kind")
        if isinstance(key, InstanceVar) and isinstance(class_attribute(key.cls, "__index__"), types.FunctionType):
            if class_attribute(key.cls, "__getitem__") is not None:
                raise Break(f"a tensor indexed by a {key.cls.__name__}, which torch may take for a sequence")
            return Known(self.index(key))
        if (
            isinstance(key, SeqVar)
            and key.cls is tuple
            and any(isinstance(self.t.values.real(k), (InstanceVar, ArrayVar, SeqVar)) for k in key.items)
        ):
            return SeqVar([self.plain_index(self.t.values.real(k)) for k in key.items], tuple)
        return key

    def _listed_index(self, key: SeqVar) -> Var:
        """A list that indexes a tensor. A list of integers becomes a tensor if some of them change, as torch would make one
        of it."""
        if (made := tensor_made_anew(self.t, key, {}, int)) is not None:
            return made
        items = [self.t.values.real(k) for k in key.items]
        if any(type(k) is SymVar for k in items) and all(self.t.type_of(k) is int for k in items):
            return self.t.numpy_arrays.tensor_of_sizes(key, {}) or key
        return key

    def getitem_of_base(self, v: InstanceVar, key: Var) -> Var:
        """Subscripting a subclass of a built-in container that does not override it; dicts look for __missing__."""
        if (found := picked(self.t, expect(v.base, Var), key)) is not None:
            return found
        if isinstance(v.base, DictVar) and (
            lacks(self.t, v.base, key) or self.t.values.lookup(v.base, key_of(self.t, key)) is None
        ):
            missing = class_attribute(v.cls, "__missing__")
            if isinstance(missing, types.FunctionType):
                return self.t.calls.call(self.t.attributes.special(v, "__missing__"), [key], {})
            return self.default_item(v.base, key, v)
        return self.getitem(expect(v.base, Var), key)

    def _sequence_item(self, seq: SeqVar, key: Var) -> Var:
        if isinstance(key, SliceVar):
            if seq.cls not in (list, tuple, torch.Size) and not issubclass(seq.cls, tuple):
                raise self.t.raised(TypeError("sequence index must be integer, not 'slice'"))
            try:
                return SeqVar(seq.items[self.real_slice(key)], seq.cls if seq.cls in (list, torch.Size) else tuple)
            except ValueError as e:
                raise self.t.raised(e) from None
        if (constant := picked_constant(self.t, seq, key)) is not None:
            return constant
        i = self.place(seq, key)
        if isinstance(seq, ExternalList) and (found := seq.picked(i)) is not None:
            return found
        try:
            return seq.items[i]
        except IndexError:
            kind = "deque" if seq.cls is collections.deque else "list" if seq.cls is list else "tuple"
            name = f"{kind} index out of range"
            raise self.t.raised(IndexError(name)) from None

    def dict_item(self, d: DictVar, key: Var) -> Var:
        absent = _makes(self.t, d) and lacks(self.t, d, key)
        found = self.t.values.lookup(d, key_of(self.t, key)) if not absent else None
        return self.default_item(d, key, d) if found is None else found

    def default_item(self, d: DictVar, key: Var, owner: Var) -> Var:
        """What a defaultdict makes for a key that it lacks. owner: `d`, or the instance of a subclass. Raises: Raised."""
        if _makes(self.t, d):
            value = self.t.calls.call(self.t.values.real(expect(d.factory, Var)), [], {})
            if not DEFAULTS_ARE_STORED:
                self.t.subscript_writes.setitem(owner, key, value)
                return value
            if (there := self.t.values.lookup(d, key_of(self.t, key))) is not None:
                return there
            self.t.subscript_writes.dict_set(d, key, value)
            return value
        real_key = key_of(self.t, key)
        raise self.no_key(real_key if is_constant(real_key) else "?", key)

    def no_key(self, real_key: object, key: Var) -> Raised:
        """The KeyError for a key."""
        e = self.t.raised(KeyError(real_key))
        e.exc.slots["args"] = SeqVar([key], tuple)
        return e

    def _own_item(self, v: Known, cls: type) -> Var | None:
        """What `cls[key]` calls where a program wrote it: the metaclass's `__getitem__`, else the class's `__class_getitem__`."""
        meta = self.t.attributes.find_special(v, "__getitem__") if type(cls) is not type else None
        found = class_attribute(cls, "__class_getitem__")
        if meta is not None or found is None:
            return meta
        made = getattr(found, "__func__", found)
        own = isinstance(made, types.FunctionType) and not is_of_library(made)
        return self.t.attributes.getattr(v, "__class_getitem__") if own else None

    def _known_item(self, v: Known | InstanceVar, key: Var) -> Var:
        if isinstance(v, InstanceVar):  # a form of an annotation
            try:
                parts = to_python(self.t, v, classes=True), to_python(self.t, key, classes=True)
            except NotConstant:
                raise Break(f"indexing {words(v)} with {words(key)}") from None
            return self.t.operators.fold(operator.getitem, *parts)
        if isinstance(v.obj, type) or not is_constant(v.obj):
            if isinstance(v.obj, type) and (found := self._own_item(v, v.obj)) is not None:
                return self.t.calls.call(found, [key], {})
            try:
                return self.t.operators.fold(operator.getitem, v.obj, to_python(self.t, key, classes=True))
            except NotConstant:
                raise Break(f"indexing {words(v)} with {words(key)}") from None
        try:
            return self.t.operators.fold(operator.getitem, v.obj, to_python(self.t, key))
        except NotConstant:
            raise Break("a tensor's value used as an index") from None

    def contains(self, container: Var, item: Var) -> bool:
        container, item = self.t.values.real(container), self.t.values.real(item)
        if (found := contains_anew(self.t, container, item)) is not None:
            return self.t.const(found)
        if isinstance(container, DictVar):
            if picked(self.t, container, item) is not None:
                return True
            if lacks(self.t, container, item):
                return False
            return self.t.values.lookup(container, key_of(self.t, item)) is not None
        if isinstance(container, SetVar):
            return sought_key(self.t, item) in container.items
        if isinstance(container, DictView) and container.kind == "keys":
            return self.contains(container.owner, item)
        if isinstance(container, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(operator.contains, [container, item]))
        if isinstance(container, SeqVar):
            return any(self.t.comparisons.equal(v, item) for v in list(container.items))
        if isinstance(container, Known) and is_constant(container.obj):
            try:
                return bool(self.t.operators.fold(operator.contains, container.obj, to_python(self.t, item)).obj)
            except NotConstant:
                raise Break("a tensor looked for in a constant") from None
        if isinstance(container, TensorVar):
            raise Break("`in` on a tensor")
        if isinstance(container, InstanceVar):
            found = class_attribute(container.cls, "__contains__")
            if isinstance(found, types.FunctionType):
                return self.t.comparisons.truth(
                    self.t.calls.call(self.t.attributes.special(container, "__contains__"), [item], {})
                )
            if class_lookup(container.cls, "__contains__")[0] is None:  # `__contains__ = None` in a class
                raise self.t.raised(TypeError(f"'{container.cls.__name__}' object is not a container"))
            if container.base is not None and found is not None:
                return self.contains(container.base, item)
            if found is not None:
                raise Break(f"`in` on a {container.cls.__name__}, a C object")
        if isinstance(container, Known) and isinstance(container.obj, type):
            found = self.t.attributes.find_special(container, "__contains__")
            if found is not None and not is_of_library(class_attribute(type(container.obj), "__contains__")):
                return self.t.comparisons.truth(self.t.calls.call(found, [item], {}))
            if found is not None and isinstance(item, Known):
                return bool(self.t.operators.fold(operator.contains, container.obj, item.obj).obj)
            if found is not None:
                raise Break(f"an object looked for in {container.obj.__name__}")
        if not self.t.iteration.has_iter(container):
            raise self.t.raised(TypeError(f"argument of type '{self.t.type_of(container).__name__}' is not {CONTAINER}"))
        return self.t.iteration.until(container, lambda v: self.t.comparisons.equal(v, item))

    def found(self, table: Var, name: str) -> Var | None:
        """table[name], None where it is not there; a program's own kind of dict is asked as the program would."""
        if not isinstance(table, InstanceVar):
            return self.t.values.lookup(expect(table, DictVar, "a table of attributes that is no dict"), name)
        return self.getitem(table, Known(name)) if self.contains(table, Known(name)) else None

    def as_length(self, v: Var) -> int:
        """Checks and converts the result of `__len__` as len() does. Raises: Raised."""
        length = self.index(v)
        if length < 0:
            raise self.t.raised(ValueError("__len__() should return >= 0"))
        if length > sys.maxsize:
            raise self.t.raised(OverflowError("cannot fit 'int' into an index-sized integer"))
        return length

    def length(self, v: Var) -> int:
        v = self.t.values.real(v)
        if isinstance(v, (ExternalDict, ExternalList)) and (more := added(self.t, v)) is not None:
            self.t.guard("LEN_IS", keys_source(v) if isinstance(v, DictVar) else v.source, real_length(v.real))
            return real_length(v.real) + more
        if isinstance(v, SeqVar):
            return len(v.items)
        if type(v) is RangeVar:
            return v.count()
        if isinstance(v, SetVar):
            return len(v.items)
        if isinstance(v, MadeDict):
            return len(v.pairs())
        if isinstance(v, DictVar):
            self.t.values.complete(v)
            return len(v.items)
        if isinstance(v, DictView):
            return self.length(v.owner)
        if isinstance(v, TensorVar):
            return self.t.const(self.t.tensors.call_tensor_op(len, [v], {}))
        if isinstance(v, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(len, [v]))
        if isinstance(v, Known) and isinstance(v.obj, type):
            own, owner = class_lookup(type(v.obj), "__len__")
            if isinstance(own, types.FunctionType) and not special_cases.CLASS_CHECKS.made(owner):
                return self.as_length(self.t.calls.call(self.t.attributes.special(v, "__len__"), [], {}))
        if isinstance(v, Known) and is_constant(v.obj):
            return self.t.operators.fold(len, v.obj).obj
        if isinstance(v, InstanceVar):
            if isinstance(class_attribute(v.cls, "__len__"), types.FunctionType):
                return self.as_length(self.t.calls.call(self.t.attributes.special(v, "__len__"), [], {}))
            if v.base is not None and class_attribute(v.cls, "__len__") is not None:
                return self.length(v.base)
            if class_attribute(v.cls, "__len__") is not None:
                raise Break(f"the length of a {v.cls.__name__}, a C object")
        if isinstance(v, Known) and isinstance(v.obj, type) and hasattr(type(v.obj), "__len__"):
            return self.t.operators.fold(len, v.obj).obj
        raise self.t.raised(TypeError(f"object of type '{self.t.type_of(v).__name__}' has no len()"))

    def as_set(self, v: Var) -> SetVar:
        v = set_part(v)
        if isinstance(v, SetVar):
            return v
        return SetVar(elements(self.t, self.t.iteration.iterate(v)))


def _makes(t: Tracer, d: DictVar) -> bool:
    """Whether it is a defaultdict with a function that makes values."""
    return d.factory is not None and not t.comparisons.is_same(d.factory, NONE)
