"""Pure functions of values that change between calls, which no node of the graph computes: each call of the region calls them
anew, before the graph runs, and what they give is a value from outside like any other."""

from __future__ import annotations

import enum
import functools
import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from bytejit.common.plain_types import DATES, JSON_TYPES, OPEN_TYPES, ZONED
from bytejit.compat import numpy_types
from bytejit.guards.changing_sources import Expression
from bytejit.guards.item_sources import TupleItem
from bytejit.guards.references import Ref
from bytejit.guards.sources import Attr, Computed, Constant, KnownSource, Source
from bytejit.tracer.core import texts
from bytejit.tracer.core.numpy_values import NumpyVar
from bytejit.tracer.core.open_values import NEVER_TWICE, Differs, OpenVar
from bytejit.tracer.core.texts import TextVar, is_row
from bytejit.tracer.core.values import InstanceVar, Known, SeqVar, SymVar, TensorVar, Var

from .numpy_numbers import apply_numpy, wrap_numpy

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer

PLAIN = OPEN_TYPES.union(JSON_TYPES)
MADE_FROM = (int.from_bytes, bytes.fromhex, *(getattr(c, n) for c in DATES for n in ("fromisoformat",) if hasattr(c, n)))
METHODS_OF = PLAIN - {bool, type(None)}
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def changes(t: Tracer, v: Var) -> bool:
    """Whether a value that changes is in it: a number, text, another plain value, or an object that is equal to itself only."""
    if is_row(v):
        return any(changes(t, t.values.real(i)) for i in v.items)
    return type(v) in (SymVar, NumpyVar, TextVar, OpenVar) or is_changing_object(t, v)


def is_changing_object(t: Tracer, v: Var) -> TypeGuard[InstanceVar | TensorVar]:
    """Whether it is an object from outside that was another one in another call, and is told from others by identity."""
    if not isinstance(v, (InstanceVar, TensorVar)) or v.source is None or v.real is None:
        return False
    if v.source not in t.sizes.dynamic.changed and not t.sizes.of_changing(v.source):
        return False
    cls = type(v.real)
    return cls in PLAIN_TENSORS or (cls.__hash__, cls.__eq__) == (object.__hash__, object.__eq__)


def source_of(t: Tracer, v: Var) -> Source | None:
    """The source of a value before the graph runs; None where it is not known."""
    if t.hysteresis.in_use:  # what a size was traced as is not what it is in this call
        return None
    if is_row(v):
        return computed(_row, [source_of(t, t.values.real(i)) for i in v.items])
    if type(v) is TextVar:
        return None if v.kwargs else computed(v.function, [source_of(t, a) for a in v.args])
    if type(v) is SymVar:
        e = v.value.node.public
        if not getattr(e, "free_symbols", set()) <= t.sizes.sources.keys():  # a number that the graph computes
            return None
        return t.sizes.sources.get(e) or Expression(t.numbers.expr_guard(e)) if hasattr(e, "free_symbols") else Constant(e)
    if isinstance(v, OpenVar) or is_changing_object(t, v):
        return v.source
    if type(v) is Known and isinstance(v.obj, enum.Enum):
        return KnownSource.of(v.obj)
    return Constant(v.obj) if type(v) is Known and type(v.obj) in PLAIN else None


def _row(*parts: Any) -> tuple:
    return parts


def computed(function: Callable, parts: list[Source | None]) -> Source | None:
    """The source of a function's result; None where one of its arguments has no source."""
    known = [p for p in parts if p is not None]
    return Computed(Ref.strong(function, function.__name__), tuple(known)) if len(known) == len(parts) else None


def hint(t: Tracer, v: Var) -> Any:
    """The value in this call. Adds no condition."""
    if is_row(v):
        return tuple(hint(t, t.values.real(i)) for i in v.items)
    return v.real if isinstance(v, (InstanceVar, TensorVar)) else texts.hint(v)


