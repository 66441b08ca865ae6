"""Iteration: iterators whose state the tracer holds, generators, unpacking."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.descriptions import shown_name
from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.library_code import is_of_library
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.range_values import RangeVar
from bytejit.tracer.core.set_tables import Unlike, like
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DictVar, DictView, InstanceVar, Known, SeqVar, SetVar, SymVar, TensorVar, Var
from bytejit.tracer.core.versions import COUNTS_UNPACKED

from .changing_keys import all_items, iterator_by_places
from .class_facts import class_attribute, class_lookup
from .iterator_steps import ASKING, NEXT
from .made_dicts import MadeDict
from .own_methods import IN_C, own_method
from .set_orders import guard_orders, made_of, order_of, table_of


def ask_length(t: Tracer, v: Var) -> None:
    """Ask code of the program how many items there may be: `__len__`, else `__length_hint__`. Raises: Raised, Break."""
    if isinstance(v, IterVar) and v.kind in ("getitem", "reversed items") and not v.done and v.state["of"] is not None:
        _length_by(t, v.state["of"], "__len__")
    elif isinstance(v, InstanceVar) or type(v) is Known and isinstance(v.obj, type):
        _length_by(t, v, "__len__") or _length_by(t, v, "__length_hint__")


def _length_by(t: Tracer, v: Var, method: str) -> bool:
    """Whether a method of the program's says how many items there may be; a TypeError in it says nothing."""
    found = class_attribute(t.type_of(v), method)
    if method == "__len__" and isinstance(v, InstanceVar) and (isinstance(found, IN_C) or found and is_of_library(found)):
        return True
    if not isinstance(found, types.FunctionType) or is_of_library(found):
        return False
    try:
        length = t.values.real(t.calls.call(t.attributes.special(v, method), [], {}))
    except Raised as e:
        if issubclass(e.exc.cls, TypeError):
            return False
        raise
    if not isinstance(length, Known) or length.obj is NotImplemented:
        return isinstance(length, SymVar)
    if method == "__length_hint__" and not isinstance(length.obj, int):
        raise t.raised(TypeError(f"__length_hint__ must be an integer, not {t.type_of(length).__name__}"))
    if isinstance(length.obj, int) and length.obj < 0:
        raise t.raised(ValueError(f"{method}() should return >= 0"))
    return isinstance(length.obj, int)


def sized(v: SeqVar | SetVar | DictVar, words: str) -> dict[str, Any]:
    """Returns what an iterator remembers of a container that may not change its size meanwhile. words: of the error."""
    return {"of": v, "size": len(v.items), "words": words}


def of_deque(v: SeqVar) -> dict[str, Any]:
    """Returns what an iterator over a deque remembers of it."""
    return {**sized(v, "deque mutated during iteration"), "was": list(v.items)}


