"""copy.copy and copy.deepcopy: containers and instances are copied as modelled values."""

from __future__ import annotations

import collections
import copy
import enum
import types
from collections.abc import Callable

from bytejit.common.quiet_reads import HEAP_TYPE
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.made_ids import IdKey, IdVar
from bytejit.tracer.core.models import models
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import TextVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    NONE,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    SeqVar,
    SetVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    is_object,
)
from bytejit.tracer.objects.class_facts import class_attribute
from bytejit.tracer.objects.instantiation import solid_base
from bytejit.tracer.objects.own_methods import own_method
from bytejit.tracer.torch import parameters

UNCHANGEABLE = {SliceVar, SymVar, TextVar, ReadVar}  # their copy is what was copied
# of the built-in part: the methods of its class by which a copy is read and filled
ASKED = {DictVar: ("__setitem__", "items"), SeqVar: ("__iter__", "append", "extend"), SetVar: ("__iter__", "__init__", "__new__")}


class Memo:
    """What one deep copy has copied: the memo that the `__deepcopy__` of a class is given, and may be given by a program.

    Under the id of an object it has the copy, as Python's has; what is not copied (a number, a tuple of such) is not in it.
    """

    def __init__(self, given: DictVar) -> None:
        self.given = given
        self.open: set[object] = set()  # keys of objects whose copy is not complete yet
        self.stores: list[object] = []  # memory of tensors that were copied: what shares it shares it in the copy

    @staticmethod
    def key(v: Var) -> object:
        real = getattr(v, "real", None)
        return IdKey(v) if real is None else id(real)

    def of(self, v: Var) -> Var | None:
        """The copy of a value; None without one. Raises: Break where the copy waits for itself."""
        key = self.key(v)
        if key in self.given.items:
            return self.given.items[key][1]
        if key in self.open:
            raise Break("copy.deepcopy of an object that holds itself")
        return None

    def add(self, t: Tracer, v: Var, made: Var) -> None:
        """Note the copy of a value, which is kept: its id is a key."""
        key = self.key(v)
        t.keep.append(v)
        self.given.items[key] = (IdVar(v) if isinstance(key, IdKey) else Known(key), made)


@models(copy.deepcopy)
def deepcopy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """copy.deepcopy: each object once, as the memo says."""
    if len(args) > 2 or kwargs.keys() - {"memo"}:
        raise Break("copy.deepcopy with more than a memo")
    memo = t.values.real(args[1] if len(args) > 1 else kwargs.get("memo", NONE))
    if is_object(memo, None):
        memo = DictVar({})
    if not isinstance(memo, DictVar) or getattr(memo, "real", None) is not None or memo.cls is not dict:
        raise Break("copy.deepcopy with a memo from outside")
    known: dict = t.memo.setdefault("deepcopy", {})
    if id(memo) not in known:
        known[id(memo)] = Memo(memo)
    return _deep(t, args[0], known[id(memo)])


