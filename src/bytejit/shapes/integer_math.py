"""Expressions over sizes: sympy polynomials over symbols and the functions below. Their text, value and range."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import sympy

from .floats import ODD, FloatFunction, FloatMul, FloatSqrt, Odd, ToFloat, TrueDiv, text_of

INF = math.inf


class FloorDiv(sympy.Function):
    """a // b of integers, as Python divides. Terms of a that b divides are taken out."""

    nargs = 2
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) // int(b))
        if b == 1:
            return a
        if a == 0:
            return sympy.S.Zero
        whole, rest = split(a, b)
        if rest == 0:
            return whole
        if isinstance(rest, FloorDiv) and b.is_Integer and b > 0 and rest.args[1].is_Integer and rest.args[1] > 0:
            return whole + FloorDiv(rest.args[0], rest.args[1] * b)
        common = _common_factor(rest, b)
        if common != 1:
            return whole + FloorDiv(rest / common, b / common)
        return whole + cls(rest, b, evaluate=rest.is_Integer and b.is_Integer) if whole != 0 else None


class Mod(sympy.Function):
    """a % b of integers, with the sign of b, as in Python."""

    nargs = 2
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a.is_Integer and b.is_Integer and b != 0:
            return sympy.Integer(int(a) % int(b))
        if b == 1 or a == 0:
            return sympy.S.Zero
        whole, rest = split(a, b)
        if rest == 0:
            return sympy.S.Zero
        return cls(rest, b) if whole != 0 else None


class _OneOfTwo(sympy.Function):
    """One of two integers; `choose` of Python's ints says which."""

    nargs = 2
    is_integer = True
    choose: Callable[[int, int], int]

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a == b:
            return a
        return sympy.Integer(cls.choose(int(a), int(b))) if a.is_Integer and b.is_Integer else None


class Most(_OneOfTwo):
    """max(a, b) of integers."""

    choose = staticmethod(max)


class Least(_OneOfTwo):
    """min(a, b) of integers."""

    choose = staticmethod(min)


class BitAnd(sympy.Function):
    """a & b of integers: of those in two's complement without end, as Python's are. a | b and a ^ b are sums of it."""

    nargs = 2
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a == b:
            return a
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) & int(b))
        return cls(b, a) if str(b) < str(a) else None  # one form of both orders


class Floor(sympy.Function):
    """math.floor(a) of a float: an integer."""

    nargs = 1
    is_integer = True


class Ceil(sympy.Function):
    """math.ceil(a) of a float: an integer."""

    nargs = 1
    is_integer = True


class Trunc(sympy.Function):
    """int(a) of a float: an integer."""

    nargs = 1
    is_integer = True


class Round(sympy.Function):
    """round(a) of a float: an integer."""

    nargs = 1
    is_integer = True


def split(a: Any, b: Any) -> tuple[Any, Any]:
    """(whole, rest) with a == whole * b + rest, rest without a term that b divides."""
    whole: list[Any] = []
    rest: list[Any] = []
    for term in sympy.Add.make_args(a):
        quotient = term / b
        exact = quotient.as_numer_denom()[1] == 1
        (whole if exact else rest).append(quotient if exact else term)
    if rest and isinstance(b, sympy.Add):
        try:
            quotient, left = sympy.div(a, b)
        except sympy.PolynomialError:
            quotient, left = None, a
        if left == 0 and quotient.as_numer_denom()[1] == 1:
            return sympy.expand(quotient), sympy.S.Zero
    return sympy.Add(*whole), sympy.Add(*rest)


def _common_factor(a: Any, b: Any) -> Any:
    """A positive number or product of symbols that divides b and every term of a."""
    if isinstance(b, sympy.Add):
        return sympy.S.One
    common = sympy.gcd(b, a) if b.is_Integer else sympy.gcd_terms(a).as_coeff_mul()[0].gcd(b.as_coeff_Mul()[0])
    return common if common.is_Integer and common > 1 else sympy.S.One


def is_float(e: Any) -> bool:
    """Whether an expression is a float."""
    return isinstance(e, (float, FloatFunction, Odd, sympy.Float)) or isinstance(e, sympy.Symbol) and not e.is_integer


