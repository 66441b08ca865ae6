"""Comparisons whose outcome the range of an operand decides for all numbers.

NVIDIA's assembler takes `x * x > -1` and `exp(x) >= 0` for true. They are false where x is nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bytejit.codegen.loops.expr import Expr
from bytejit.common.dtypes import FLOATS

INF = math.inf
Range = tuple[float, float]
ANYTHING = (-INF, INF)
DEEP = 6  # operations that are looked through
_NOT_BELOW_ZERO = frozenset("abs exp exp2 sqrt rsqrt sigmoid normal_cdf tanh_cdf erfc".split())
_OF_OPERANDS: dict[str, Callable[..., Range]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "to": lambda a: a,
    "narrow": lambda a: a,
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: _product(a, b),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "select": lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1])),
}
_DECIDES: dict[str, Callable[[Range, Range], bool]] = {
    "gt": lambda a, b: a[0] > b[1],
    "ge": lambda a, b: a[0] >= b[1],
    "lt": lambda a, b: a[1] < b[0],
    "le": lambda a, b: a[1] <= b[0],
}


def _product(a: Range, b: Range) -> Range:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def range_of(e: Expr, deep: int = DEEP) -> Range:
    """What the numbers of a value lie between, nan left out."""
    if e.kind == "const":
        return ANYTHING if e.attr != e.attr else (float(e.attr), float(e.attr))
    if e.kind != "op" or not deep:
        return ANYTHING
    if e.name in _NOT_BELOW_ZERO or e.name == "mul" and e.args[0] is e.args[1]:
        return 0.0, INF
    if e.name not in _OF_OPERANDS:
        return ANYTHING
    return _OF_OPERANDS[e.name](*(range_of(a, deep - 1) for a in e.args))


def decided(e: Expr) -> bool:
    """Whether an op is a comparison of floats that holds for all numbers."""
    if e.name not in _DECIDES or e.args[0].dtype not in FLOATS:
        return False
    a, b = (range_of(x) for x in e.args)
    return _DECIDES[e.name](a, b)