@models(copy.copy)
def shallow_copy(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return _copied(t, args[0], lambda v: v, "__copy__", [])


def _deep(t: Tracer, v: Var, memo: Memo) -> Var:
    v = t.values.real(v)
    if (found := memo.of(v)) is not None:
        return found
    key = memo.key(v)
    memo.open.add(key)
    try:
        made = _copied(t, v, lambda part: _deep(t, part, memo), "__deepcopy__", [memo.given], memo)
    finally:
        memo.open.discard(key)
    if made is v:
        memo.given.items.pop(key, None)
    else:
        memo.add(t, v, made)
    return made


def _copied(t: Tracer, v: Var, part: Callable, hook: str, args: list[Var], memo: Memo | None = None) -> Var:
    """A copy whose parts went through `part`. Raises: Break for objects that copy themselves in C."""
    if isinstance(v, TensorVar):
        return parameters.copied(t, v, memo.stores) if memo is not None else _no_copy(v)
    if type(v) in UNCHANGEABLE:
        return v
    if isinstance(v, (Known, FuncVar)):
        real = getattr(v, "obj", None) if isinstance(v, Known) else v.real
        if isinstance(v, FuncVar) or is_constant(real) or isinstance(real, (type, types.BuiltinFunctionType, enum.Enum)):
            return v
        return _no_copy(v)
    if isinstance(v, SeqVar):
        made = SeqVar([], v.cls, maxlen=v.maxlen)
        if memo is not None:
            memo.add(t, v, made)
        made.items.extend(part(item) for item in v.items)
        return v if issubclass(v.cls, tuple) and all(a is t.values.real(b) for a, b in zip(made.items, v.items)) else made
    if isinstance(v, DictVar):
        t.values.complete(v)
        table = DictVar({}, v.cls, factory=part(v.factory) if v.factory is not None else None)
        if memo is not None:
            memo.add(t, v, table)
        for key, item in list(v.items.values()):
            t.subscript_writes.dict_set(table, t.values.real(part(key)), part(item))
        table.attrs = {name: part(value) for name, value in t.attributes.ordered_dict_attributes(v).items()}
        return table
    if isinstance(v, SetVar):
        if memo is None:
            return v if v.cls is frozenset else t.values.real(t.calls.call_python(set.copy, [v]))
        return t.values.real(t.calls.call_python(v.cls, [SeqVar([part(item) for item in t.iteration.iterate(v)], list)]))
    if isinstance(v, InstanceVar):
        return _copied_instance(t, v, part, hook, args, memo)
    return _no_copy(v)


def _copied_instance(t: Tracer, v: InstanceVar, part: Callable, hook: str, args: list[Var], memo: Memo | None) -> Var:
    if isinstance(class_attribute(v.cls, hook), types.FunctionType):
        return t.values.real(t.calls.call(t.attributes.special(v, hook), args, {}))
    if v.base is None and class_attribute(v.cls, hook) is not None:  # written in C
        _no_copy(v)
    get, put = (class_attribute(v.cls, n) for n in ("__getstate__", "__setstate__"))
    if (
        memo is not None
        and v.base is None
        and (isinstance(get, types.FunctionType) or isinstance(put, types.FunctionType))
        and class_attribute(v.cls, "__reduce_ex__") is object.__reduce_ex__
        and not _slot_names(v)
        and v.ns is not None
    ):
        return _copied_by_state(t, v, part, memo, get, put)
    own = [
        n
        for n in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
        if class_attribute(v.cls, n) not in (None, getattr(object, n, None))
    ]
    if own and not (issubclass(v.cls, (dict, list, set, collections.OrderedDict)) and own == ["__reduce__"]):
        raise Break(f"a copy of a {v.cls.__name__}, which has its own {own[0]}")
    kinds = () if issubclass(v.cls, tuple) else (k for k in ASKED if isinstance(v.base, k))
    if asked := [n for kind in kinds for n in ASKED[kind] if own_method(v.cls, n)]:
        raise Break(f"a copy of a {v.cls.__name__}, which has its own {asked[0]}")
    if v.real is not None and (v.cls.__flags__ & HEAP_TYPE == 0 or v.base is None and solid_base(v.cls) is not object):
        _no_copy(v)
    made = t.instantiation.object_new(v.cls)
    if memo is not None:
        memo.add(t, v, made)
    if v.base is not None:
        made.base = _copied(t, v.base, part, hook, [])  # not by the memo: it is the same object as v
    made.new_args = v.new_args
    if v.ns is not None:
        t.values.complete(v.ns)
        for key, item in list(v.ns.items.values()):
            t.subscript_writes.dict_set(made.namespace, key, part(item))
    for name in _slot_names(v):
        if (value := t.attributes.getattr(v, name, None) if v.real is not None else v.slots.get(name)) is not None:
            made.slots[name] = part(value)
    return made


def _copied_by_state(t: Tracer, v: InstanceVar, part: Callable, memo: Memo, get: Callable, put: Callable) -> Var:
    """A deep copy of an instance whose class says what its state is, or takes it."""
    if any(
        class_attribute(v.cls, n) not in (None, getattr(object, n, None))
        for n in ("__reduce__", "__getnewargs__", "__getnewargs_ex__")
    ):
        raise Break(f"a copy of a {v.cls.__name__}, which has its own __reduce__")
    made = t.instantiation.object_new(v.cls)
    memo.add(t, v, made)
    state = (
        t.values.real(t.calls.call(t.attributes.special(v, "__getstate__"), [], {}))
        if isinstance(get, types.FunctionType)
        else v.ns
    )
    state = t.values.real(part(state))
    if isinstance(put, types.FunctionType):
        t.calls.call(t.attributes.special(made, "__setstate__"), [state], {})
    elif isinstance(state, DictVar):
        for key, item in state.items.values():
            t.subscript_writes.dict_set(made.namespace, key, item)
    else:
        raise Break(f"a copy of a {v.cls.__name__}, whose state is no dict")
    return made


def _slot_names(v: InstanceVar) -> list[str]:
    if v.real is None:
        return list(v.slots)
    return [
        n
        for c in v.cls.__mro__
        for n, d in vars(c).items()
        if isinstance(d, types.MemberDescriptorType) and (n in v.slots or hasattr(v.real, n))
    ]


def _no_copy(v: Var) -> Var:
    raise Break(f"a copy of {words(v)}")