def float_symbols(e: Any) -> list:
    """The symbols in an expression that stand for floats, sorted."""
    return sorted((s for s in e.free_symbols if not s.is_integer), key=str)


def plain(e: Any) -> Any:
    """The expression, or its Python number where it is one."""
    if isinstance(e, sympy.Basic):
        if e.is_Integer:
            return int(e)
        if e.is_Float:
            return float(e)
        if isinstance(e, Odd):
            return ODD[int(e.args[0])][0]
    return e


def without_fractions(e: Any) -> Any:
    """The expression with FloorDiv in place of fractions, which are exact wherever they occur."""
    if not e.args or not any(
        a.is_Rational and not a.is_Integer or a.is_Pow and a.exp.is_negative for a in sympy.preorder_traversal(e)
    ):
        return e
    if isinstance(e, sympy.Function):
        return e.func(*map(without_fractions, e.args))
    numerator, denominator = e.as_numer_denom()
    if denominator != 1:
        return FloorDiv(without_fractions(numerator), without_fractions(denominator), evaluate=False)
    return e.func(*map(without_fractions, e.args))


# ---- Python text and values ----------------------------------------------------------------------------------------------

_SUM, _QUOTIENT, _PRODUCT, _ATOM = 1, 2, 3, 4  # -a*b is -(a*b), but -a//b is not -(a//b)


def text(e: Any) -> str:
    """Python text: the same value as the expression has, for ints in place of its symbols."""
    return _text(e)[0]


def _text(e: Any) -> tuple[str, int]:
    """The text, and the precedence of its outermost operator."""
    e = plain(e)
    if isinstance(e, (int, float)):
        words = text_of(e) if isinstance(e, float) else repr(e)
        return words, _SUM if words[0] == "-" else _ATOM
    if e.is_Symbol:
        return e.name, _ATOM
    numerator, denominator = e.as_numer_denom() if e.is_Rational or e.is_Mul or e.is_Add or e.is_Pow else (e, 1)
    if denominator != 1:
        return f"{_in(numerator, _PRODUCT)}//{_in(denominator, _ATOM)}", _QUOTIENT
    if e.is_Add:
        return _text_of_sum(e), _SUM
    if e.is_Mul:
        return "*".join(_in(f, _ATOM) for f in e.as_ordered_factors()), _PRODUCT
    if e.is_Pow:
        return f"{_in(e.base, _ATOM)}**{_in(e.exp, _ATOM)}", _PRODUCT
    if isinstance(e, FloatFunction):
        infix = e.form[0] == "("
        return e.form.format(*(_in(a, _ATOM) if infix else text(a) for a in e.args)), _ATOM
    return _TEXTS[type(e)](*e.args)


def _in(e: Any, needed: int) -> str:
    words, binds = _text(e)
    return words if binds >= needed else f"({words})"


def _text_of_sum(e: Any) -> str:
    out = ""
    terms = sorted(e.as_ordered_terms(), key=lambda t: t.could_extract_minus_sign())
    for term in terms:
        minus = term.could_extract_minus_sign()
        words = _in(-term if minus else term, _QUOTIENT if out else _PRODUCT)
        out = (f"-{words}" if minus else words) if not out else f"{out} {'-' if minus else '+'} {words}"
    return out


def _call(name: str) -> Callable:
    return lambda *args: (f"{name}({', '.join(map(text, args))})", _ATOM)


_TEXTS: dict[type, Callable] = {
    FloorDiv: lambda a, b: (f"{_in(a, _ATOM)}//{_in(b, _ATOM)}", _QUOTIENT),
    Mod: lambda a, b: (f"{_in(a, _ATOM)}%{_in(b, _ATOM)}", _QUOTIENT),
    Most: _call("max"),
    Least: _call("min"),
    BitAnd: lambda a, b: (f"({_in(a, _SUM)} & {_in(b, _SUM)})", _ATOM),
    Floor: _call("math.floor"),
    Ceil: _call("math.ceil"),
    Trunc: _call("int"),
    Round: _call("round"),
}

_VALUES: dict[type, Callable] = {
    FloorDiv: lambda a, b: a // b,
    Mod: lambda a, b: a % b,
    Most: max,
    Least: min,
    BitAnd: operator.and_,
    Floor: math.floor,
    Ceil: math.ceil,
    Trunc: int,
    Round: round,
}


