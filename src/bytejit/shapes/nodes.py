"""The numbers that programs compute with in place of sizes: the node behind a `torch.SymInt`, and conditions on them."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch

from . import floats as sf
from . import integer_math as sm
from .layout import channels_last, dense, in_order
from .symbols import NotReal


class Environment(Protocol):
    """What a node asks of the symbols around it: `environment.Env`."""

    version: int

    def simplified(self, e: Any) -> Any: ...
    def public(self, e: Any) -> Any: ...
    def value(self, e: Any) -> Any: ...
    def decide(self, kind: str, d: Any) -> bool | None: ...
    def ask(self, kind: str, d: Any) -> bool: ...
    def record_as_is(self, relation: Condition) -> None: ...
    def equal_hint(self, e: Any) -> Any: ...
    def is_total(self, e: Any) -> bool: ...
    def compute(self, name: str, a: Any, b: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
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
            return _RELATIONS[self.op.removeprefix("not ")](left, sm.value(self.right, values)) != self.op.startswith("not ")
        except (ArithmeticError, ValueError):
            return False

    def symbols(self) -> set:
        """The symbols in it."""
        return set().union(*(e.free_symbols for e in (self.left, self.right) if isinstance(e, sympy.Basic)))

    def __repr__(self) -> str:
        return self.text()


_OPERATORS: dict[str, Callable] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "pow": operator.pow,
    "floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}
_COMPARE: dict[str, Callable] = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
                                 "gt": operator.gt, "ge": operator.ge}


class Node:
    """The node behind a torch.SymInt, SymFloat or SymBool, with the methods that torch asks of one.

    `e`: an int, float, bool, an expression, or (for SymBool) what `Env.ask` takes: (kind, difference) or a Condition.
    """

    __slots__ = ("env", "e", "kind", "_at", "_simple")

    def __init__(self, env: Environment, e: Any, kind: type) -> None:
        self.env, self.e, self.kind = env, e, kind
        self._at, self._simple = -1, e

    def __repr__(self) -> str:
        return self.str()

    @property
    def value(self) -> Any:
        """The expression as far as it is known now."""
        if self._at != self.env.version:
            if self.kind is not bool:
                self._simple = self.env.simplified(self.e)
            self._at = self.env.version
        return self._simple

    @property
    def public(self) -> Any:
        """The value as later stages take it."""
        return self.env.public(self.e) if self.kind is not bool else self.truth()

    @property
    def hint(self) -> Any:
        """The value when traced. Adds no condition."""
        if self.kind is not bool:
            return self.env.value(self.value)
        return self._relation_at_hint() if not isinstance(self.e, bool) else self.e

    def _relation_at_hint(self) -> bool:
        if isinstance(self.e, Condition):
            return _RELATIONS[self.e.op](self.env.value(self.e.left), self.env.value(self.e.right))
        kind, d = self.e
        at = self.env.value(self.env.simplified(d))
        return {"ge0": at >= 0, "eq0": at == 0, "ne0": at != 0}[kind]

    def truth(self) -> bool:
        """Decide a relation; what decides it becomes a condition where it was not known."""
        if isinstance(self.e, bool):
            return self.e
        if isinstance(self.e, Condition):
            truth = self._relation_at_hint()
            self.env.record_as_is(self.e if truth else negated(self.e))
            return truth
        return self.env.ask(*self.e)

    def known(self) -> bool | None:
        """The truth of a relation as far as it is known without a condition."""
        if isinstance(self.e, bool):
            return self.e
        return None if isinstance(self.e, Condition) else self.env.decide(*self.e)

    def make(self, e: Any, kind: type | None = None) -> Node:
        return Node(self.env, e, kind or self.kind)

    # ---- kinds
    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def require_hint(self, fallback: Any = None) -> Any:
        return self.hint

    def is_constant(self) -> bool:
        """Whether torch may take the value as it is; of floats it cannot (its operators ask only ints and bools for it)."""
        return self.kind is not float and isinstance(self.value, (int, bool))

    def constant_int(self) -> int | None:
        return self.maybe_as_int()

    def constant_bool(self) -> bool | None:
        return self.e if isinstance(self.e, bool) else None

    @property
    def constant(self) -> Any:
        return self.value if isinstance(self.value, (int, float, bool)) else None

    def maybe_as_int(self) -> int | None:
        return self.value if self.kind is int and isinstance(self.value, int) else None

    def maybe_as_float(self) -> float | None:
        return self.value if self.kind is float and isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.known()

    def str(self) -> str:
        return sm.text(self.value) if self.kind is not bool else repr(self.e)

    _graph_repr = str

    def clone(self) -> Node:
        return self

    def wrap_int(self, n: int) -> Node:
        return Node(self.env, int(n), int)

    def wrap_float(self, x: float) -> Node:
        return Node(self.env, float(x), float)

    def wrap_bool(self, b: bool) -> Node:
        return Node(self.env, bool(b), bool)

    # ---- deciding: all of these may add a condition
    def int_(self) -> int:
        return int(self.env.equal_hint(self.value))

    def float_(self) -> float:
        return float(self.env.equal_hint(self.value))

    def bool_(self) -> bool:
        return self.truth() if self.kind is bool else self.ne(self.make(self.kind(0))).truth()

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return self.int_()

    def guard_float(self, file: str = "", line: int = 0) -> float:
        return self.float_()

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return self.bool_()

    expect_true = guard_bool

    def guard_or_false(self, file: str = "", line: int = 0) -> bool:
        """Asked where the way taken on False is right for all values: no condition where it is the hint's way too."""
        known = self.known()
        return known if known is not None else self.hint and self.truth()

    def guard_or_true(self, file: str = "", line: int = 0) -> bool:
        """The same for True."""
        known = self.known()
        return known if known is not None else self.hint or self.truth()

    def guard_size_oblivious(self, file: str = "", line: int = 0) -> bool:
        """Asked of sizes, whether one is 0 or 1: as `guard_or_false`."""
        return self.guard_or_false()

    def statically_known_true(self, file: str = "", line: int = 0) -> bool:
        return self.known() is True

    def expect_size(self, file: str = "", line: int = 0) -> bool:
        return self.ge(self.wrap_int(0)).truth()

    # ---- arithmetic
    def _binary(self, name: str, other: Node) -> Node:
        a, b = self.value, other.value
        if not isinstance(a, sympy.Basic) and not isinstance(b, sympy.Basic):
            result = _OPERATORS[name](a, b)
            return self.make(result, type(result))
        if name == "truediv" or float in (self.kind, other.kind):
            return self._of_floats(sf.INFIX[name], self, other)
        return self.make(self.env.compute(name, a, b), int)

    def _of_floats(self, function: type, *nodes: Node) -> Node:
        """A float function of nodes. Raises: what Python raises at the values at hand, which become constants then; NotReal."""
        values = [n.value for n in nodes]
        try:
            at_hand = function.real(*(self.env.value(v) for v in values))
        except (ArithmeticError, ValueError):
            for v in values:
                self.env.equal_hint(v)
            raise
        if type(at_hand) is not float:
            raise NotReal
        if not any(isinstance(v, sympy.Basic) for v in values):
            return self.make(at_hand, float)
        made = function(*map(sf.number, values), evaluate=False)
        if function.partial and not self.env.is_total(made):
            self.env.record_as_is(Condition("is", made, float))
        return self.make(made, float)

    def add(self, other: Node) -> Node:
        return self._binary("add", other)

    def sub(self, other: Node) -> Node:
        return self._binary("sub", other)

    def mul(self, other: Node) -> Node:
        return self._binary("mul", other)

    def floordiv(self, other: Node) -> Node:
        return self._divided("floordiv", other)

    def mod(self, other: Node) -> Node:
        return self._divided("mod", other)

    def truediv(self, other: Node) -> Node:
        return self._divided("truediv", other)

    int_floordiv = floordiv
    int_truediv = float_truediv = truediv

    def _divided(self, name: str, other: Node) -> Node:
        if float not in (self.kind, other.kind) and other.eq(other.wrap_int(0)).truth():
            raise ZeroDivisionError("division by zero" if name == "truediv" else "integer division or modulo by zero")
        return self._binary(name, other)

    def pow(self, other: Node) -> Node:
        if self.kind is int and other.kind is int:
            exponent = other.int_()
            if exponent >= 0:
                return self._binary("pow", self.wrap_int(exponent))
            return self.sym_float().pow(self.wrap_float(exponent))
        return self._binary("pow", other)

    pow_by_natural = float_pow = pow

    def neg(self) -> Node:
        if self.kind is float:
            return self._binary("mul", self.wrap_float(-1.0))
        return self._binary("mul", self.wrap_int(-1))

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        if self.kind is float:
            return self._of_floats(sf.MATH["fabs", 1], self)
        return self if self.ge(self.wrap_int(0)).truth() else self.neg()

    def sym_max(self, other: Node) -> Node:
        return self._extreme("max", other, self.ge(other).known())

    def sym_min(self, other: Node) -> Node:
        return self._extreme("min", other, self.le(other).known())

    def _extreme(self, name: str, other: Node, mine: bool | None) -> Node:
        if mine is not None:
            return self if mine else other
        if float in (self.kind, other.kind):
            first = other.gt(self) if name == "max" else other.lt(self)
            return (other if first.truth() else self).sym_float()
        return self._binary(name, other)

    def sym_sum(self, others: list[Node]) -> Node:
        total = others[0]
        for other in others[1:]:
            total = total.add(other)
        return total

    def _bits(self, name: str, other: Node) -> Node:
        result = getattr(operator, name)(self.int_(), other.int_())
        return self.make(result, int)

    def lshift(self, other: Node) -> Node:
        return self.mul(self.wrap_int(1 << other.int_()))

    def rshift(self, other: Node) -> Node:
        return self.floordiv(self.wrap_int(1 << other.int_()))

    def bitwise_and(self, other: Node) -> Node:
        return self._bits("and_", other)

    def bitwise_or(self, other: Node) -> Node:
        return self._bits("or_", other)

    def bitwise_xor(self, other: Node) -> Node:
        return self._bits("xor", other)

    # ---- floats
    def sym_float(self) -> Node:
        if self.kind is float:
            return self
        e = self.value
        return self.make(sf.ToFloat(e, evaluate=False) if isinstance(e, sympy.Basic) else float(e), float)

    def _whole(self, function: type, real: Callable) -> Node:
        e = self.value
        if self.kind is int:
            return self
        if not isinstance(e, sympy.Basic):
            return self.make(real(e), int)
        try:
            real(self.env.value(e))
        except (ArithmeticError, ValueError):       # an infinity, nan
            self.env.equal_hint(e)
            raise
        made = function(e, evaluate=False)
        if sm.float_symbols(e):
            self.env.record_as_is(Condition("is", made, int))
        return self.make(made, int)

    def sqrt(self) -> Node:
        return self.of_math("sqrt")

    def of_math(self, name: str, *others: Node) -> Node:
        """math.name(self, *others)."""
        return self._of_floats(sf.MATH[name, 1 + len(others)], self, *others)

    def floor(self) -> Node:
        return self._whole(sm.Floor, math.floor)

    def ceil(self) -> Node:
        return self._whole(sm.Ceil, math.ceil)

    def trunc(self) -> Node:
        return self._whole(sm.Trunc, math.trunc)

    def round(self, ndigits: int | None = None) -> Node:
        result = round(self.float_() if self.kind is float else self.int_(), ndigits)
        return self.make(result, type(result))

    def is_integer(self) -> Node:
        return self.wrap_bool(True if self.kind is int else self.float_().is_integer())

    def __getattr__(self, name: str) -> Any:
        """math functions of floats as torch names them: sym_sqrt, sym_cos..."""
        plain = name.removeprefix("sym_")
        if plain == name or (plain, 1) not in sf.MATH:
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        return lambda: self.of_math(plain)

    # ---- comparison
    def _compare(self, name: str, other: Node) -> Node:
        a, b = self.value, other.value
        if not isinstance(a, sympy.Basic) and not isinstance(b, sympy.Basic):
            return self.wrap_bool(_COMPARE[name](a, b))
        if self.kind is bool or other.kind is bool:
            return self.wrap_bool(_COMPARE[name](int(self.bool_()), int(other.bool_())))
        if float in (self.kind, other.kind):
            left, right = (b, a) if name in ("gt", "ge") else (a, b)
            sign = {"eq": "==", "ne": "!=", "lt": "<", "gt": "<", "le": "<=", "ge": "<="}[name]
            return self.make(Condition(sign, left, right), bool)
        x, y = sympy.sympify(a), sympy.sympify(b)
        relation = {"eq": ("eq0", x - y), "ne": ("ne0", x - y), "le": ("ge0", y - x), "ge": ("ge0", x - y),
                    "lt": ("ge0", y - x - 1), "gt": ("ge0", x - y - 1)}[name]
        truth = self.env.decide(*relation)
        return self.make(relation if truth is None else truth, bool)

    def eq(self, other: Node) -> Node:
        return self._compare("eq", other)

    def ne(self, other: Node) -> Node:
        return self._compare("ne", other)

    def lt(self, other: Node) -> Node:
        return self._compare("lt", other)

    def le(self, other: Node) -> Node:
        return self._compare("le", other)

    def gt(self, other: Node) -> Node:
        return self._compare("gt", other)

    def ge(self, other: Node) -> Node:
        return self._compare("ge", other)

    # ---- logic: decided at once, since a later branch would decide it anyway, and by one side where that suffices
    def sym_and(self, other: Node) -> Node:
        return self.wrap_bool(not self._one_is(other, False))

    def sym_or(self, other: Node) -> Node:
        return self.wrap_bool(self._one_is(other, True))

    def _one_is(self, other: Node, truth: bool) -> bool:
        """Whether one of two relations has this truth."""
        sides = (self, other)
        if any(n.known() is truth for n in sides):
            return True
        enough = [n for n in sides if n.known() is None and bool(n.hint) is truth]
        return any(n.truth() is truth for n in (enough[-1:] or sides))

    def sym_not(self) -> Node:
        return self.wrap_bool(not self.bool_())

    def sym_ite(self, yes: Node, no: Node) -> Node:
        return yes if self.bool_() else no

    and_, or_ = sym_and, sym_or

    # ---- what torch's TensorImpl asks of a symbolic shape: sizes and strides are lists of nodes
    def is_contiguous(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(in_order(self, sizes, strides, range(len(sizes) - 1, -1, -1)))

    def is_channels_last_contiguous_2d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 4 and in_order(self, sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_contiguous_3d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 5 and in_order(self, sizes, strides, (1, 4, 3, 2, 0)))

    def is_channels_last_strides_2d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 4 and channels_last(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_strides_3d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 5 and channels_last(sizes, strides, (1, 4, 3, 2, 0)))

    def is_non_overlapping_anddense(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(dense(self, sizes, strides))

    def is_non_overlapping_and_dense_indicator(self, sizes: list, strides: list) -> Node:
        return self.wrap_int(int(dense(self, sizes, strides)))


_RELATIONS = {"<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne}
_NOT = {"==": "!=", "!=": "==", "<": "not <", "<=": "not <="}


def negated(c: Condition) -> Condition:
    """What holds where the condition does not. Only floats from outside can be nan."""
    if c.op in ("<", "<=") and not any(sm.float_symbols(e) for e in (c.left, c.right) if isinstance(e, sympy.Basic)):
        return Condition("<=" if c.op == "<" else "<", c.right, c.left)
    return Condition(_NOT[c.op], c.left, c.right)


_NAMED = "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge"
_BY_OPERATOR: dict[Callable, str] = {getattr(operator, name): name for name in _NAMED.split()} | {
    math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc", abs: "abs"}


def apply(function: Callable, args: tuple) -> Any:
    """A function of the operator or math module on numbers of which one is a symbolic float, as Python computes it (torch's own
    operators of SymFloat round otherwise, and ask things). None where it is none that is known here. Raises: NotReal, and what
    Python raises."""
    env = next(a.node.env for a in args if isinstance(a, (torch.SymInt, torch.SymFloat)))
    nodes = [a.node if isinstance(a, (torch.SymInt, torch.SymFloat)) else Node(env, a, float if type(a) is float else int)
             for a in args]
    name = _BY_OPERATOR.get(function)
    if name is not None:
        made = getattr(nodes[0], name)(*nodes[1:])
    elif (getattr(function, "__name__", ""), len(args)) in sf.MATH and getattr(math, function.__name__, None) is function:
        made = nodes[0].of_math(function.__name__, *nodes[1:])
    else:
        return None
    return {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[made.kind](made)
