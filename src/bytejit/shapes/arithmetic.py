"""Arithmetic on symbolic numbers: the results of Python's operators and of functions of `math` as symbolic numbers.

Where some values of the symbols would give an exception or another type, the values at hand decide, and this becomes a
condition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import sympy

from . import floats as sf
from . import integer_math as sm
from .conditions import Condition
from .number import Number
from .symbols import NotReal

OPERATORS: dict[str, Callable] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
    "and": operator.and_,
}
COMPARISONS: dict[str, Callable] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "gt": "<", "le": "<=", "ge": "<="}  # a > b is b < a, a >= b is b <= a


def binary(name: str, a: Number, b: Number) -> Number:
    """An operator, or max or min, on two numbers."""
    x, y = a.value, b.value
    if not isinstance(x, sympy.Basic) and not isinstance(y, sympy.Basic):
        result = OPERATORS[name](x, y)
        return a.make(result, type(result))
    if name == "truediv" or float in (a.kind, b.kind):
        return of_floats(sf.INFIX[name], a, b)
    return a.make(a.env.compute(name, x, y), int)


def of_floats(function: type[sf.FloatFunction], *numbers: Number) -> Number:
    """A float function of numbers. Raises: NotReal, and what Python raises for the current values, which then become
    constants."""
    env, values = numbers[0].env, [n.value for n in numbers]
    try:
        at_hand = function.real(*(env.value(v) for v in values))
    except (ArithmeticError, ValueError):
        for v in values:
            env.equal_hint(v)
        raise
    if type(at_hand) is not float:
        raise NotReal
    if not any(isinstance(v, sympy.Basic) for v in values):
        return numbers[0].make(at_hand, float)
    made = function(*map(sf.number, values), evaluate=False)
    if function.partial and not env.is_total(made):
        env.record_as_is(Condition("is", made, float))
    return numbers[0].make(made, float)


def of_math(name: str, *numbers: Number) -> Number:
    """math.name(*numbers)."""
    return of_floats(sf.MATH[name, len(numbers)], *numbers)


def divided(name: str, a: Number, b: Number) -> Number:
    """A division: by 0 it raises as Python's."""
    if float not in (a.kind, b.kind) and compare("eq", b, b.wrap_int(0)).truth():
        raise ZeroDivisionError("division by zero" if name == "truediv" else "integer division or modulo by zero")
    return binary(name, a, b)


def power(a: Number, b: Number) -> Number:
    """a ** b. The exponent of integers becomes a constant."""
    if a.kind is int and b.kind is int:
        exponent = b.int_()
        if exponent >= 0:
            return binary("pow", a, a.wrap_int(exponent))
        return power(to_float(a), a.wrap_float(exponent))
    return binary("pow", a, b)


def negative(a: Number) -> Number:
    """-a."""
    return binary("mul", a, a.wrap_float(-1.0) if a.kind is float else a.wrap_int(-1))


def absolute(a: Number) -> Number:
    """abs(a)."""
    if a.kind is float:
        return of_math("fabs", a)
    return a if compare("ge", a, a.wrap_int(0)).truth() else negative(a)


def extreme(name: str, a: Number, b: Number) -> Number:
    """max(a, b) or min(a, b)."""
    larger, smaller = ("ge", "gt") if name == "max" else ("le", "lt")
    mine = compare(larger, a, b).known()
    if mine is not None:
        return a if mine else b
    if float in (a.kind, b.kind):
        return to_float(b if compare(smaller, b, a).truth() else a)
    return binary(name, a, b)


def total(first: Number, numbers: list[Number]) -> Number:
    """The sum of `numbers`, in the environment of `first`."""
    out = numbers[0]
    for n in numbers[1:]:
        out = binary("add", out, n)
    return out


