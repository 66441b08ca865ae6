"""Arithmetic of the program on symbolic numbers, and the nodes and texts of what comes of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from bytejit.compat import numpy_types
from bytejit.fake.tensor import Fake
from bytejit.guards.conditions import SizeCondition
from bytejit.shapes.symbols import NotReal, is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.numpy_values import NumpyVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import is_open
from bytejit.tracer.core.values import Known, SymVar, TensorVar, Var
from bytejit.tracer.sizes.dynamic import NUMBERS
from bytejit.tracer.sizes.numpy_numbers import apply_numpy

from .called_anew import call_anew, is_called_anew
from .numpy_numbers import plain_number

FUNCTIONS_OF: dict[str, Callable] = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Most": max,
    "Least": min,
    "BitAnd": operator.and_,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Trunc": int,
    "Round": round,
}


CLOSE = {"rel_tol": 1e-09, "abs_tol": 0.0}  # math.isclose's own

# Symbols and operations in the operands of a step of the program's arithmetic. Above it numbers are taken as they are now: what
# is known of sums of products costs their square, and a loop such as gcd's makes each number of the one before.
MOST_TERMS = 100

OF_INTEGERS = {operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor}  # symbols take floats, too


def _now(number: Any) -> Any:
    """The value of a number in this call, which becomes a guard."""
    return float(number) if isinstance(number, torch.SymFloat) else int(number) if isinstance(number, torch.SymInt) else number


def _terms(number: Any) -> int:
    """Number of symbols, constants and operations in an expression; counting stops a little above MOST_TERMS."""
    if not is_symbolic(number):
        return 0
    count, left = 0, [number.node.e]
    while left and count <= MOST_TERMS:
        count += 1
        left += getattr(left.pop(), "args", ())
    return count


# library functions that symbols pass through
class SymbolicNumbers(Component):
    """The part of the tracer that computes with symbolic numbers."""

    def number(self, value: Any) -> Var:
        """A number that may be symbolic, as a Var."""
        if isinstance(value, torch.SymBool):
            value = bool(value)
        elif is_symbolic(value):
            known = value.node.value
            if not isinstance(known, NUMBERS):
                return SymVar(value)
            value = known
        return self.t.values.constant(value)

    def number_of(self, v: Var) -> Any:
        """The int, float or symbol that a Var is; None for others."""
        if type(v) is SymVar:
            return v.value
        return v.obj if isinstance(v, Known) and type(v.obj) in NUMBERS else None

    def on_numbers(self, function: Callable, *args: Var) -> Var | None:
        """function(*args) where all args are numbers; None otherwise. Raises: Raised."""
        real = [self.number_of(a) for a in args]
        if any(r is None for r in real):
            return None
        try:
            whole = real if function in OF_INTEGERS else real[1:] if function is round else ()
            if any(isinstance(r, (float, torch.SymFloat)) for r in whole):
                raise TypeError
            return self.number(self.computed(function, real))
        except (ArithmeticError, ValueError, TypeError):  # Python's own words
            return self.t.operators.fold(function, *map(_now, real))
        except Break:  # the program may only keep it
            if (kept := self.t.reads.kept(function, args)) is None:
                raise
            return kept

    def computed(self, function: Callable, numbers: list) -> Any:
        """function(*numbers), of which some are symbolic. A float is computed as Python does."""
        if sum(map(_terms, numbers)) > MOST_TERMS:
            return function(*map(_now, numbers))
        if not is_math(function) and not any(isinstance(n, (float, torch.SymFloat)) for n in numbers):
            if function is operator.pow and numbers[1] < 0:  # a float, which torch refuses to make of negative sizes
                return function(*map(_now, numbers))
            return function(*numbers)
        from bytejit.shapes.nodes import apply

        try:
            found = apply(function, tuple(numbers))
        except NotReal:  # a complex number: of what the floats are now
            return function(*map(_now, numbers))
        return function(*numbers) if found is None else found

    def symbolic_call(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """A call of a library function that symbols pass through; None where it is none, or no symbol is among the args."""
        if fn is math.isclose and len(args) == 2 and kwargs.keys() <= CLOSE.keys():
            args, kwargs = [*args, *(kwargs.get(k) or Known(default) for k, default in CLOSE.items())], {}
        if kwargs and (made := self._named_call(fn, args, kwargs)) is not None:
            return made
        if kwargs or not args:
            return None
        try:
            function = PASSED.get(fn) or (fn if is_math(fn) else None)
            applied = fn is abs or isinstance(fn, numpy_types.FUNCTION_TYPES[:1])
            of_text = fn in OF_TEXTS and any(is_open(self.t.values.real(a)) for a in args)
            anew = of_text or fn not in PASSED and is_called_anew(fn, len(args))
        except TypeError:
            return None
        if function is None and not applied and not anew:
            return None
        args = [self.t.values.real(a) for a in args]
        if anew and (found := call_anew(self.t, fn, args)) is not None:
            return found
        if applied and any(type(a) is NumpyVar for a in args) and (found := apply_numpy(self.t, fn, args)) is not None:
            return found
        if function is None:
            return None
        args = [plain_number(self.t, a) if type(a) is NumpyVar and takes_plain(fn, a.real) else a for a in args]
        if fn is round and type(args[-1]) is SymVar and len(args) > 1 and (found := call_anew(self.t, fn, args)) is not None:
            return found
        if any(type(a) is SymVar for a in args):
            return self.on_numbers(function, *args)
        return None

    def _named_call(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """A method of a text or a plain value that changes, with arguments by name; None for other calls."""
        given = [self.t.values.real(a) for a in args] if is_called_anew(fn, len(args)) else []
        named = {k: self.t.values.real(v) for k, v in kwargs.items()}
        if not any(map(is_open, given)) or not all(type(v) is Known for v in named.values()):
            return None
        return call_anew(self.t, fn, given, {k: self.t.const(v) for k, v in named.items()})

    def tensor_length(self, v: TensorVar) -> Var | None:
        """len(tensor) where it is symbolic."""
        return self.number(v.fake.shape[0]) if v.fake.dim() and is_symbolic(v.fake.shape[0]) else None

    def number_node(self, value: Any) -> Any:
        """A graph node (or a plain number) for a symbolic number: placeholders, and arithmetic on them."""
        if isinstance(value, torch.SymBool):
            return bool(value)
        return self.expression_node(value.node.public)

    def expression_node(self, e: Any) -> Any:
        """The node that computes an expression; one for each."""
        if isinstance(e, NUMBERS):
            return e
        found = self.t.sizes.number_nodes.get(e)
        if found is None:
            function, parts = parts_of(e)
            args = tuple(self.expression_node(p) for p in parts)
            if not any(isinstance(a, torch.fx.Node) for a in args):
                return function(*args)
            found = self.t.graph.call_function(function, args)
            found.meta["val"] = self.sym_of(e)
            found.meta["where"] = self.t.tensors.where() if self.t.frame is not None else None
            self.t.sizes.number_nodes[e] = found
        return found

    def sym_of(self, e: Any) -> Any:
        """An expression as a SymInt or SymFloat."""
        from bytejit.shapes.integer_math import is_float
        from bytejit.shapes.nodes import Node

        env = self.t.sizes.environment()
        return torch.SymFloat(Node(env, e, float)) if is_float(e) else torch.SymInt(Node(env, e, int))

    def number_text(self, value: Any, at: Any) -> str:
        """Python text of a symbolic number over sources."""
        from bytejit.guards.conditions import expression_text

        e = value.node.public
        if isinstance(e, NUMBERS):
            return repr(e) if math.isfinite(e) else f"float('{e}')"
        return expression_text(at, self.expr_guard(e))

    def expr_guard(self, e: Any, text: str | None = None) -> SizeCondition:
        """Text over sizes, with the source of each symbol in it. `e`: an expression, or a Condition with its `text`."""
        from bytejit.shapes.integer_math import text as text_of

        symbols = e.symbols() if hasattr(e, "symbols") else e.free_symbols
        return SizeCondition(text or text_of(e), tuple((str(s), self.t.sizes.sources[s]) for s in sorted(symbols, key=str)))


def numbers_in(x: Any) -> Any:
    """All sizes, strides and numbers in a nest of arguments."""
    if type(x) is Fake:
        yield from (*x.m.shape, *x.m.stride, x.m.offset)
    elif isinstance(x, torch.Tensor):
        yield from x.shape
        yield from x.stride()
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from numbers_in(part)
    elif isinstance(x, dict):
        yield from numbers_in(list(x.values()))
    elif isinstance(x, slice):
        yield from (x.start, x.stop, x.step)
    else:
        yield x


def parts_of(e: Any) -> tuple[Callable, tuple]:
    """An expression as one Python function of smaller ones."""
    from bytejit.shapes import integer_math as sm

    if e.is_Add or e.is_Mul:
        terms = e.as_ordered_terms() if e.is_Add else e.as_ordered_factors()
        last = terms[-1]
        rest = e.func(*terms[:-1])
        if e.is_Add and last.could_extract_minus_sign():
            return operator.sub, (sm.plain(rest), sm.plain(-last))
        return operator.add if e.is_Add else operator.mul, (sm.plain(rest), sm.plain(last))
    if e.is_Pow:
        return operator.pow, (sm.plain(e.base), sm.plain(e.exp))
    return getattr(e, "real", None) or FUNCTIONS_OF[type(e).__name__], tuple(map(sm.plain, e.args))


def is_math(fn: Any) -> bool:
    """Whether it is a function of the math module."""
    return fn is not None and getattr(math, getattr(fn, "__name__", None) or "", None) is fn


def takes_plain(fn: Any, number: Any) -> bool:
    """Whether a function of one number does with a NumPy number as with the Python number of the same value."""
    if fn is operator.index:
        return type(number.item()) is int
    return fn in (int, float) or isinstance(number, float) and is_math(fn)


def _int(x: Any) -> Any:
    return torch.SymInt(x.node.trunc()) if isinstance(x, torch.SymFloat) else x if isinstance(x, torch.SymInt) else int(x)


def _float(x: Any) -> Any:
    return torch.sym_float(x)


def _round(kind: str) -> Callable:
    def function(x: Any) -> Any:
        if isinstance(x, torch.SymFloat):
            return torch.SymInt(getattr(x.node, kind)())
        return x if isinstance(x, torch.SymInt) else getattr(math, kind)(x)

    return function


OF_TEXTS = frozenset((int, float, complex, abs, round, hash))
PASSED: dict[Any, Callable] = {
    int: _int,
    float: _float,
    abs: abs,
    math.floor: _round("floor"),
    math.ceil: _round("ceil"),
    math.trunc: _round("trunc"),
    round: round,
    math.prod: math.prod,
    operator.index: _int,
    torch.sym_int: _int,
    torch.sym_float: _float,
    torch.sym_max: torch.sym_max,
    torch.sym_min: torch.sym_min,
    torch.sym_sum: torch.sym_sum,
}
