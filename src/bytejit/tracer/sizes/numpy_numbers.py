"""NumPy numbers from outside that change between calls: symbols of what `.item()` gives, where only the value matters.

torch takes a NumPy number as a Python number of the same value: it does not take part in type promotion. So a tensor
operation gets the symbol. Comparisons with numbers, truth, and int(), float() and math's functions do too. NumPy's arithmetic
between numbers, with its own types and rounding, is done by NumPy in each call, and gives such a number again. Everything else
reads the number itself, which its guard then compares: its dtype, its methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytejit.compat import numpy_types
from bytejit.guards.references import Ref
from bytejit.guards.sources import Attr, CallOf, Computed, Constant, Local, Source, StackSlot
from bytejit.tracer.core.numpy_values import NumpyVar
from bytejit.tracer.core.values import Known, SeqVar, SymVar, Var

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer


DEEPEST = 24  # steps of arithmetic between where a number comes from and where it is used


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
        value, item = v.real.item(), item_of(v.origin)
        v.plain = SymVar(t.sizes.symbol(item, value), item) if type(value) is float else t.sizes.int_symbol(value, item)
    return v.plain


def apply_numpy(t: Tracer, function: Callable, args: list[Var]) -> Known | None:
    """NumPy's arithmetic between numbers of which some change: it is done anew in each call, by NumPy, before the graph runs.
    None where something else is among them, or where the result is no such number or comes with a warning."""
    sources = [source for a in args if (source := _source_of(a)) is not None]
    if len(sources) < len(args) or not any(type(a) is NumpyVar for a in args):
        return None
    source = Computed(Ref.strong(function, getattr(function, "__name__", "a function")), tuple(sources))
    if _depth(source) > DEEPEST:
        return None
    try:
        obj = numpy_types.without_warnings(function, *(a.real if type(a) is NumpyVar else t.const(a) for a in args))
    except (ArithmeticError, TypeError, ValueError):  # a warning of NumPy's too: the number is made a constant
        return None
    if type(obj) not in numpy_types.NUMBERS:
        return None
    if type(obj.item()) is int and not t.sizes.is_usable(obj.item()):  # 0, say: the result is compared, not what it is made of
        t.guard("EQUALS", source, obj)
        return Known(obj)
    t.guard("TYPE_IS", source, type(obj))
    return NumpyVar(obj, source, lambda: t.guard("EQUALS", source, obj))


def _source_of(v: Var) -> Source | None:
    """Returns the source of a number; None for what is none."""
    if type(v) is NumpyVar:
        return v.source
    return Constant(v.obj) if type(v) is Known and type(v.obj) in (int, float, *numpy_types.NUMBERS) else None


def _depth(source: Source) -> int:
    return 1 + max(map(_depth, source.bases()), default=0)


# operations whose numbers torch reads by their dtype, which NumPy's bool has none of: it is the float 1.0 or 0.0 there. Others
# want a bool, and refuse it, or make a tensor of it
TAKE_BOOLS_FOR_FLOATS = frozenset(
    "add sub mul div truediv true_divide multiply divide subtract pow iadd isub imul itruediv radd rsub rmul rtruediv rpow "
    "eq ne lt le gt ge where full full_like fill masked_fill clamp clip clamp_min clamp_max".split()
)


def numpy_bool(v: Var) -> Var:
    """Returns the float for which an operation of TAKE_BOOLS_FOR_FLOATS takes NumPy's bool; other values as they are."""
    return Known(float(v.obj)) if type(v) is Known and numpy_types.is_bool(v.obj) else v


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
    found = t.numbers.on_numbers(function, plain_number(t, a), plain_number(t, b))
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
    return (
        type(other.obj) is float
        and (wide or type(one.real)(other.obj) == other.obj)
        or (type(other.obj) is int and wide and abs(other.obj) <= 2**31)
    )
