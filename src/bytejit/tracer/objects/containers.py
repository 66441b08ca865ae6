"""Keys of modelled dicts and sets."""

from __future__ import annotations

import collections
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any, TypeGuard

import torch

from bytejit.common import special_cases
from bytejit.compat import numpy_types
from bytejit.guards.item_sources import dict_item
from bytejit.guards.plain_sources import PlainKeys
from bytejit.guards.sources import Source
from bytejit.tracer.core.descriptions import shown_name, words
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.made_ids import ByIdentity, IdKey, IdVar
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    DeferredVar,
    DictVar,
    DictView,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SetVar,
    SliceVar,
    TensorVar,
    Var,
)
from bytejit.tracer.core.versions import NAMES_THE_KEY

from .class_facts import class_attribute
from .identities import fixed, keyed


def keys_source(d: DictVar) -> Source:
    """Returns the source that guards of the keys of a dict from outside read, past methods of the program's subclass."""
    cls = type(d.real)
    assert d.source is not None, d
    if not issubclass(cls, dict) or is_library(cls.__module__):
        return d.source
    return PlainKeys(d.source, collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict)


def real_length(real: Any) -> int:
    """The length of a container from outside, past a `__len__` of a dict's subclass."""
    return dict.__len__(real) if isinstance(real, dict) else len(real)


def item_source(d: DictVar, key: object) -> Source:
    """The source of the value under a real key of a dict from outside."""
    cls = type(d.real)
    own = isinstance(class_attribute(cls, "__getitem__"), types.FunctionType) or hasattr(cls, "__missing__")
    return dict_item(d.origin, key, issubclass(cls, dict) and own)


def is_unchanged(d: DictVar, key: object, value: Var) -> bool:
    """Whether a dict from outside still has its original value under a key, in every call that passes the guards. Comparing
    the two objects is not enough: they may be one object in this call without a guard that says so, and two objects in the
    next."""
    return type(value) is Lazy and value.source == item_source(d, real_key(key))


def own_hash(t: Tracer, v: InstanceVar) -> int:
    """hash(v), where its class says so in Python. Raises: Raised(TypeError), Break."""
    found = t.const(t.calls.call(t.attributes.special(v, "__hash__"), [], {}))
    if not isinstance(found, int):
        raise t.raised(TypeError("__hash__ method should return an integer"))
    if -sys.maxsize - 1 <= found <= sys.maxsize:  # Python takes it as it is: hash(found) may differ
        return -2 if found == -1 else int(found)
    return hash(found)


class ByHash:
    """The key of an instance whose class defines __hash__ and __eq__: both run in the trace. hash: known for a key that
    is in its container already, which does not ask again."""

    __slots__ = ("t", "var", "hash")

    def __init__(self, t: Tracer, var: InstanceVar, hash: int | None = None) -> None:
        self.t, self.var = t, var
        self.hash = self._traced_hash() if hash is None else hash

    def _traced_hash(self) -> int:
        t, before = self.t, self.t.effects.mutations
        if not isinstance(class_attribute(self.var.cls, "__hash__"), types.FunctionType):
            return hash(plain_key(t, base_of(self.var)))
        found = own_hash(t, self.var)
        if t.effects.mutations != before:  # a container that leaves is made anew, and hashes its keys once more
            raise Break(f"a __hash__ that has effects ({self.var.cls.__name__})")
        return found

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        before = self.t.effects.mutations
        found = self.t.comparisons.equal(
            self.var, other.var if isinstance(other, ByIdentity | ByHash) else self.t.values.constant(other)
        )
        if self.t.effects.mutations != before:  # a container that leaves is made anew, and compares its keys once more
            raise Break(f"an __eq__ that has effects ({self.var.cls.__name__})")
        return found


def is_own_key(cls: type) -> bool:
    """Whether a key of this class is hashed, or compared with others, by code of the program."""
    if isinstance(hashed := class_attribute(cls, "__hash__"), types.FunctionType):
        return True
    return hashed not in (None, object.__hash__) and isinstance(class_attribute(cls, "__eq__"), types.FunctionType)


def compares_itself(v: Var) -> TypeGuard[InstanceVar]:
    """Whether a value is an instance of a class with a `__hash__` or an `__eq__` written in Python."""
    return isinstance(v, InstanceVar) and is_own_key(v.cls)


def model_key(t: Tracer, key: object) -> object:
    """The key in a modelled dict for a key of a real one. Python must never compare an instance with a `ByHash`."""
    if type(key) in PLAIN_KEYS:
        return key
    if not is_own_key(type(key)):
        return tuple(model_key(t, part) for part in tuple.__iter__(key)) if isinstance(key, tuple) else key
    v = t.values.constant(key)
    return ByHash(t, v, hash(key)) if compares_itself(v) else key


def real_key(key: object) -> object:
    """The key in the real dict for a key of the modelled one. For an instance made in the trace: a key that no real dict has."""
    if isinstance(key, tuple):
        return tuple(map(real_key, key))
    if isinstance(key, ByHash):
        return ByIdentity(key.var) if key.var.real is None else key.var.real
    return key


def runs_code(key: object) -> bool:
    """Whether looking a key up runs code of the program, which is then traced."""
    return isinstance(key, ByHash) or isinstance(key, tuple) and any(map(runs_code, key))


