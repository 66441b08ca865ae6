"""Sizes that are not known while compiling: the functions by which every stage asks about them. No sympy here: it is imported
when the first symbol is made (`shapes/environment.py`: `Env`; `shapes/integer_math.py`: the functions that expressions are made
of).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher

from bytejit.common.light_dataclass import light_dataclass

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
    """The value of a number while the graph was traced; a plain number is its own. Adds no condition."""
    return x.node.hint if isinstance(x, _SYMBOLIC) else x


def expr(x: Any) -> Any:
    """An int where the number is known (or became known), else its sympy expression."""
    return x.node.public if isinstance(x, _SYMBOLIC) else x


def same(a: Any, b: Any) -> bool:
    """Whether two sizes, or tuples of them, are the same as far as is known. Adds no condition."""
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or expr(a) == expr(b)


def text(expression: Any) -> str:
    """Python text of an expression, with operators only: `s0*(s1//2) + 3`. Of a SymInt: of its expression."""
    expression = expr(expression)
    if isinstance(expression, int):
        return repr(expression)
    from . import integer_math

    return integer_math.text(expression)


class NotReal(Exception):
    """An operation on symbolic floats whose result for their current values is not a float. It is made with constants instead."""


@light_dataclass(frozen=True)
class Manner:
    """How torch's C++ runs a call on symbolic sizes, kept so that it does the same whenever the call is inferred again.

    `decompose`: composite ops by torch's Python decompositions. `relaxed`: a symbol that is not 1 now is taken for one that
    never is, without a condition: right where that decides nothing but how a new result is computed. `numbers`: floats that it
    takes as plain numbers stay symbolic (`plain_floats.py`).
    """

    env: Any
    decompose: bool = False
    relaxed: bool = False
    numbers: bool = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, calls run in this manner."""
        env = self.env
        was = env.relaxed, env.taken
        env.relaxed = self.relaxed
        if self.numbers and env.taken is None:
            env.taken = env.on_its_side
        try:
            with enable_python_dispatcher() if self.decompose else nullcontext():
                yield
        finally:
            env.relaxed, env.taken = was


def manner_of(node: Any) -> Any:
    """A context manager in which a call runs in the manner in which this graph node was traced."""
    manner = node.meta.get("manner")
    return nullcontext() if manner is None else manner()


def decomposes(node: Any) -> bool:
    """Whether torch's Python decompositions take over this call."""
    manner = node.meta.get("manner")
    return manner is not None and manner.decompose


def known(x: Any) -> int:
    """The number as an int. A symbolic one becomes the constant that it was while tracing, with a condition."""
    return int(x)
