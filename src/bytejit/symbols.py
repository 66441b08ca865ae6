"""Sizes that are not known while compiling: what every stage asks about them. No sympy here: it is imported when the
first symbol is made (`symbol_env.py`: `Env`; `symbol_math.py`: the functions that expressions are made of).

A symbolic size is a `torch.SymInt` whose node is a `symbol_env.Node`. Its expression is a sympy expression over integer
symbols s0, s1, ... and the functions of `symbol_math.py`; `Env.conditions` are the guards that hold of them.
"""
from __future__ import annotations

from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(x: object) -> bool:
    """Whether a number is a symbol or made of symbols."""
    return isinstance(x, _SYMBOLIC)


def any_symbolic(xs: Any) -> bool:
    """Whether one of several numbers is symbolic."""
    for x in xs:
        if isinstance(x, _SYMBOLIC):
            return True
    return False


def env_of(*xs: object) -> Any:
    """The `Env` of the first symbolic number among these; None without one."""
    for x in xs:
        if isinstance(x, _SYMBOLIC):
            return x.node.env
    return None


def hint(x: Any) -> Any:
    """What the number was when the graph was traced; a plain number is itself. Adds no condition."""
    return x.node.hint if isinstance(x, _SYMBOLIC) else x


def expr(x: Any) -> Any:
    """An int where the number is known (or became known), else its sympy expression."""
    return x.node.public if isinstance(x, _SYMBOLIC) else x


def text(expression: Any) -> str:
    """Python text of an expression, with operators only: `s0*(s1//2) + 3`. Of a SymInt: of its expression."""
    expression = expr(expression)
    if isinstance(expression, (int, float)):
        return repr(expression)
    from . import symbol_math
    return symbol_math.text(expression)


def known(x: Any) -> int:
    """The number as an int: a symbolic one becomes the constant that it was when traced, as a condition of its Env."""
    return int(x)