def value(e: Any, values: dict) -> Any:
    """The value with ints for the symbols. Raises: ZeroDivisionError, OverflowError, as Python does."""
    if isinstance(e, (int, float)):
        return e
    if e.is_Symbol:
        return values[e]
    if e.is_Integer:
        return int(e)
    if not e.free_symbols and not isinstance(plain(e), sympy.Basic):
        return plain(e)
    if isinstance(e, FloatFunction):
        return e.real(*(value(a, values) for a in e.args))
    if e.is_Add or e.is_Mul or e.is_Rational:
        numerator, denominator = e.as_numer_denom()
        if denominator != 1:
            return value(numerator, values) // value(denominator, values)
        parts = [value(a, values) for a in e.args]
        return sum(parts) if e.is_Add else math.prod(parts)
    if e.is_Pow:
        base, exponent = value(e.base, values), value(e.exp, values)
        return base**exponent
    return _VALUES[type(e)](*(value(a, values) for a in e.args))


# ---- ranges ----------------------------------------------------------------------------------------------------------


def bounds(e: Any, of: Callable[[Any], tuple[float, float]]) -> tuple[float, float]:
    """Least and greatest value, both included, -inf and inf where unknown. `of`: what else is known of a symbol's or a
    function's range."""
    if e.is_Integer or e.is_Float or e.is_Rational:
        return float(e) if not e.is_Integer else int(e), float(e) if not e.is_Integer else int(e)
    if e.is_Symbol:
        return of(e)
    low, high = _bounds_of_parts(e, of)
    if e.is_Function:
        known = of(e)
        return max(low, known[0]), min(high, known[1])
    return low, high


def _bounds_of_parts(e: Any, of: Callable[[Any], tuple[float, float]]) -> tuple[float, float]:
    """The range that follows from those of the parts of a sum, a product, a function."""
    parts = [bounds(a, of) for a in e.args]
    if e.is_Add:
        return sum(p[0] for p in parts), sum(p[1] for p in parts)
    if e.is_Mul:
        out = parts[0]
        for p in parts[1:]:
            out = _product(out, p)
        return out
    if e.is_Pow:
        low, high = parts[0]
        if e.exp.is_Integer and e.exp > 0 and low >= 0:
            return low ** int(e.exp), high ** int(e.exp)
        if e.exp == -1 and low > 0:
            return 1 / high, 1 / low
        return -INF, INF
    if isinstance(e, (FloorDiv, TrueDiv)):
        return _quotient(parts[0], parts[1], isinstance(e, FloorDiv))
    if isinstance(e, Mod):
        return (0, parts[1][1] - 1) if parts[1][0] > 0 else (-INF, INF)
    if isinstance(e, (Most, Least)):
        pick = max if isinstance(e, Most) else min
        return pick(parts[0][0], parts[1][0]), pick(parts[0][1], parts[1][1])
    if isinstance(e, BitAnd):
        above = [high for low, high in parts if low >= 0]  # what has a sign of 0 clears that of the other, and bits above its own
        return (0, min(above)) if above else (-INF, INF)
    if isinstance(e, FloatMul):
        return _product(*parts)
    if isinstance(e, ToFloat):
        return parts[0]
    if isinstance(e, FloatSqrt) and parts[0][0] >= 0:
        low, high = (math.sqrt(p) if math.isfinite(p) else p for p in parts[0])
        return low, high
    if isinstance(e, (Floor, Ceil, Trunc, Round)):
        near = _NEAR[type(e)]
        low, high = (near(p) if math.isfinite(p) else p for p in parts[0])
        return low, high
    return -INF, INF


_NEAR: dict[type, Callable[[float], int]] = {Floor: math.floor, Ceil: math.ceil, Trunc: math.trunc, Round: round}


def _times(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _product(a: tuple, b: tuple) -> tuple:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _quotient(a: tuple, b: tuple, whole: bool) -> tuple:
    if b[0] <= 0:
        return -INF, INF

    def over(x: Any, y: Any) -> Any:
        if not math.isfinite(x):
            return x
        if not math.isfinite(y):
            return (-1 if whole else 0.0) if x < 0 else 0
        return x // y if whole else x / y

    corners = [over(x, y) for x in a for y in b]
    return min(corners), max(corners)
