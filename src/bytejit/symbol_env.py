"""The symbols of one trace: what is known of them, what was asked of them, and the numbers that programs compute with.

`Env.symbol` makes a `torch.SymInt` for a size. Arithmetic on it makes expressions; a comparison is decided from what is
known, else by the sizes at hand, and then becomes a condition: the compiled code is right wherever all conditions hold.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from . import symbol_math as sm

INF = math.inf
LARGEST = 2**48           # no size is larger
_SIGNS = {"ge0": "<=", "eq0": "==", "ne0": "!="}


@dataclass(frozen=True, slots=True)
class Condition:
    """`left op right`, where op is one of <= < == !=. Both sides are ints, floats or expressions over symbols."""

    op: str
    left: Any
    right: Any

    def text(self) -> str:
        """Python text."""
        return f"{sm.text(self.left)} {self.op} {sm.text(self.right)}"

    def symbols(self) -> set:
        """The symbols in it."""
        return set().union(*(e.free_symbols for e in (self.left, self.right) if isinstance(e, sympy.Basic)))

    def __repr__(self) -> str:
        return self.text()


class Env:
    """Symbols with their hints and ranges, and the conditions that the traced code relies on.

    `where`: called when a condition is recorded; its answer (a Where, or None) is kept with it.
    """

    def __init__(self, where: Callable[[], Any] | None = None) -> None:
        self.where = where or (lambda: None)
        self.hints: dict[sympy.Symbol, int] = {}
        self.given: dict[sympy.Symbol, tuple[float, float]] = {}      # the range that a symbol was made with
        self.ranges: dict[sympy.Symbol, tuple[float, float]] = {}     # and what conditions made of it
        self.replacements: dict[Any, Any] = {}      # a symbol or function -> what it equals
        self.relaxed = False                        # see `Manner`
        self.fixed = 0                              # how many symbols became constants
        self.version = 0                            # counts what was learnt: memories of answers end with it
        self._latest = 0
        self._facts: dict[tuple[str, Any], tuple[Condition, Any]] = {}
        self._memo: dict[tuple, Any] = {}
        self._answers: dict[tuple, bool | None] = {}

    def __repr__(self) -> str:
        return f"Env({', '.join(f'{s}={h}' for s, h in self.hints.items())}; {len(self._facts)} facts)"

    def symbol(self, name: str, hint: int, low: int | None = 2, high: int | None = None) -> torch.SymInt:
        """A new symbol in [low, high], None where unbounded. The range is not a condition: the maker guards it."""
        s = sympy.Symbol(name, integer=True)
        if s in self.hints:
            raise ValueError(f"there is a symbol {name} already")
        self.hints[s] = hint
        self.given[s] = self.ranges[s] = (
            -INF if low is None else low, (LARGEST if low is not None else INF) if high is None else high)
        return torch.SymInt(Node(self, s, int))

    def save(self) -> tuple:
        """What has been learnt up to now, for `restore`."""
        return dict(self.ranges), dict(self.replacements), dict(self._facts), self.fixed

    def restore(self, saved: tuple) -> None:
        """Go back to what was known at a `save`."""
        ranges, replacements, facts, self.fixed = saved
        self.ranges, self.replacements, self._facts = dict(ranges), dict(replacements), dict(facts)
        self._latest += 1
        self.version = self._latest

    # ---- what is known -----------------------------------------------------------------------------------------------
    def simplified(self, e: Any) -> Any:
        """The expression with what conditions say of its parts; an int where that makes it one."""
        if self.replacements and isinstance(e, sympy.Basic):
            key = ("simplified", e, self.version)
            found = self._memo.get(key)
            if found is None:
                found = e
                for _ in range(8):
                    new = found.xreplace(self.replacements)
                    if new == found:
                        break
                    found = sympy.expand(new)
                self._memo[key] = found
            e = found
        return sm.plain(e)

    def public(self, e: Any) -> Any:
        """The same without fractions: what a stage after the tracer is given."""
        e = self.simplified(e)
        return sm.without_fractions(e) if isinstance(e, sympy.Basic) else e

    def value(self, e: Any) -> Any:
        """The value at the hints."""
        return sm.value(e, self.hints) if isinstance(e, sympy.Basic) else e

    def range(self, e: Any) -> tuple[float, float]:
        """(least, greatest) value of an expression, as far as known; inf where unbounded."""
        e = self.simplified(e)
        if not isinstance(e, sympy.Basic):
            return e, e
        key = ("range", e, self.version)
        if key not in self._memo:
            self._memo[key] = sm.bounds(e, self.ranges.__getitem__)
        return self._memo[key]

    def decide(self, kind: str, d: Any) -> bool | None:
        """Whether `d >= 0` (ge0), `d == 0` (eq0) or `d != 0` (ne0) surely holds, surely does not, or neither."""
        d = self.simplified(d)
        if not isinstance(d, sympy.Basic):
            return {"ge0": d >= 0, "eq0": d == 0, "ne0": d != 0}[kind]
        if kind == "ne0":
            found = self.decide("eq0", d)
            return None if found is None else not found
        key = (kind, d, self.version)
        if key not in self._answers:
            self._answers[key] = self._decide_order(d) if kind == "ge0" else self._decide_zero(d)
        return self._answers[key]

    def _decide_order(self, d: Any) -> bool | None:
        if self.at_least_zero(d):
            return True
        return False if self.at_least_zero(-d - 1) else None

    def _decide_zero(self, d: Any) -> bool | None:
        if self.at_least_zero(d - 1) or self.at_least_zero(-d - 1):
            return False
        if ("ne0", _signed(d)) in self._facts:
            return False
        content = d.as_content_primitive()[0] if d.is_Add else 1
        constant, _ = d.as_coeff_Add()
        rest = (d - constant).as_content_primitive()[0] if constant != 0 else content
        if constant != 0 and rest.is_Integer and rest > 1 and constant % rest != 0:
            return False
        return None

    def at_least_zero(self, d: Any) -> bool:
        """Whether an expanded integer expression is never negative, as far as ranges and recorded facts show."""
        d = sympy.expand(d)
        low, _ = sm.bounds(d, self.ranges.__getitem__)
        if low >= 0:
            return True
        constant, rest = d.as_coeff_Add()
        for kind, known in self._facts:
            if kind == "ge0" and known.as_coeff_Add()[1] == rest and known.as_coeff_Add()[0] <= constant:
                return True
        return self._shifted_is_positive(d)

    def _shifted_is_positive(self, d: Any) -> bool:
        """The same by writing each part as its least value plus what is above: no coefficient may be negative then."""
        steps = {}
        for atom in _atoms(d):
            low, _ = sm.bounds(atom, self.ranges.__getitem__)
            if not math.isfinite(low) or int(low) != low:
                return False
            steps[atom] = sympy.Dummy(integer=True) + int(low)
        shifted = sympy.expand(d.xreplace(steps))
        return all(c >= 0 and t.is_polynomial() for t, c in shifted.as_coefficients_dict().items()) and bool(steps)

    # ---- what is asked -----------------------------------------------------------------------------------------------
    def ask(self, kind: str, d: Any) -> bool:
        """The truth of a relation: as known, else as the hints have it, which becomes a condition."""
        found = self.decide(kind, d)
        if found is not None:
            return found
        d = self.simplified(d)
        at_hint = self.value(d)
        truth = {"ge0": at_hint >= 0, "eq0": at_hint == 0, "ne0": at_hint != 0}[kind]
        if self.relaxed and at_hint != 0 and self.asks_for_one(kind, d):
            return truth
        if truth:
            self.record(kind, d)
        elif kind == "ge0":
            self.record("ge0", sympy.expand(-d - 1))
        else:
            self.record("ne0" if kind == "eq0" else "eq0", d)
        return truth

    def asks_for_one(self, kind: str, d: Any) -> bool:
        """Whether a relation asks if a symbol is 1: as itself, or as a factor."""
        constant, s = _signed(d.as_content_primitive()[1]).as_coeff_Add()
        return kind != "ge0" and s.is_Symbol and constant == -1

    def record(self, kind: str, d: Any) -> None:
        """Rely on a relation that holds at the hints from here on."""
        if kind != "ge0":
            d = _signed(d)
        if kind == "ne0":
            kind, d = self._not_at_end(d)
        if (kind, d) in self._facts:
            return
        self._facts[kind, d] = (condition(kind, d), self.where())
        self._latest += 1
        self.version = self._latest
        if kind == "ge0":
            self._narrow(d)
        elif kind == "eq0":
            self._replace(d)

    def _not_at_end(self, d: Any) -> tuple[str, Any]:
        """s != n as an order, where n is the least or the greatest value of s."""
        constant, s = d.as_coeff_Add()
        if s.is_Symbol:
            low, high = self.ranges[s]
            if low == -constant:
                return "ge0", d - 1
            if high == -constant:
                return "ge0", -d - 1
        return "ne0", d

    def record_as_is(self, relation: Condition) -> None:
        """Rely on a relation between floats, which is neither simplified nor used to decide others."""
        self._facts.setdefault(("float", relation), (relation, self.where()))

    def _narrow(self, d: Any) -> None:
        """d >= 0, d = c*s + k: a bound of s."""
        symbols = list(d.free_symbols)
        if len(symbols) != 1 or not d.is_polynomial(*symbols) or sympy.degree(d, symbols[0]) != 1:
            return
        s = symbols[0]
        c, k = d.coeff(s, 1), d.coeff(s, 0)
        if not (c.is_Integer and k.is_Integer):
            return
        low, high = self.ranges[s]
        bound = -int(k) // int(c) if c < 0 else -(int(k) // int(c))
        self.ranges[s] = (low, min(high, bound)) if c < 0 else (max(low, bound), high)
        if self.ranges[s][0] == self.ranges[s][1]:
            self.replacements[s] = sympy.Integer(int(self.ranges[s][0]))
            self.fixed += 1

    def _replace(self, d: Any) -> None:
        """d == 0: one of its parts equals the rest, and stands for it no more."""
        found = _solved(d, list(self.hints))
        if found is None:
            return
        part, rest = found
        self.replacements = {k: v.xreplace({part: rest}) for k, v in self.replacements.items()}
        self.replacements[part] = rest
        self.fixed += part.is_Symbol and rest.is_Integer
        if part.is_Symbol:
            low, high = sm.bounds(rest, self.ranges.__getitem__) if not rest.is_Integer else (int(rest), int(rest))
            self.ranges[part] = (max(low, self.ranges[part][0]), min(high, self.ranges[part][1]))
            if rest.is_Symbol:
                self.ranges[rest] = self.ranges[part]
        elif isinstance(part, sm.Mod) and rest == 0:       # a % b == 0: then a // b is exact
            self.replacements[sm.FloorDiv(*part.args, evaluate=False)] = sympy.expand(part.args[0] / part.args[1])

    def equal_hint(self, e: Any) -> Any:
        """Make an expression the constant that it is now, as a condition. Its value."""
        e = self.simplified(e)
        if not isinstance(e, sympy.Basic):
            return e
        found = self.value(e)
        if isinstance(found, float):
            for s in sorted(e.free_symbols, key=str):
                self.equal_hint(s)
        else:
            self.ask("eq0", sympy.expand(e - found))
        return found

    @property
    def conditions(self) -> list[tuple[Condition, Any]]:
        """(condition, where it was first needed): all that must hold besides the ranges given to `symbol`."""
        out = []
        for s, (low, high) in self.ranges.items():
            if s in self.replacements:
                continue
            wheres = self._wheres_of(s)
            if low > self.given[s][0]:
                out.append((Condition("<=", int(low), s), wheres[0]))
            if high < self.given[s][1]:
                out.append((Condition("<=", s, int(high)), wheres[1]))
        for (kind, d), (relation, where) in self._facts.items():
            if kind == "ge0" and len(d.free_symbols) == 1 and sm.bounds(d, self.ranges.__getitem__)[0] >= 0 \
                    and not d.free_symbols & self.replacements.keys():
                continue            # said by the ranges
            out.append((relation, where))
        return out

    def _wheres_of(self, s: Any) -> tuple:
        """Where the lower and the upper bound of a symbol were last narrowed."""
        low = high = None
        for (kind, d), (_, where) in self._facts.items():
            if kind == "ge0" and d.free_symbols == {s}:
                c = d.coeff(s, 1)
                if c.is_Integer and c > 0:
                    low = where
                elif c.is_Integer and c < 0:
                    high = where
        return low, high

    # ---- arithmetic --------------------------------------------------------------------------------------------------
    def compute(self, name: str, a: Any, b: Any) -> Any:
        """A binary integer operation on ints and expressions."""
        key = (name, a, b)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = sm.plain(_INT_OPERATIONS[name](sympy.sympify(a), sympy.sympify(b)))
        return found


def _signed(d: Any) -> Any:
    """Of d and -d the one that stands for both."""
    return sympy.expand(-d) if d.could_extract_minus_sign() else d


def _atoms(d: Any) -> set:
    """The symbols and functions that a polynomial is made of."""
    if d.is_Add or d.is_Mul:
        return set().union(*(_atoms(a) for a in d.args))
    if d.is_Pow and d.exp.is_Integer and d.exp > 0:
        return _atoms(d.base)
    return set() if d.is_Number else {d}


def _solved(d: Any, order: list) -> tuple[Any, Any] | None:
    """(part, rest) with part == rest where d == 0; the youngest symbol that stands alone, else a function that does."""
    content = d.as_content_primitive()[0]
    d = d if content == 1 else sympy.expand(d / content)
    symbols = [s for s in reversed(order) if s in d.free_symbols]
    functions = sorted((a for a in _atoms(d) if not a.is_Symbol), key=lambda a: (-len(str(a)), str(a)))
    for part in (*symbols, *functions):
        coefficient = d.coeff(part, 1)
        rest = sympy.expand(d - coefficient * part)
        if rest.has(part) or not coefficient.is_Number or coefficient == 0:
            continue
        if part.is_Symbol and abs(coefficient) != 1:
            continue
        return part, sympy.expand(-rest / coefficient)
    return None


def condition(kind: str, d: Any) -> Condition:
    """d >= 0, == 0 or != 0 with its negative terms on the other side."""
    terms = sympy.Add.make_args(d)
    minus = [-t for t in terms if t.could_extract_minus_sign()]
    plus = [t for t in terms if not t.could_extract_minus_sign()]
    left, right = sm.plain(sympy.Add(*minus)), sm.plain(sympy.Add(*plus))
    if kind != "ge0" and not isinstance(left, sympy.Basic):
        left, right = right, left
    return Condition(_SIGNS[kind], left, right)


_INT_OPERATIONS: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: sympy.expand(a * b),
    "floordiv": lambda a, b: sm.FloorDiv(a, b),
    "mod": lambda a, b: sm.Mod(a, b),
    "pow": lambda a, b: sympy.expand(a ** b),
    "max": lambda a, b: sm.Most(a, b),
    "min": lambda a, b: sm.Least(a, b),
}
_FLOAT_OPERATIONS: dict[str, type] = {
    "add": sm.FloatAdd, "sub": sm.FloatSub, "mul": sm.FloatMul, "truediv": sm.TrueDiv, "pow": sm.FloatPow}
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

    def __init__(self, env: Env, e: Any, kind: type) -> None:
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
            self.env.record_as_is(self.e if truth else _NEGATED[self.e.op](self.e.left, self.e.right))
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
        return isinstance(self.value, (int, float, bool))

    def constant_int(self) -> int | None:
        return self.maybe_as_int()

    def constant_bool(self) -> bool | None:
        return self.e if isinstance(self.e, bool) else None

    @property
    def constant(self) -> Any:
        return self.value if self.is_constant() else None

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
        return self.truth() if self.kind is bool else self.ne(self.wrap_int(0)).truth()

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
            if name not in _FLOAT_OPERATIONS:
                result = _OPERATORS[name](self.env.equal_hint(a), other.env.equal_hint(b))
                return self.make(result, type(result))
            return self.make(_FLOAT_OPERATIONS[name](sympy.sympify(a), sympy.sympify(b), evaluate=False), float)
        return self.make(self.env.compute(name, a, b), int)

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
        if other.kind is int and other.eq(other.wrap_int(0)).truth():
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
        return self if self.ge(self.wrap_int(0)).truth() else self.neg()

    def sym_max(self, other: Node) -> Node:
        return self._extreme("max", other, self.ge(other).known())

    def sym_min(self, other: Node) -> Node:
        return self._extreme("min", other, self.le(other).known())

    def _extreme(self, name: str, other: Node, mine: bool | None) -> Node:
        if mine is not None:
            return self if mine else other
        if float in (self.kind, other.kind):
            result = _OPERATORS[name](self.env.equal_hint(self.value), self.env.equal_hint(other.value))
            return self.make(result, float)
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
        return self.make(sm.ToFloat(e, evaluate=False) if isinstance(e, sympy.Basic) else float(e), float)

    def _whole(self, function: type, real: Callable) -> Node:
        e = self.value
        if self.kind is int:
            return self
        return self.make(function(e, evaluate=False) if isinstance(e, sympy.Basic) else real(e), int)

    def sqrt(self) -> Node:
        e = self.value
        return self.make(sm.FloatSqrt(e, evaluate=False) if isinstance(e, sympy.Basic) else math.sqrt(e), float)

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
        """math functions of floats (sym_sqrt, sym_cos...): of the constant that it was."""
        function = getattr(math, name.removeprefix("sym_"), None) if name.startswith("sym_") else None
        if function is None:
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        if name == "sym_sqrt":
            return self.sqrt
        return lambda: self.wrap_float(function(self.env.equal_hint(self.value)))

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
        return self.wrap_bool(_in_order(self, sizes, strides, range(len(sizes) - 1, -1, -1)))

    def is_channels_last_contiguous_2d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 4 and _in_order(self, sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_contiguous_3d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 5 and _in_order(self, sizes, strides, (1, 4, 3, 2, 0)))

    def is_channels_last_strides_2d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 4 and _channels_last(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_strides_3d(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(len(sizes) == 5 and _channels_last(sizes, strides, (1, 4, 3, 2, 0)))

    def is_non_overlapping_and_dense(self, sizes: list, strides: list) -> Node:
        return self.wrap_bool(_dense(self, sizes, strides))

    def is_non_overlapping_and_dense_indicator(self, sizes: list, strides: list) -> Node:
        return self.wrap_int(int(_dense(self, sizes, strides)))


_NEGATED: dict[str, Callable] = {      # sizes make no nan
    "<=": lambda a, b: Condition("<", b, a), "<": lambda a, b: Condition("<=", b, a),
    "==": lambda a, b: Condition("!=", a, b), "!=": lambda a, b: Condition("==", a, b)}
_RELATIONS = {"<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne}


def _is(node: Node, n: int) -> bool:
    return node.eq(node.wrap_int(n)).truth()


def _in_order(one: Node, sizes: list, strides: list, order: Any) -> bool:
    """Whether memory is dense with the dims in this order, fastest first. Sizes 1 do not count."""
    step = one.wrap_int(1)
    for d in order:
        if sizes[d].value == 1:
            continue
        # in this order: whether a symbol is 1 is asked only where it matters
        if not strides[d].eq(step).truth() and not _is(sizes[d], 1):
            return any(_is(s, 0) for s in sizes)
        step = step.mul(sizes[d])
    return True


def _channels_last(sizes: list, strides: list, order: Any) -> bool:
    """torch's question whether strides look like channels last, whatever their density."""
    if _is(strides[1], 0):
        return False
    least = sizes[0].wrap_int(0)
    for d in order:
        if _is(sizes[d], 0) or strides[d].lt(least).truth():
            return False
        if d == 0 and (least.value == strides[1].value):
            return False
        least = strides[d] if _is(sizes[d], 1) else strides[d].mul(sizes[d])
    return True


def _dense(one: Node, sizes: list, strides: list) -> bool:
    """Whether some order of the dims makes it contiguous. The order is the hints'."""
    order = sorted((d for d in range(len(sizes)) if not _is(sizes[d], 1)), key=lambda d: (strides[d].hint, sizes[d].hint))
    step = one.wrap_int(1)
    for d in order:
        if not strides[d].eq(step).truth():
            return False
        step = step.mul(sizes[d])
    return True