class Iteration(Component):
    """The part of the tracer that iterates."""

    def iter(self, v: Var) -> Var:
        """iter(v). Raises: Raised(TypeError) for what is not iterable."""
        v = self.t.values.real(v)
        if isinstance(v, (IterVar, GenVar)):
            return v
        if isinstance(v, SeqVar) and v.cls is collections.deque:
            return IterVar("seq", {"seq": v, "at": 0, **of_deque(v)}, self.t.limits.steps)
        if isinstance(v, SeqVar):
            return IterVar("seq", {"seq": v, "at": 0}, self.t.limits.steps)
        if isinstance(v, (DictVar, DictView)):
            if (by_places := iterator_by_places(self.t, v)) is not None:
                return by_places
            owner, kind = (v, "keys") if isinstance(v, DictVar) else (v.owner, v.kind)
            self.t.values.complete(owner)
            return IterVar("dict", {"owner": owner, "kind": kind, "keys": list(owner.items), "at": 0}, self.t.limits.steps)
        if isinstance(v, SetVar):
            state = {
                "seq": SeqVar(self.set_order(v), list),
                "at": 0,
                "again": (iter, [v]),
                "cls": type(iter(set())),
                "was": list(v.items),
            }
            state |= sized(v, "Set changed size during iteration")
            return IterVar("seq", state, self.t.limits.steps)
        if type(v) is RangeVar:
            return IterVar("range", {"range": range(v.count()), "at": 0, "of": v}, self.t.limits.steps)
        if isinstance(v, Known) and isinstance(v.obj, range):
            return IterVar("range", {"range": v.obj, "at": 0}, self.t.limits.steps)
        if isinstance(v, Known) and type(v.obj) in (str, bytes, frozenset):
            state = {"seq": SeqVar([Known(c) for c in v.obj], list), "at": 0, "again": (iter, [v]), "cls": type(iter(v.obj))}
            return IterVar("seq", state, self.t.limits.steps)
        if isinstance(v, Known) and isinstance(v.obj, (type, enum.Enum)):
            if (found := self.t.attributes.find_special(v, "__iter__")) is not None:
                return self._iter_members(v.obj, found)
        if isinstance(v, TensorVar):
            if v.fake.dim() == 0:
                raise self.t.raised(TypeError("iteration over a 0-d tensor"))
            rows = self.t.tensors.call_tensor_op(torch.unbind, [v], {})
            return IterVar("seq", {"seq": rows, "at": 0}, self.t.limits.steps)
        if isinstance(v, ArrayVar):
            return IterVar("seq", {"seq": self.t.numpy_arrays.array_call(list, [v]), "at": 0}, self.t.limits.steps)
        if isinstance(v, InstanceVar):
            return self._instance_iter(v)
        raise self.t.raised(TypeError(f"'{self.t.type_of(v).__name__}' object is not iterable"))

    def _iter_members(self, members: Any, found: Var) -> Var:
        """The members of an Enum or of a Flag; what a metaclass of the program's iterates. found: the bound `__iter__`."""
        if is_of_library(class_attribute(type(members), "__iter__")):
            return self.iter(SeqVar([self.t.values.constant(m) for m in members], list))
        return self.iter(self.t.calls.call(found, [], {}))

    def set_order(self, v: SetVar) -> list[Var]:
        """The items of a set in the order in which it is gone through. Raises: Break where that is not known."""
        table = table_of(v)
        try:
            order = order_of(v)
        except Unlike:
            raise Break("iterating a set from outside that the region changed") from None
        if table is not None and order is not None:
            guard_orders(self.t, table)
        elif v.real is not None:
            self.t.guard("SET_ITEMS", v.origin, tuple(v.real))
            order = [*(k for k in v.real if k in v.items), *(k for k in v.items if k not in v.real)]
        elif all(map(is_constant, v.items)):
            order = list(v.cls(v.items))
        elif len(v.items) < 2:
            order = list(v.items)
        if order is None:
            raise Break("iterating a set whose order depends on addresses")
        return [v.items[k] for k in order]

    def real_set(self, v: SetVar) -> Any:
        """A real set of constants that is gone through in the same order. Raises: Break."""
        self.set_order(v)
        if (table := table_of(v)) is None:
            return v.cls(v.items)
        made = made_of(table)
        try:
            return like(made) if made is v.real and v.cls is set else made
        except Unlike:
            raise Break("a set from outside with places that a copy does not have") from None

    def _instance_iter(self, v: InstanceVar) -> Var:
        found = class_attribute(v.cls, "__iter__")
        if isinstance(found, types.FunctionType):
            result = self.t.values.real(self.t.calls.call(self.t.attributes.special(v, "__iter__"), [], {}))
            cls = self.t.type_of(result)
            if not isinstance(result, (IterVar, GenVar)) and class_attribute(cls, "__next__") is None:
                raise self.t.raised(TypeError(f"iter() returned non-iterator of type '{cls.__name__}'"))
            return result
        if class_lookup(v.cls, "__iter__")[0] is None:  # `__iter__ = None` in a class
            raise self.not_iterable(v)
        if v.base is not None and found is not None:
            return self.iter(v.base)
        if v.real is not None and found is not None:
            if isinstance(v.real, types.GeneratorType):
                raise Break("a generator from outside that cannot be looked into")
            if class_attribute(v.cls, "__next__") is not None:
                return v
            raise Break(f"iterating a {v.cls.__name__}, a C object")
        if isinstance(class_attribute(v.cls, "__getitem__"), types.FunctionType):
            return IterVar("getitem", {"of": v, "at": 0}, self.t.limits.steps)
        raise self.not_iterable(v)

    def not_iterable(self, v: InstanceVar) -> Raised:
        return self.t.raised(TypeError(f"'{v.cls.__name__}' object is not iterable"))

    def has_iter(self, v: Var) -> bool:
        v = self.t.values.real(v)
        if isinstance(v, (SeqVar, SetVar, DictVar, DictView, IterVar, GenVar, TensorVar, ArrayVar)):
            return True
        cls = self.t.type_of(v)
        if class_lookup(cls, "__iter__")[0] is None:
            return False
        if class_attribute(cls, "__iter__") is not None or own_method(cls, "__getitem__"):
            return True
        return class_attribute(cls, "__getitem__") is not None and not issubclass(cls, numpy_types.SCALAR)

    def next(self, v: Var) -> Var | None:
        """The next item, or None at the end, whatever that says. Raises: Raised, Break."""
        try:
            return self.step(v)
        except Raised as e:
            if issubclass(e.exc.cls, StopIteration):
                return None
            raise

    def step(self, v: Var) -> Var | None:
        """The next item, or None at the end. Raises: Raised(StopIteration) of what ends with a value, Raised, Break."""
        if isinstance(v, IterVar):
            if v.done:
                return None
            self.t.effects.mutations += 1
            item = NEXT[v.kind](self.t, v.state)
            v.done = item is None and v.kind not in ASKING
            return item
        if isinstance(v, GenVar):
            finished, value = self.t.calls.resume(v, NONE)
            if finished and not self.t.comparisons.is_same(value, NONE):
                raise self.t.stop(value)
            return None if finished else value
        if isinstance(v, InstanceVar):
            return self.own_next(v)
        raise self.t.raised(TypeError(f"'{self.t.type_of(v).__name__}' object is not an iterator"))

    def own_next(self, v: InstanceVar) -> Var:
        """What the `__next__` of an instance's class gives. Raises: Raised with its own StopIteration, which may have a value."""
        found = class_attribute(v.cls, "__next__")
        if found is None:
            raise self.t.raised(TypeError(f"'{v.cls.__name__}' object is not an iterator"))
        if not isinstance(found, types.FunctionType):
            raise Break(f"an iterator from outside ({v.cls.__name__})")
        return self.t.calls.call(self.t.attributes.special(v, "__next__"), [], {})

    def iterate(self, v: Var, sized: bool = False) -> list[Var]:
        """All items. A list's own items are returned as a new list."""
        v = self.t.values.real(v)
        items = all_items(self.t, v) if isinstance(v, (DictView, DictVar)) else None
        return list(self.each(v, sized)) if items is None else items

    def each(self, v: Var, sized: bool = False) -> Iterator[Var]:
        """The items one by one: what is done with one comes before the next is asked for. A list's own are those it holds now.
        sized: how many there are is asked before the first, as a list does that makes room for them."""
        v = self.t.values.real(v)
        if isinstance(v, SeqVar):
            yield from list(v.items)
            return
        iterator, count = self.iter(v), 0
        if sized:
            ask_length(self.t, v)
        while (item := self.next(iterator)) is not None:
            yield item
            count += 1
            if count > self.MAX_ITEMS:
                raise Break(f"an iteration over more than {self.MAX_ITEMS:,} items")

    def rest(self, v: Var, passed: int = 0) -> list[Var]:
        """All items, as list(iter(v)) takes them after `passed` calls of next()."""
        v = self.t.values.real(v)
        if isinstance(v, SeqVar):
            return list(v.items)
        iterator = self.iter(v)
        items: list[Var] = []
        for _ in range(passed):
            if (item := self.next(iterator)) is None:
                return items
            items.append(item)
        return items + self.iterate(iterator, sized=True)

    def until(self, v: Var, found: Callable[[Var], bool]) -> bool:
        """Whether an item is one; those behind it stay in the iterator. A set has no order for that."""
        v = self.t.values.real(v)
        return any(found(item) for item in (v.items.values() if isinstance(v, SetVar) else self.each(v)))

    MAX_ITEMS = 200_000

    def check_unpacked(self, v: Var) -> None:
        """Raises: Raised(TypeError) for what cannot be unpacked."""
        if not self.has_iter(v):
            raise self.t.raised(TypeError(f"cannot unpack non-iterable {shown_name(self.t.type_of(v))} object"))

    def unpack(self, v: Var, n: int) -> list[Var]:
        """n items of an iterable. Raises: Raised(ValueError) as Python words it."""
        v = self.t.values.real(v)
        self.check_unpacked(v)
        if isinstance(v, SeqVar):
            items = v.items
        else:
            iterator, items = self.iter(v), []
            while len(items) <= n and (item := self.next(iterator)) is not None:
                items.append(item)
        if len(items) < n:
            raise self.t.raised(ValueError(f"not enough values to unpack (expected {n}, got {len(items)})"))
        if len(items) > n:
            counted = COUNTS_UNPACKED and self.t.type_of(v) in (list, tuple, dict)
            got = f", got {self.t.subscripts.length(v)}" if counted else ""
            raise self.t.raised(ValueError(f"too many values to unpack (expected {n}{got})"))
        return list(items)

    def send(self, v: Var, value: Var) -> tuple[bool, Var]:
        """Takes one step of `yield from`. Returns (whether it is finished, the value yielded or returned)."""
        if isinstance(v, GenVar) and not v.steps:
            return self.t.calls.resume(v, value)
        if isinstance(v, InstanceVar) and not self.t.comparisons.is_same(value, NONE):
            try:
                return False, self.t.calls.call(self.t.attributes.getattr(v, "send"), [value], {})
            except Raised as e:
                if issubclass(e.exc.cls, StopIteration):
                    return True, self.t.attributes.getattr(e.exc, "value")
                raise
        try:
            item = self.step(v)
        except Raised as e:
            if issubclass(e.exc.cls, StopIteration):
                return True, self.t.attributes.getattr(e.exc, "value")
            raise
        return (True, NONE) if item is None else (False, item)

    def mapping_items(self, v: Var, ordered: bool = False) -> Iterable[tuple[Var, Var]] | None:
        """(key, value) pairs of a mapping, to go through once; None for what is none. ordered: as an OrderedDict takes them."""
        v = self.t.values.real(v)
        if isinstance(v, MadeDict):
            return v.pairs()
        if isinstance(v, DictVar):
            self.t.values.complete(v)
            return list(v.items.values())
        if not isinstance(v, InstanceVar) and not (isinstance(v, Known) and isinstance(v.obj, enum.Enum)):
            return None
        cls = self.t.type_of(v)
        if isinstance(v, InstanceVar) and isinstance(v.base, DictVar):
            by_keys = ordered or issubclass(cls, collections.OrderedDict)
            if not any(own_method(cls, name) for name in (("keys", "__getitem__") if by_keys else ("__iter__",))):
                return self.mapping_items(v.base)
        if class_attribute(cls, "keys") is not None:
            keys = self.iterate(self.t.calls.call(self.t.attributes.getattr(v, "keys"), [], {}))
            return ((self.t.values.real(k), self.t.subscripts.getitem(v, k)) for k in keys)
        if ordered and class_attribute(cls, "items") is not None:
            raise Break("an OrderedDict made of an object with a method `items`")
        return None
