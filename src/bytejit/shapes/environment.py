"""The symbols of one trace: what is known of them, and what was asked of them.

`Env.symbol` makes a `torch.SymInt` for a size. Arithmetic on it makes expressions; a comparison is decided from what is
known, else by the sizes at hand, and then becomes a condition: the compiled code is right wherever all conditions hold.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from . import floats as sf
from . import integer_math as sm
from .nodes import Condition, Node

__all__ = ["Condition", "Env", "Node", "condition"]
INF = math.inf
LARGEST = 2**48           # no size is larger
_FOR_POSITIVES = tuple(sf.MATH[name, 1] for name in ("log", "log2", "log10", "log1p"))
_SIGNS = {"ge0": "<=", "eq0": "==", "ne0": "!="}


class Env:
    """Symbols with their hints and ranges, and the conditions that the traced code relies on.

    `where`: called when a condition is recorded; its answer (a Where, or None) is kept with it. `inside`: symbols that the
    graph itself measures. A condition on one that is asked outside of `inferring` calls `refuse`, which raises.
    """

    def __init__(self, where: Callable[[], Any] | None = None, refuse: Callable[[], None] | None = None) -> None:
        self.where, self.refuse = where or (lambda: None), refuse or (lambda: None)
        self.inside: set[sympy.Symbol] = set()
        self.inferring = False
        self.hints: dict[sympy.Symbol, int] = {}
        self.given: dict[sympy.Symbol, tuple[float, float]] = {}      # the range that a symbol was made with
        self.ranges: dict[sympy.Symbol, tuple[float, float]] = {}     # and what conditions made of it
        self.replacements: dict[Any, Any] = {}      # a symbol or function -> what it equals
        self.relaxed = False                        # see `Manner`
        self.waived: list[tuple[Any, Any]] = []     # (difference that is not 0, where): what `relaxed` took for granted
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

    def float_symbol(self, name: str, hint: float) -> torch.SymFloat:
        """A new symbol that stands for any float, nan and infinities too."""
        s = sympy.Symbol(name)
        self.hints[s] = hint
        self.given[s] = self.ranges[s] = (-INF, INF)
        return torch.SymFloat(Node(self, s, float))

    def let_go(self) -> None:
        """Forget who asks: the trace is over."""
        self.where = self.refuse = lambda: None

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
                if not found.free_symbols:      # a float function of what became constants
                    found = self.value(found)
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
            self._memo[key] = sm.bounds(e, self.bound_of)
        return self._memo[key]

    def bound_of(self, e: Any) -> tuple[float, float]:
        """What conditions say of the range of a symbol or a function."""
        return self.ranges.get(e, (-INF, INF))

    def bound_of_symbol(self, e: Any) -> tuple[float, float]:
        """The same of symbols only: what guards on symbols say."""
        return self.ranges[e] if e.is_Symbol else (-INF, INF)

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
        if ("ne0", _signed(d.as_content_primitive()[1])) in self._facts:
            return False
        if d.is_Mul or d.is_Pow and d.exp.is_Integer and d.exp > 0:
            if all(self.decide("eq0", sm.plain(part)) is False for part in (d.args if d.is_Mul else d.args[:1])):
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
        low, _ = sm.bounds(d, self.bound_of)
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
            low, _ = sm.bounds(atom, self.bound_of)
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
        if (self.relaxed or self.inferring and d.free_symbols <= self.inside) and at_hint != 0 and self.asks_for_one(kind, d):
            if self.relaxed:
                self.waived.append((d, self.where()))
            return truth        # of what is measured: a size that it has to equal is a condition all the same
        if truth:
            self.record(kind, d)
        elif kind == "ge0":
            self.record("ge0", sympy.expand(-d - 1))
        else:
            self.record("ne0" if kind == "eq0" else "eq0", d)
        return truth

    def asks_for_one(self, kind: str, d: Any) -> bool:
        """Whether a relation asks if a symbol (or a function of some) is 1: as itself, or as a factor."""
        constant, s = _signed(d.as_content_primitive()[1]).as_coeff_Add()
        return kind != "ge0" and (s.is_Symbol or s.is_Function) and constant == -1

    def record(self, kind: str, d: Any) -> None:
        """Rely on a relation that holds at the hints from here on."""
        if kind != "ge0":
            d = _signed(d.as_content_primitive()[1])
        if kind == "ne0" and (d.is_Mul or d.is_Pow and d.exp.is_Integer and d.exp > 0):
            for part in d.args if d.is_Mul else d.args[:1]:
                self.ask("ne0", part)
            return
        if kind == "ne0":
            kind, d = self._not_at_end(d)
        if (kind, d) in self._facts:
            return
        self._may_rely_on(d.free_symbols)
        self._facts[kind, d] = (condition(kind, d), self.where())
        self._latest += 1
        self.version = self._latest
        if kind == "ge0":
            self._narrow(d)
        elif kind == "eq0":
            self._replace(d)

    @contextmanager
    def rely(self) -> Iterator[None]:
        """Inside, it is the inference of an operation that asks: conditions on what the graph measures are welcome."""
        was, self.inferring = self.inferring, True
        try:
            yield
        finally:
            self.inferring = was

    def _may_rely_on(self, symbols: set) -> None:
        if self.inside and not self.inferring and not self.inside.isdisjoint(symbols):
            self.refuse()

    def _not_at_end(self, d: Any) -> tuple[str, Any]:
        """s != n as an order, where n is the least or the greatest value of s."""
        constant, s = d.as_coeff_Add()
        if s.is_Symbol or s.is_Function:
            low, high = sm.bounds(s, self.bound_of)
            if low == -constant:
                return "ge0", d - 1
            if high == -constant:
                return "ge0", -d - 1
        return "ne0", d

    def record_as_is(self, relation: Condition) -> None:
        """Rely on a relation between floats, which is neither simplified nor used to decide others."""
        if relation.op != "is":
            self._may_rely_on(relation.symbols())
        self._facts.setdefault(("float", relation), (relation, self.where()))

    def _narrow(self, d: Any) -> None:
        """d >= 0, d = c*s + k: a bound of s, a symbol or a function of some."""
        k, term = d.as_coeff_Add()
        c, s = term.as_coeff_Mul()
        if not (c.is_Integer and k.is_Integer and (s.is_Symbol or s.is_Function and s.is_integer)):
            return
        low, high = sm.bounds(s, self.bound_of)
        bound = -int(k) // int(c) if c < 0 else -(int(k) // int(c))
        self.ranges[s] = (low, min(high, bound)) if c < 0 else (max(low, bound), high)
        if self.ranges[s][0] == self.ranges[s][1]:
            self.replacements[s] = sympy.Integer(int(self.ranges[s][0]))
            self.fixed += s.is_Symbol

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
            low, high = sm.bounds(rest, self.bound_of) if not rest.is_Integer else (int(rest), int(rest))
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
        if e.is_Symbol and not e.is_integer:
            self._fix_float(e)
            return self.hints[e]
        found = self.value(e)
        if sm.is_float(e) or sm.float_symbols(e):
            for s in sorted(e.free_symbols, key=str):
                self.equal_hint(s)
        else:
            self.ask("eq0", sympy.expand(e - found))
        return found

    def _fix_float(self, s: Any) -> None:
        """Make a float symbol the very float that it is now."""
        at = self.hints[s]
        self.record_as_is(Condition("!=", s, s) if at != at else Condition("==", s, at))
        if at == 0:
            self.record_as_is(Condition("==", sf.MATH["copysign", 2](sf.number(1.0), s), math.copysign(1.0, at)))
        self.replacements[s] = sf.number(at)
        self.fixed += 1
        self._latest += 1
        self.version = self._latest

    def is_total(self, e: Any) -> bool:
        """Whether a float function surely has a value: divisors that are never 0, roots and logarithms of what is never 0."""
        low, high = self.range(e.args[0])
        if isinstance(e, sf.TrueDiv):
            below = e.args[1]
            return bool(below.is_Float and below != 0 or below.is_integer and self.decide("eq0", below) is False)
        if isinstance(e, sf.FloatPow):
            return bool(e.args[1].is_number) and 1 <= low and high <= LARGEST and abs(sm.value(e.args[1], {})) <= 16
        return low > 0 and type(e) in _FOR_POSITIVES or low >= 0 and isinstance(e, sf.FloatSqrt)

    @property
    def conditions(self) -> list[tuple[Condition, Any]]:
        """(condition, where it was first needed): all that must hold besides the ranges given to `symbol`."""
        out = []
        for s, (low, high) in self.ranges.items():
            if s in self.replacements or s not in self.given:
                continue
            wheres = self._wheres_of(s)
            if low > self.given[s][0]:
                out.append((Condition("<=", int(low), s), wheres[0]))
            if high < self.given[s][1]:
                out.append((Condition("<=", s, int(high)), wheres[1]))
        for (kind, d), (relation, where) in self._facts.items():
            if kind == "ge0" and len(d.free_symbols) == 1 and sm.bounds(d, self.bound_of_symbol)[0] >= 0 \
                    and not d.free_symbols & self.replacements.keys():
                continue            # said by the ranges
            out.append((relation, where))
        return out

    def why_fixed(self, s: Any) -> tuple[Condition | None, Any]:
        """The condition that made a symbol a constant, directly or through others that it equals, and where it was needed."""
        group, found = {s}, (None, None)
        for (kind, _), (relation, where) in self._facts.items():
            mine = relation.symbols()
            if mine & group and (kind == "eq0" or kind != "ne0" and mine == {s} and found[0] is None):
                group |= mine
                found = relation, where
        return found

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