def open_constant(t: Tracer, obj: Any, source: Source) -> Var | None:
    """A constant from outside that changes between calls, its value left open; None for others."""
    sizes, cls = t.sizes, type(obj)
    if cls in (int, float) and (number := sizes.wrap_number(obj, source)) is not None:
        return number
    if cls is int and source in sizes.dynamic.of_modules and source not in sizes.dynamic.static:
        t.guard("TYPE_IS", source, int)
        return OpenVar(obj, source, lambda: t.guard("EQUALS", source, obj))
    if cls in numpy_types.NUMBERS:
        return wrap_numpy(t, obj, source)
    changed = sizes.dynamic.has_changed(source) or sizes.of_changing(source)
    if cls is str and changed:
        t.guard("TYPE_IS", source, str)
        return texts.given_text(obj, source, _fix(t, obj, source))
    if cls in OPEN_TYPES and changed and source not in sizes.dynamic.static and _opens(t, obj, source):
        t.guard("TYPE_IS", source, cls)
        return OpenVar(obj, source, _fix(t, obj, source))
    if isinstance(obj, tuple) and obj:
        if changed or any(TupleItem(source, i) in sizes.dynamic.changed for i in range(len(obj))):
            t.guard("TYPE_IS", source, cls)
            return t.values.container(obj, source)
    return None


def _opens(t: Tracer, obj: Any, source: Source) -> bool:
    """Whether a value is left open. Guards that the zone of a time runs no code of the program's."""
    if type(obj) is int:  # 0 and 1 matter in themselves, and the others are symbols
        return not sizes_hold(obj)
    if type(obj) in ZONED:  # a constant has a plain one
        t.guard("TYPE_IS", Attr(source, "tzinfo"), type(obj.tzinfo))
    return True


def sizes_hold(number: int) -> bool:
    """Whether an integer is as small as sizes are."""
    return -(2**31) <= number <= 2**31


def _fix(t: Tracer, obj: Any, source: Source) -> Callable[[], None]:
    """Returns what makes such a value a constant, where it is not known to differ in each call. Raises: Break."""

    def fix() -> None:
        sizes = t.sizes
        if not (t.job.measure or sizes.finishing) and (type(obj) in NEVER_TWICE or sizes.dynamic.is_unlike(source)):
            raise Differs(source.name())
        t.guard("EQUALS", source, obj)

    return fix


def is_called_anew(fn: Any, count: int) -> bool:
    """Whether it is a function of the math module, or a method of a plain value, that symbols do not go through."""
    name = getattr(fn, "__name__", None) or ""
    if isinstance(fn, types.MethodDescriptorType):
        return fn.__objclass__ in METHODS_OF and name[:2] != "__"
    if fn in MADE_FROM:
        return True
    if getattr(math, name, None) is not fn:
        return False
    from bytejit.shapes.arithmetic import FUNCTIONS, OF_MATH  # sympy comes with it

    return fn not in FUNCTIONS and (fn, count) not in OF_MATH


def call_anew(t: Tracer, fn: Callable, args: list[Var], named: dict[str, Any] | None = None) -> Var | None:
    """fn(*args, **named), computed anew in each call. None if an argument is not a plain value, or if the function raises: the
    caller then treats the arguments as constants."""
    rows = [SeqVar([*map(t.values.real, a.items)], tuple) if isinstance(a, SeqVar) and a.cls is list else a for a in args]
    if not any(changes(t, a) for a in rows) or not all(map(texts.is_plain, rows)):
        return None
    if named:
        fn = functools.update_wrapper(functools.partial(fn, **named), fn)
    source = computed(fn, [source_of(t, a) for a in rows])
    if source is None:
        return None
    try:
        found = fn(*(hint(t, a) for a in rows))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    if type(found) is list:  # the parts of a text
        row = t.values.wrap(tuple(found), Computed(Ref.strong(tuple, "tuple"), (source,)))
        return SeqVar(list(row.items), list) if isinstance(row, SeqVar) else None
    plain = type(found) in PLAIN or type(found) is tuple and all(type(x) in PLAIN for x in found)
    return t.values.wrap(found, source) if plain else None


def arithmetic_anew(t: Tracer, function: Callable, *args: Var) -> Var | None:
    """An operator on NumPy's numbers or plain values that change, computed anew in each call; None for others."""
    if any(type(a) is NumpyVar for a in args):
        return apply_numpy(t, function, [*args])
    return call_anew(t, function, [*args]) if any(type(a) is OpenVar for a in args) else None
