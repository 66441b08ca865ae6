"""Conditions on symbolic sizes and numbers. The traced code relies on them, so they become guards."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy

from bytejit.common.light_dataclass import light_dataclass

from . import integer_math as sm

RELATIONS: dict[str, Callable] = {"<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne}
_NOT = {"==": "!=", "!=": "==", "<": "not <", "<=": "not <="}


@light_dataclass(frozen=True, slots=True)
class Condition:
    """`left op right`, where op is one of <= < == !=. Both sides are ints, floats or expressions over symbols. Where a side
    may be nan: `not <=` and `not <` too; `is` says that `left` can be computed, and of which type (`right`, a class) it is."""

    op: str
    left: Any
    right: Any

    def text(self) -> str:
        """Python text."""
        if self.op == "is":
            return f"type({sm.text(self.left)}) is {self.right.__name__}"
        if self.op.startswith("not "):
            return f"not {sm.text(self.left)} {self.op[4:]} {sm.text(self.right)}"
        return f"{sm.text(self.left)} {self.op} {sm.text(self.right)}"

    def holds(self, values: dict) -> bool:
        """Whether it holds for these values of the symbols."""
        try:
            left = sm.value(self.left, values)
            if self.op == "is":
                return type(left) is self.right
            return RELATIONS[self.op.removeprefix("not ")](left, sm.value(self.right, values)) != self.op.startswith("not ")
        except (ArithmeticError, ValueError):
            return False

    def symbols(self) -> set:
        """The symbols in it."""
        return set().union(*(e.free_symbols for e in (self.left, self.right) if isinstance(e, sympy.Basic)))

    def negated(self) -> Condition:
        """The condition that holds where this one does not. Only floats from outside can be nan."""
        if self.op in ("<", "<=") and not any(sm.float_symbols(e) for e in (self.left, self.right) if isinstance(e, sympy.Basic)):
            return Condition("<=" if self.op == "<" else "<", self.right, self.left)
        return Condition(_NOT[self.op], self.left, self.right)

    def __repr__(self) -> str:
        return self.text()


_SIGNS = {"ge0": "<=", "eq0": "==", "ne0": "!="}


def condition(kind: str, d: Any) -> Condition:
    """d >= 0, == 0 or != 0 with its negative terms on the other side."""
    terms = sympy.Add.make_args(d)
    minus = [-t for t in terms if t.could_extract_minus_sign()]
    plus = [t for t in terms if not t.could_extract_minus_sign()]
    left, right = sm.plain(sympy.Add(*minus)), sm.plain(sympy.Add(*plus))
    if kind != "ge0" and not isinstance(left, sympy.Basic):
        left, right = right, left
    return Condition(_SIGNS[kind], left, right)
