"""Kinds of guards: what a trace read from outside and baked in. A guard is a source, a kind, and the value seen while tracing.

Each kind is one row of KINDS: the check as Python text, what to show when it fails, and a rough cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any

import torch

from .class_lookups import ClassCheck, ClassLookups
from .equality import same
from .references import PLAIN_VALUE, Ref, SourcePrinter
from .source import Source
from .tensor_checks import identity, tensor_checks

TYPE_IS = "TYPE_IS"  # value: the exact type
ID_IS = "ID_IS"  # value: the object itself
EQUALS = "EQUALS"  # value: a plain constant; strict about types (1, True, 1.0), signs of zero, nan
EQUALS_AS = "EQUALS_AS"  # value: (int, float, str, ...; what an instance of a subclass of it is when made that)
BOOL = "BOOL"  # value: bool(x)
LEN_IS = "LEN_IS"  # value: len(x)
DICT_KEYS = "DICT_KEYS"  # value: tuple of keys, in order
DICT_ABSENT = "DICT_ABSENT"  # value: a key that is not there
PRESENT = "PRESENT"  # what can be fetched, whatever it is
ATTR_ABSENT = "ATTR_ABSENT"  # value: an attribute name that hasattr denies
SET_ITEMS = "SET_ITEMS"  # value: tuple of items in iteration order, or a frozenset when the order was not read
TENSOR = "TENSOR"  # value: TensorCheck
EXPR = "EXPR"  # value: SizeCondition
ALIAS = "ALIAS"  # value: (other source, whether they are the same object)
DISTINCT = "DISTINCT"  # value: Distinct, whose first source is the guard's own
GLOBAL_STATE = "GLOBAL_STATE"  # source: GlobalState(name); value: what it was
FUNCTION = "FUNCTION"  # value: the function (its code, number of defaults, names of keyword defaults)
CLASS = "CLASS"  # value: ClassLookups; source: the class
VALUE = "VALUE"  # value: ComputedItems, whose first source is the guard's own


@dataclass(frozen=True)
class SizeCondition:
    """A Python condition over named ints: `SizeCondition("s0 + 1 < s1", (("s0", source), ("s1", source)))`."""

    text: str
    names: tuple[tuple[str, Source], ...]

    def __repr__(self) -> str:
        return self.text + " where " + ", ".join(f"{n} = {s.name()}" for n, s in self.names)


@dataclass(frozen=True)
class Distinct:
    """Objects of one type: `changed` by the region, and `others` that it reads. Each of the changed is another object than all
    others and than the other changed ones. One guard: as pairs, those of a model's parameters would be its square."""

    changed: tuple[Source, ...]
    others: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*self.changed, *self.others)

    def __repr__(self) -> str:
        return f"{len(self.changed)} changed, {len(self.others)} read"


def distinct(changed: tuple, others: tuple) -> bool:
    """Whether what `Distinct` says holds for some objects."""
    seen = set(map(id, changed))
    return len(seen) == len(changed) and seen.isdisjoint(map(id, others))


@dataclass(frozen=True, eq=False)
class ComputedItems:
    """A value that a pure function of some tensors gave: `run(*sources)` is a tensor, `want` its items."""

    run: Callable[..., Any]
    sources: tuple[Source, ...]
    want: Any

    def __repr__(self) -> str:
        return f"{str(self.want)[:60]} from {', '.join(s.name() for s in self.sources)}"


@dataclass(frozen=True, slots=True)
class GuardKind:
    """One kind of guard: how to print its check over the text of the value, and what to show when it fails."""

    check: Callable[[SourcePrinter, str, Any], str]
    seen: str  # expression over {x} for what is there now; "" shows nothing
    says: str  # "{name}", "{want}", "{got}"
    once: bool = True  # the check reads the value's text once (else it is fetched into a local first)
    cost: int = 30  # nanoseconds, rough


def _type_is(at: SourcePrinter, x: str, value: Any) -> str:
    return f"type({x}) is {identity(at, value)}"


def _id_is(at: SourcePrinter, x: str, value: Any) -> str:
    return f"{x} is {identity(at, value)}"


def _equals(at: SourcePrinter, x: str, value: Any) -> str:
    if value is None or type(value) is bool or value is Ellipsis:
        return f"{x} is {value!r}"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return f"{x} is {at.bind(value)}"
    const = at.bind(value)
    if type(value) in (int, str):
        return f"({x} is {const} or (type({x}) is {type(value).__name__} and {x} == {value!r}))"
    return f"({x} is {const} or {at.bind(same, 'same')}({x}, {const}))"


def _equals_as(at: SourcePrinter, x: str, value: tuple[type, Any]) -> str:
    return f"{at.bind(same, 'same')}({at.bind(PLAIN_VALUE[value[0]], 'plain')}({x}), {at.bind(value[1])})"


def _keys(at: SourcePrinter, x: str, keys: tuple) -> str:
    if all(type(k) is str for k in keys):
        return f"[*{x}] == {at.bind(list(keys))}" if keys else f"not {x}"
    for k in keys:
        if isinstance(k, Ref):
            at.watch(k)
    if all(isinstance(k, Ref) for k in keys):
        return f"{at.bind(_are, 'are')}({x}, {at.bind([k.getter for k in keys])})"
    if any(isinstance(k, Ref) for k in keys):
        return f"{at.bind(_mixed_keys, 'keys')}({x}, {at.bind(list(keys))})"
    return f"{at.bind(same, 'same')}([*{x}], {at.bind(list(keys))})"


