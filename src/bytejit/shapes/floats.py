"""Expressions over floats: functions that are opaque to sympy, and computed at the call in Python's own order.

A class says which Python function it is (`real`), how it prints (`form`, over the texts of its arguments), and whether Python
may raise, or return no float, for some arguments (`partial`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import sympy


class FloatFunction(sympy.Function):
    """A float made of floats and integers."""

    real: Callable = staticmethod(float)
    form = ""
    partial = False

    def _eval_evalf(self, prec: int) -> Any:
        """sympy would compute this where all arguments are numbers, with its own rounding."""
        return self


class Odd(sympy.Function):
    """A float that sympy has no number for, by its place in ODD."""

    nargs = 1


ODD = ((-0.0, "-0.0"), (math.inf, "math.inf"), (-math.inf, "-math.inf"), (math.nan, "math.nan"))


def number(x: Any) -> Any:
    """A Python number as a sympy number, exact to the last bit."""
    if not isinstance(x, float):
        return sympy.sympify(int(x) if isinstance(x, bool) else x)  # sympy has truth values of its own
    if math.isfinite(x) and (x != 0 or math.copysign(1, x) > 0):
        return sympy.Float(x)
    return Odd(next(i for i, (v, _) in enumerate(ODD) if repr(v) == repr(x)))


def text_of(x: float) -> str:
    """Python text of a float: one that reads back, for infinities and nan too."""
    return repr(x) if math.isfinite(x) else "math.nan" if x != x else "math.inf" if x > 0 else "-math.inf"


def _function(name: str, real: Callable, form: str, arity: int = 1, partial: bool = False) -> type[FloatFunction]:
    return type(
        name,
        (FloatFunction,),
        {
            "nargs": arity,
            "real": staticmethod(real),
            "form": form,
            "partial": partial,
            "__doc__": f"{form} of floats.",
            "__module__": __name__,
        },
    )


FloatAdd = _function("FloatAdd", operator.add, "({0} + {1})", 2)
FloatSub = _function("FloatSub", operator.sub, "({0} - {1})", 2)
FloatMul = _function("FloatMul", operator.mul, "({0}*{1})", 2)
TrueDiv = _function("TrueDiv", operator.truediv, "({0}/{1})", 2, True)
FloatFloorDiv = _function("FloatFloorDiv", operator.floordiv, "({0}//{1})", 2, True)
FloatMod = _function("FloatMod", operator.mod, "({0}%{1})", 2, True)
FloatPow = _function("FloatPow", operator.pow, "({0}**{1})", 2, True)
FloatSqrt = _function("FloatSqrt", math.sqrt, "math.sqrt({0})", 1, True)
ToFloat = _function("ToFloat", float, "float({0})")
RoundTo = _function("RoundTo", round, "round({0}, {1})", 2, True)

INFIX: dict[str, type[FloatFunction]] = {
    "add": FloatAdd,
    "sub": FloatSub,
    "mul": FloatMul,
    "truediv": TrueDiv,
    "floordiv": FloatFloorDiv,
    "mod": FloatMod,
    "pow": FloatPow,
}


def _of_math() -> dict[tuple[str, int], type[FloatFunction]]:
    """(name in math, arity) -> its class; cbrt and exp2 came with Python 3.11."""
    one = (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh fabs cbrt degrees "
        "radians erf erfc gamma lgamma"
    )
    two = "pow atan2 fmod copysign hypot remainder log nextafter"
    total = {"atan", "tanh", "asinh", "fabs", "cbrt", "erf", "erfc", "atan2", "copysign", "radians"}
    found: dict[tuple[str, int], type] = {("sqrt", 1): FloatSqrt}
    for names, arity in ((one, 1), (two, 2), ("hypot", 3), ("hypot", 4)):
        for name in names.split():
            args = ", ".join(f"{{{i}}}" for i in range(arity))
            found[name, arity] = _function(
                f"Math_{name}_{arity}", getattr(math, name), f"math.{name}({args})", arity, name not in total
            )
    return found


MATH = _of_math()
