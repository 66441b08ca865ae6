"""From the tracer's symbolic numbers (`torch.SymInt`, `torch.SymFloat`) to sizes of codegen, and to Python text.

A size is an int or an `Index` over size symbols. What an index cannot say (a maximum, a rounded float) becomes a symbol
of its own, computed from the others at the call. A symbolic float is a `Real`.

Codegen treats both kinds of size alike. `codegen/loops/index_arithmetic.py` shows what holds for every value of the symbols
(`at_least`, `in_range`, exact division); choices (grain, tiles, libraries, inlining) use the hints, the values that the graph
was made with. A comparison of sizes that holds for some values only raises `index.Undecided`: within a row of the op table
the op becomes an extern call; anywhere else the graph runs through torch, counted. Kernels take symbols as i64 arguments.
Temporary buffers of symbolic size share slots (`Plan.slots`): blocks of memory that grow and are kept between calls
(`codegen/emit/memory.py`).
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec
from bytejit.shapes import symbols
from bytejit.shapes.symbols import same

from . import index as ix
from .index import Index, Size, Sym


def _arithmetic(function: Callable[[Any, Any], Any], sign: str) -> tuple[Callable, Callable]:
    """An operator of Reals, and the same with its operands exchanged. Python computes the result at the call."""

    def apply(a: Any, b: Any) -> Real:
        hints = [x.hint if type(x) is Real else x for x in (a, b)]
        if not all(type(x) in (int, float) and math.isfinite(x) for x in hints) or sign == "/" and hints[1] == 0:
            raise ix.Undecided(f"{a} {sign} {b} is known only at the call")
        return Real(f"({a} {sign} {b})", function(*hints))

    return apply, lambda a, b: apply(b, a)


@light_dataclass(frozen=True)
class Real:
    """A float that is known at the call only. text: Python text over the names of its symbols; hint: its value when traced.

    It is computed by Python at the call, in Python's own order and rounding; a kernel is passed its bits (`bits_of`).
    """

    text: str
    hint: float

    def __repr__(self) -> str:
        return self.text

    def _unknown(self, *_: Any) -> Any:
        """An operation that needs the value, which is known only at the call. Raises: Undecided: the op becomes a library
        call."""
        raise ix.Undecided(f"{self.text} is known only at the call")

    def __neg__(self) -> Real:
        return Real(f"(-{self.text})", -self.hint)

    __add__, __radd__ = _arithmetic(operator.add, "+")
    __sub__, __rsub__ = _arithmetic(operator.sub, "-")
    __mul__, __rmul__ = _arithmetic(operator.mul, "*")
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv, "/")
    __abs__ = _unknown
    __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __float__ = _unknown

    @property
    def symbol(self) -> str:
        """The name of the input that it is; "" for one that is computed."""
        return self.text if self.text.isidentifier() else ""


def bits_of(x: float) -> int:
    """The bits of a float as an integer of 64 bits."""
    return _WHOLE.unpack(_DOUBLE.pack(x))[0]


_DOUBLE, _WHOLE = struct.Struct("<d"), struct.Struct("<q")


class Sizes:
    """Converts the symbolic numbers of one graph. Equal expressions become equal sizes."""

    def __init__(self) -> None:
        self.made: dict[Any, Sym] = {}  # expressions that have a symbol of their own
        self.memo: dict[Any, Any] = {}

    def __call__(self, x: Any) -> Any:
        """`x` (a number, a spec, or these nested in tuples, lists, dicts and slices) with symbolic numbers as sizes and Reals."""
        if type(x) is Spec:
            return self.spec(x)
        if isinstance(x, (tuple, list)):
            return (list if isinstance(x, list) else tuple)(map(self, x))
        if isinstance(x, dict):
            return {k: self(v) for k, v in x.items()}
        if isinstance(x, slice):
            return slice(self(x.start), self(x.stop), self(x.step))
        return self.number(x) if symbols.is_symbolic(x) else x

    def spec(self, x: Spec) -> Spec:
        """A spec with sizes."""
        if not symbols.any_symbolic((*x.shape, *x.stride)):
            return x
        return Spec(tuple(map(self, x.shape)), tuple(map(self, x.stride)), x.dtype, x.device)

    def number(self, x: Any) -> Any:
        """A SymInt as a size, a SymFloat as a Real, a SymBool as a bool."""
        if isinstance(x, torch.SymBool):
            return bool(x)
        expression = symbols.expr(x)
        if isinstance(expression, (int, float)):
            return expression
        env = symbols.env_of(x)
        return ix.size_of(self.index(expression, env)) if isinstance(x, torch.SymInt) else self.real(expression, env)

    def index(self, e: Any, env: Any) -> Index:
        """An integer expression as an index."""
        found = self.memo.get(e)
        if found is None:
            found = self.memo[e] = self._index(e, env)
        return found

    def _index(self, e: Any, env: Any) -> Index:
        if e.is_Integer:
            return ix.index(int(e))
        if e.is_Symbol:
            return ix.index(Sym(e.name, env.hints[e], _low(env, e)))
        if e.is_Add or e.is_Mul:
            parts = [self.index(a, env) for a in e.args] if all(map(_whole, e.args)) else None
            if parts:
                out = parts[0]
                for p in parts[1:]:
                    out = out + p if e.is_Add else out * p
                return out
        if e.is_Pow and e.exp.is_Integer and 0 < e.exp <= 8:
            base = out = self.index(e.base, env)
            for _ in range(int(e.exp) - 1):
                out = out * base
            return out
        name = type(e).__name__
        if name in ("FloorDiv", "Mod"):
            a, b = (self.index(v, env) for v in e.args)
            if ix.at_least(b, 1, {}):
                return (ix.floordiv if name == "FloorDiv" else ix.mod)(a, b, {})
        if e not in self.made:
            self.made[e] = Sym(f"d{len(self.made)}", int(env.value(e)), _low(env, e), symbols.text(e))
        return ix.index(self.made[e])

    def real(self, e: Any, env: Any) -> Any:
        """A float expression as a Real."""
        return float(e) if e.is_Float or e.is_Integer else Real(symbols.text(e), float(env.value(e)))


def _whole(e: Any) -> bool:
    """Whether an expression is an integer for all values of its symbols."""
    return bool(e.is_integer)


def _low(env: Any, e: Any) -> float:
    low = env.range(e)[0]
    return int(low) if low > -ix.inf else low


def same_spec(a: Spec, b: Spec) -> bool:
    """Whether two specs are the same as far as is known. Adds no condition."""
    return a is b or a.dtype == b.dtype and a.device == b.device and same(a.shape, b.shape) and same(a.stride, b.stride)


class SizeText:
    """Prints sizes as Python. name(symbol, text): the local that holds a symbol; text: how it is computed, if it is."""

    def __init__(self, name: Callable[..., str]) -> None:
        self.name = name

    def __call__(self, x: Any) -> str:
        """A size, or a Real, as an expression that needs no parentheses around it."""
        if isinstance(x, int):
            return str(x)
        if isinstance(x, Real):
            return self.words(x.text)
        x = ix.index(x)
        parts = [f"{c} * {self.atom(a)}" if c != 1 else self.atom(a) for a, c in x.terms]
        if len(parts) == 1 and not x.const and x.terms[0][1] == 1:
            return parts[0]
        return "(" + " + ".join([*parts, str(x.const)] if x.const or not parts else parts) + ")"

    def atom(self, a: Any) -> str:
        """Prints one atom of a size."""
        if type(a) is Sym:
            return self.name(a.parts[0], a.text)
        if type(a) is ix.Prod:
            return "(" + " * ".join(self.atom(p) for p in a.parts) + ")"
        x, d = (self(p) for p in a.parts)
        return f"({x} {'//' if type(a) is ix.Div else '%'} {d})"

    def words(self, text: str) -> str:
        """Text over symbols (s0, s1, ...; f0, f1, ... of floats) with their locals."""
        return "(" + re.sub(r"\b[sf]\d+\b", lambda m: self.name(m[0]), text) + ")"

    def dims(self, sizes: Iterable[Size]) -> str:
        """A tuple of sizes."""
        return "(" + "".join(self(s) + ", " for s in sizes) + ")"