def _are(found: Iterable, getters: list[Callable[[], Any]]) -> bool:
    """Whether these are the objects that the getters return, all alive. Cost: 60 ns an object."""
    now, known = [*found], [get() for get in getters]
    return len(now) == len(known) and all(map(is_, now, known)) and not any(map(is_, known, repeat(None)))


def _mixed_keys(found: Any, keys: list) -> bool:
    """Whether the keys are these: objects (Ref) by identity, plain values strictly by value."""
    now = [*found]
    return len(now) == len(keys) and all(k.is_(a) if isinstance(k, Ref) else same(a, k) for a, k in zip(now, keys))


def _set_items(at: SourcePrinter, x: str, items: Any) -> str:
    if isinstance(items, frozenset):
        return f"{x} == {at.bind(items)} and {{*map(type, {x})}} == {at.bind({type(i) for i in items})}"
    return _keys(at, x, items)


def _expr(at: SourcePrinter, x: str, value: SizeCondition) -> str:
    return f"({expression_text(at, value)})"


def expression_text(at: SourcePrinter, value: SizeCondition) -> str:
    """Its text with each name replaced by that source's."""
    namespace = {name: at.source(source) for name, source in value.names}
    names = "|".join(map(re.escape, namespace))
    text = re.sub(rf"\b(?:{names})\b", lambda found: namespace[found.group()], value.text) if names else value.text
    at.env.setdefault("math", math)
    return text


def _function(at: SourcePrinter, x: str, value: tuple) -> str:
    code, count, keys = value
    return " and ".join(
        [
            f"{x}.__code__ is {at.bind(code)}",
            f"len({x}.__defaults__) == {count}" if count else f"not {x}.__defaults__",
            f"[*{x}.__kwdefaults__] == {at.bind(list(keys))}" if keys else f"not {x}.__kwdefaults__",
        ]
    )


def _state(at: SourcePrinter, x: str, value: Any) -> str:
    if type(value) is bool or (type(value) is int and value == 0):  # these getters return a bool or a count
        return x if value else f"not {x}"
    return f"{x} == {at.literal(value)}" if type(value) in (int, tuple) else f"{x} is {identity(at, value)}"


def _class(at: SourcePrinter, x: str, value: ClassLookups) -> str:
    return f"{at.bind(ClassCheck(value), 'class')}.holds({x})"


def _computed(at: SourcePrinter, x: str, value: ComputedItems) -> str:
    tensors = [x, *(at.source(s) for s in value.sources[1:])]
    return f"{at.bind(value.run, 'value')}({', '.join(tensors)}).tolist() == {at.bind(value.want)}"


def _distinct(at: SourcePrinter, x: str, value: Distinct) -> str:
    changed = [x, *map(at.source, value.changed[1:])]
    others = map(at.source, value.others)
    return f"{at.bind(distinct, 'distinct')}(({', '.join(changed)},), ({''.join(f'{o}, ' for o in others)}))"


def _truth(at: SourcePrinter, x: str, value: bool) -> str:
    return f"{x}" if value else f"not {x}"


KINDS: dict[str, GuardKind] = {
    TYPE_IS: GuardKind(_type_is, "type({x})", "{name} was a {want}, is a {got}", cost=15),
    ID_IS: GuardKind(_id_is, "{x}", "{name} is another object: was {want}, is {got}", cost=20),
    EQUALS: GuardKind(_equals, "{x}", "{name} was {want}, is {got}", once=False, cost=20),
    EQUALS_AS: GuardKind(_equals_as, "{x}", "{name} was {want}, is {got}", cost=300),
    BOOL: GuardKind(_truth, "bool({x})", "bool({name}) was {want}, is {got}", cost=20),
    LEN_IS: GuardKind(lambda at, x, v: f"len({x}) == {v}", "len({x})", "len({name}) was {want}, is {got}", cost=40),
    DICT_KEYS: GuardKind(_keys, "[*{x}]", "keys of {name} were {want}, are {got}", cost=150),
    DICT_ABSENT: GuardKind(lambda at, x, v: f"{at.literal(v)} not in {x}", "", "{name} has got the key {want}", cost=25),
    PRESENT: GuardKind(lambda at, x, v: f"[{x}]", "", "{name} cannot be fetched", cost=25),
    ATTR_ABSENT: GuardKind(lambda at, x, v: f"not hasattr({x}, {v!r})", "", "{name} has got the attribute {want}", cost=500),
    SET_ITEMS: GuardKind(_set_items, "{x}", "items of {name} were {want}, are {got}", once=False, cost=200),
    TENSOR: GuardKind(
        lambda at, x, v: " and ".join(tensor_checks(at, x, v)), "{x}", "{name} was {want}, is {got}", once=False, cost=300
    ),
    EXPR: GuardKind(_expr, "", "{want} no longer holds", cost=60),
    ALIAS: GuardKind(
        lambda at, x, v: f"{x} is {'' if v[1] else 'not '}{at.source(v[0])}", "", "whether {name} is {want} changed", cost=15
    ),
    DISTINCT: GuardKind(_distinct, "", "{name} and {want} have become one object", cost=200),
    GLOBAL_STATE: GuardKind(_state, "{x}", "{name} was {want}, is {got}", cost=30),
    FUNCTION: GuardKind(_function, "{x}", "{name} has another code or other defaults", once=False, cost=60),
    CLASS: GuardKind(_class, "", "{name} has changed, of which these were looked for: {want}", cost=100),
    VALUE: GuardKind(_computed, "{x}", "what was computed from {name} was {want}, is another", cost=8000),
}
