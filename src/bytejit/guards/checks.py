"""The checks of guards as Python text, for the rows of `kinds.KINDS`: `x` is the text of what is there now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from operator import is_
from typing import Any

import torch

from .class_lookups import ClassCheck, ClassLookups
from .conditions import ComputedItems, Distinct, distinct
from .equality import same
from .references import PLAIN_VALUE, Ref, SourcePrinter
from .tensor_checks import identity


def type_is_text(at: SourcePrinter, x: str, value: Any) -> str:
    return f"type({x}) is {identity(at, value)}"


def id_is_text(at: SourcePrinter, x: str, value: Any) -> str:
    return f"{x} is {identity(at, value)}"


def equals_text(at: SourcePrinter, x: str, value: Any) -> str:
    if value is None or type(value) is bool or value is Ellipsis:
        return f"{x} is {value!r}"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return f"{x} is {at.bind(value)}"
    const = at.bind(value)
    if type(value) in (int, str):
        return f"({x} is {const} or (type({x}) is {type(value).__name__} and {x} == {value!r}))"
    return f"({x} is {const} or {at.bind(same, 'same')}({x}, {const}))"


def equals_as_text(at: SourcePrinter, x: str, value: tuple[type, Any]) -> str:
    return f"{at.bind(same, 'same')}({at.bind(PLAIN_VALUE[value[0]], 'plain')}({x}), {at.bind(value[1])})"


def keys_text(at: SourcePrinter, x: str, keys: tuple) -> str:
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


def set_items_text(at: SourcePrinter, x: str, items: Any) -> str:
    if isinstance(items, frozenset):
        return f"{x} == {at.bind(items)} and {{*map(type, {x})}} == {at.bind({type(i) for i in items})}"
    return keys_text(at, x, items)


def function_text(at: SourcePrinter, x: str, value: tuple) -> str:
    code, count, keys = value
    return " and ".join(
        [
            f"{x}.__code__ is {at.bind(code)}",
            f"len({x}.__defaults__) == {count}" if count else f"not {x}.__defaults__",
            f"[*{x}.__kwdefaults__] == {at.bind(list(keys))}" if keys else f"not {x}.__kwdefaults__",
        ]
    )


def state_text(at: SourcePrinter, x: str, value: Any) -> str:
    if type(value) is bool or (type(value) is int and value == 0):  # these getters return a bool or a count
        return x if value else f"not {x}"
    return f"{x} == {at.literal(value)}" if type(value) in (int, tuple) else f"{x} is {identity(at, value)}"


def class_text(at: SourcePrinter, x: str, value: ClassLookups) -> str:
    return f"{at.bind(ClassCheck(value), 'class')}.holds({x})"


def computed_text(at: SourcePrinter, x: str, value: ComputedItems) -> str:
    tensors = [x, *(at.source(s) for s in value.sources[1:])]
    return f"{at.bind(value.run, 'value')}({', '.join(tensors)}).tolist() == {at.bind(value.want)}"


def distinct_text(at: SourcePrinter, x: str, value: Distinct) -> str:
    changed = [x, *map(at.source, value.changed[1:])]
    others = map(at.source, value.others)
    return f"{at.bind(distinct, 'distinct')}(({', '.join(changed)},), ({''.join(f'{o}, ' for o in others)}))"