def bits(function: Callable, a: Number, b: Number) -> Number:
    """A bitwise operator of two ints. a | b == a + b - (a & b), a ^ b == (a | b) - (a & b)."""
    if isinstance(a.value, int):
        a, b = b, a
    mask = b.value
    if a.kind is not int or b.kind is not int or isinstance(a.value, int):
        return a.make(function(a.int_(), b.int_()), int)
    if type(mask) is not int:
        common = binary("and", a, b)
    elif mask < 0:  # a & mask == a - (a & ~mask)
        common = binary("sub", a, _common(a, ~mask))
    else:
        common = _common(a, mask)
    if function is operator.and_:
        return common
    changed = b if function is operator.or_ else binary("sub", b, common)
    return binary("add", binary("sub", a, common), changed)


def _common(a: Number, mask: int) -> Number:
    """a & mask of a mask that is not negative: of each run of ones in it, the bits of `a` there."""
    parts = []
    while mask:
        low = mask & -mask
        end = (mask + low) & ~mask
        end &= -end  # the first zero above the lowest ones
        upper = divided("mod", a, a.wrap_int(end))
        parts.append(upper if low == 1 else binary("sub", upper, divided("mod", a, a.wrap_int(low))))
        mask &= -end
    return total(a, parts) if parts else a.wrap_int(0)


def shifted_left(a: Number, b: Number) -> Number:
    """a << b."""
    return binary("mul", a, a.wrap_int(1 << b.int_()))


def shifted_right(a: Number, b: Number) -> Number:
    """a >> b."""
    return divided("floordiv", a, a.wrap_int(1 << b.int_()))


# ---- between ints and floats
def to_float(a: Number) -> Number:
    """float(a), as a symbolic number."""
    if a.kind is float:
        return a
    e = a.value
    return a.make(sf.ToFloat(e, evaluate=False) if isinstance(e, sympy.Basic) else float(e), float)


def whole(function: type, real: Callable, a: Number) -> Number:
    """An int made of a float: math.floor, math.ceil, int."""
    e = a.value
    if a.kind is int:
        return a
    if not isinstance(e, sympy.Basic):
        return a.make(real(e), int)
    try:
        real(a.env.value(e))
    except (ArithmeticError, ValueError):  # an infinity, nan
        a.env.equal_hint(e)
        raise
    made = function(e, evaluate=False)
    if sm.float_symbols(e):
        a.env.record_as_is(Condition("is", made, int))
    return a.make(made, int)


def rounded(a: Number, ndigits: Number | int | None = None) -> Number:
    """round(a, ndigits); the digits become a constant, and an int with digits."""
    if isinstance(ndigits, Number):
        ndigits = ndigits.int_()
    if ndigits is None:
        return whole(sm.Round, round, a)
    if a.kind is float:
        return of_floats(sf.RoundTo, a, a.wrap_int(ndigits))
    return a.make(round(a.int_(), ndigits), int)


def is_integer(a: Number) -> Number:
    """Whether a number is whole; a float becomes a constant."""
    return a.wrap_bool(True if a.kind is int else a.float_().is_integer())


def is_nan(a: Number) -> Number:
    """math.isnan(a)."""
    return compare("ne", a, a)


def is_infinite(a: Number) -> Number:
    """math.isinf(a)."""
    return a.wrap_bool(any(compare("eq", a, a.wrap_float(edge)).truth() for edge in (math.inf, -math.inf)))


def is_finite(a: Number) -> Number:
    """math.isfinite(a)."""
    return a.wrap_bool(compare("lt", a.wrap_float(-math.inf), a).truth() and compare("lt", a, a.wrap_float(math.inf)).truth())


def is_close(a: Number, b: Number, relative: Number, least: Number) -> Number:
    """math.isclose(a, b, rel_tol=relative, abs_tol=least), step by step as CPython has it."""
    zero = a.wrap_float(0.0)
    if compare("lt", relative, zero).truth() or compare("lt", least, zero).truth():
        raise ValueError("tolerances must be non-negative")
    if compare("eq", a, b).truth():
        return a.wrap_bool(True)
    if is_infinite(a).truth() or is_infinite(b).truth():
        return a.wrap_bool(False)
    apart = of_math("fabs", binary("sub", to_float(b), to_float(a)))
    bounds = (of_math("fabs", binary("mul", relative, to_float(b))), of_math("fabs", binary("mul", relative, to_float(a))), least)
    return a.wrap_bool(any(compare("le", apart, bound).truth() for bound in bounds))