PLAIN_KEYS = (str, int)
DICT_KEY, ELEMENT = "a dict key", "a set element"


def key_of(t: Tracer, var: Var, role: str = DICT_KEY) -> object:
    """A hashable key for a modelled dict: equal values get equal keys. `role`: what 3.14 says that it was to be.

    Raises: Raised(TypeError) for unhashable ones.
    """
    if not NAMES_THE_KEY:
        return plain_key(t, var)
    try:
        return plain_key(t, var)
    except Raised as e:
        if e.exc.cls is not TypeError:
            raise
        why = t.const(t.calls.call_python(str, [e.exc]))
        raise t.raised(TypeError(f"cannot use '{full_name(t.type_of(var))}' as {role} ({why})")) from None


def set_part(v: Var) -> Var:
    """Returns what C code that fills a set reads of an instance of a subclass of set: its items, past its own methods."""
    if not (isinstance(v, InstanceVar) and issubclass(v.cls, (set, frozenset))):
        return v
    if v.base is None:
        raise Break(f"a set made of a {v.cls.__name__} that is not modelled")
    return v.base


def sought_key(t: Tracer, v: Var) -> object:
    """The key of what is looked for in a set, or taken out of it: for a set that has no hash, its items decide."""
    v = t.values.real(v)
    if issubclass(cls := t.type_of(v), set) and class_attribute(cls, "__hash__") is None:
        return frozenset(getattr(set_part(v), "items"))
    return key_of(t, v, ELEMENT)


def elements(t: Tracer, values: Iterable[Var]) -> dict:
    """Items of a set of these values: of equal ones the first stays."""
    out: dict = {}
    for v in map(t.values.real, values):
        out.setdefault(key_of(t, v, ELEMENT), v)
    return out


def full_name(cls: type) -> str:
    """A type's name with its module, as the newer messages of CPython have it."""
    return cls.__qualname__ if special_cases.SHORT_NAMES.made(cls) else f"{special_cases.module_of(cls)}.{cls.__qualname__}"


def plain_key(t: Tracer, var: Var) -> object:
    """key_of, with the error that `hash` raises."""
    var = t.values.real(var)
    if isinstance(var, Known):
        try:
            hash(var.obj)
        except TypeError as e:
            raise t.raised(e) from None
        return var.obj
    if isinstance(var, SliceVar):
        try:
            hash(made := slice(*(plain_key(t, v) for v in var.parts)))  # since 3.12
        except TypeError as e:
            raise t.raised(e) from None
        return made
    if isinstance(var, SeqVar):
        if var.cls in (tuple, torch.Size) or issubclass(var.cls, tuple):
            return tuple(plain_key(t, v) for v in var.items)
        raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
    if isinstance(var, (DictVar, SetVar)):
        if isinstance(var, SetVar) and var.cls is frozenset:
            return frozenset(var.items)
        raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
    if isinstance(var, DictView) and var.kind != "values":
        raise t.raised(TypeError(f"unhashable type: '{shown_name(t.type_of(var))}'"))
    if type(var) is IdVar:
        return IdKey(t.values.real(var.of))
    if isinstance(var, FuncVar) and var.real is not None:
        keyed(t, var)
        return var.real
    if isinstance(var, InstanceVar) and var.cls is weakref.ReferenceType and (ref := _reference(t, var)) is not None:
        return ref
    if isinstance(var, InstanceVar):
        cls_hash = class_attribute(var.cls, "__hash__")
        if cls_hash is None:
            raise t.raised(TypeError(f"unhashable type: '{shown_name(var.cls)}'"))
        if isinstance(var.base, Known) and not is_own_key(var.cls):
            return plain_key(t, var.base)
        if var.real is not None and cls_hash is object.__hash__:
            keyed(t, var)
            return var.real
        if compares_itself(var):
            return ByHash(t, var)
        if isinstance(var.base, SeqVar) and cls_hash is tuple.__hash__:
            return plain_key(t, var.base)
        if cls_hash is not object.__hash__ and cls_hash is not BaseException.__hash__:
            raise Break(f"a key with its own __hash__ ({var.cls.__name__})")
    if isinstance(var, DeferredVar):
        raise Break(f"{words(var)} used as a key")
    if isinstance(var, ArrayVar):
        if t.type_of(var) in numpy_types.SCALARS:
            raise Break("a number of NumPy's that the graph computes used as a key")
        raise t.raised(TypeError("unhashable type: 'numpy.ndarray'"))
    if isinstance(var, MethodVar):
        raise Break("a bound method as a key")
    if isinstance(var, TensorVar) and var.real is not None:
        keyed(t, var)
        return var.real
    return ByIdentity(var)


def _reference(t: Tracer, var: InstanceVar) -> weakref.ref | None:
    """A weak reference that the region made to an object from outside, as a key of what lies outside: objects that are equal
    to themselves only. None for any other."""
    of = t.values.real(var.slots["of"]) if var.real is None else None
    if not isinstance(of, InstanceVar) or of.real is None or of.base is not None:
        return None
    if (of.cls.__hash__, of.cls.__eq__) != (object.__hash__, object.__eq__):
        return None
    fixed(t, of)
    return weakref.ref(of.real)


def base_of(v: Var) -> Var:
    """The built-in part of a subclass instance; the value itself otherwise."""
    return v.base if isinstance(v, InstanceVar) and v.base is not None else v
