"""NumPy numbers from outside that change between calls: symbols of what `.item()` gives, where only the value matters.

torch takes a NumPy number as a Python number of the same value: it does not take part in type promotion. So a tensor
operation gets the symbol. Comparisons with numbers, truth, and int(), float() and math's functions do too. Everything else
reads the number itself, which its guard then compares: its dtype, its methods, NumPy's arithmetic with its own rounding.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytejit.compat import numpy_types
from bytejit.guards.sources import Attr, CallOf, Local, Source, StackSlot
from bytejit.tracer.core.values import Known, NumpyVar, SeqVar, SymVar, Var

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer


def item_of(source: Source) -> Source:
    """The source of the Python number that a NumPy one is."""
    return CallOf(Attr(source, "item"), ())


def wrap_numpy(t: Tracer, obj: Any, source: Source) -> NumpyVar | None:
    """A NumPy number that changes, its value left open; None where it stays a constant."""
    d, item = t.sizes.dynamic, item_of(source)
    wanted = d.at_once and isinstance(source, (Local, StackSlot)) or source in d.changed or item in d.changed
    if not wanted or source in d.static or item in d.static:
        return None
    value = obj.item()
    if type(value) is int and not t.sizes.is_usable(value):
        return None
    t.guard("TYPE_IS", source, type(obj))
    return NumpyVar(obj, source, lambda: t.guard("EQUALS", source, obj))


def plain_number(t: Tracer, v: Var) -> Var:
    """The symbol of a NumPy number that changes; others are returned as they are."""
    if type(v) is not NumpyVar:
        return v
    if v.plain is None:
        value, item = v.real.item(), item_of(v.source)
        v.plain = SymVar(t.sizes.symbol(item, value), item) if type(value) is float else t.sizes.int_symbol(value, item)
    return v.plain


def plain_index(t: Tracer, key: Var) -> Var:
    """A subscript with the symbols of NumPy numbers in it."""
    if isinstance(key, SeqVar) and key.cls is tuple and any(type(t.values.real(p)) is NumpyVar for p in key.items):
        return SeqVar([plain_number(t, t.values.real(p)) for p in key.items], tuple)
    return plain_number(t, key)


def compare_numpy(t: Tracer, function: Callable, a: Var, b: Var) -> Var | None:
    """A comparison of a NumPy number that changes with another number: what it comes to is a condition. None where the other
    is no number, or NumPy might round one of the two to the other's type first."""
    for one, other in ((a, b), (b, a)):
        if type(one) is NumpyVar and not _exact(one, other):
            return None
    found = t.sizes.on_numbers(function, plain_number(t, a), plain_number(t, b))
    return None if found is None else t.values.constant(numpy_types.truth_value(t.const(found)))


def _exact(one: NumpyVar, other: Var) -> bool:
    """Whether NumPy compares a number with another by their values."""
    if type(other) is NumpyVar:
        return True
    wide = isinstance(one.real, float) or type(one.real.item()) is int
    if type(other) is SymVar:
        return wide
    if type(other) is not Known or type(other.obj) not in (int, float):
        return False
    return type(other.obj) is float and (wide or type(one.real)(other.obj) == other.obj) or (
        type(other.obj) is int and wide and abs(other.obj) <= 2**31)