# ---- comparison and logic
def compare(name: str, a: Number, b: Number) -> Number:
    """A comparison, decided where it is known."""
    if (a.kind is bool) is not (b.kind is bool):  # True is 1 beside an int or a float
        a, b = (n.wrap_int(n.bool_()) if n.kind is bool else n for n in (a, b))
    x, y = a.value, b.value
    if not isinstance(x, sympy.Basic) and not isinstance(y, sympy.Basic):
        return a.wrap_bool(COMPARISONS[name](x, y))
    if a.kind is bool:
        return a.wrap_bool(COMPARISONS[name](int(a.bool_()), int(b.bool_())))
    if float in (a.kind, b.kind):
        left, right = (y, x) if name in ("gt", "ge") else (x, y)
        return a.make(Condition(SIGNS[name], left, right), bool)
    relation = _relation(name, sympy.sympify(x), sympy.sympify(y))
    truth = a.env.decide(*relation)
    return a.make(relation if truth is None else truth, bool)


def _relation(name: str, x: Any, y: Any) -> tuple[str, Any]:
    """A comparison of integers, as a comparison of their difference with 0."""
    if name in ("eq", "ne"):
        return f"{name}0", x - y
    difference = x - y if name in ("ge", "gt") else y - x
    return "ge0", difference if name in ("ge", "le") else difference - 1


def one_is(truth: bool, a: Number, b: Number) -> Number:
    """Whether one of two relations has this truth: decided at once, since a later branch would decide it anyway, and by one
    side where that suffices."""
    sides = (a, b)
    if any(n.known() is truth for n in sides):
        return a.wrap_bool(True)
    enough = [n for n in sides if n.known() is None and bool(n.hint) is truth]
    return a.wrap_bool(any(n.truth() is truth for n in (enough[-1:] or sides)))


def both(a: Number, b: Number) -> Number:
    """a and b."""
    return a.wrap_bool(not one_is(False, a, b).truth())


def opposite(a: Number) -> Number:
    """not a."""
    return a.wrap_bool(not a.bool_())


def chosen(a: Number, yes: Number, no: Number) -> Number:
    """yes if a else no."""
    return yes if a.bool_() else no


def either(a: Number, b: Number) -> Number:
    """a or b."""
    return one_is(True, a, b)


# ---- functions of Python on numbers
FUNCTIONS: dict[Callable, Callable] = {
    operator.add: partial(binary, "add"),
    operator.sub: partial(binary, "sub"),
    operator.mul: partial(binary, "mul"),
    operator.truediv: partial(divided, "truediv"),
    operator.floordiv: partial(divided, "floordiv"),
    operator.mod: partial(divided, "mod"),
    operator.pow: power,
    operator.neg: negative,
    operator.pos: lambda a: a,
    operator.abs: absolute,
    abs: absolute,
    math.floor: partial(whole, sm.Floor, math.floor),
    math.ceil: partial(whole, sm.Ceil, math.ceil),
    math.trunc: partial(whole, sm.Trunc, math.trunc),
    math.isnan: is_nan,
    math.isinf: is_infinite,
    math.isfinite: is_finite,
    math.isclose: is_close,
    round: rounded,
    **{function: partial(compare, name) for name, function in COMPARISONS.items()},
}
OF_MATH = {(getattr(math, name), arity): name for name, arity in sf.MATH}  # (function, number of arguments) -> its name


def apply(function: Callable, numbers: list[Number]) -> Number | None:
    """A function of the operator or math module on numbers, as Python computes it (torch's own operators of SymFloat round
    otherwise, and ask things). None where it is none that is known here. Raises: NotReal, and what Python raises."""
    known = FUNCTIONS.get(function)
    if known is not None:
        return known(*numbers)
    name = OF_MATH.get((function, len(numbers)))
    return None if name is None else of_math(name, *numbers)
