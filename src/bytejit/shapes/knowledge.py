"""What is known about the symbols of one trace: their hints, ranges, equalities, and what follows from these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy

from . import floats as sf
from . import integer_math as sm
from .conditions import Condition

INF = math.inf
LARGEST = 2**48  # no size is larger
_FOR_POSITIVES = tuple(sf.MATH[name, 1] for name in ("log", "log2", "log10", "log1p"))


class Knowledge:
    """Symbols with their hints and ranges, and relations that hold between them."""

    def __init__(self) -> None:
        self.hints: dict[sympy.Symbol, float] = {}
        self.given: dict[sympy.Symbol, tuple[float, float]] = {}  # the range that a symbol was made with
        self.ranges: dict[sympy.Symbol, tuple[float, float]] = {}  # and what conditions made of it
        self.replacements: dict[Any, Any] = {}  # a symbol or function -> what it equals
        self.facts: dict[tuple[str, Any], tuple[Condition, Any]] = {}  # relation -> (condition, where it was first needed)
        self.fixed = 0  # how many symbols became constants
        self.version = 0  # counts new facts: cached results are valid for one count only
        self._latest = 0
        self._memo: dict[tuple, Any] = {}
        self._decisions: dict[tuple, bool | None] = {}

    def learnt(self) -> None:
        """Something new is known."""
        self._latest += 1
        self.version = self._latest

    def save(self) -> tuple:
        """Returns what has been learnt up to now, for `restore`."""
        return dict(self.ranges), dict(self.replacements), dict(self.facts), self.fixed

    def restore(self, saved: tuple) -> None:
        """Go back to what was known at a `save`."""
        ranges, replacements, facts, self.fixed = saved
        self.ranges, self.replacements, self.facts = dict(ranges), dict(replacements), dict(facts)
        self.learnt()

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
                if not found.free_symbols:  # a float function of what became constants
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
        """The range that conditions give a symbol or a function."""
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
        if key not in self._decisions:
            self._decisions[key] = self._decide_order(d) if kind == "ge0" else self._decide_zero(d)
        return self._decisions[key]

    def _decide_order(self, d: Any) -> bool | None:
        if self.at_least_zero(d):
            return True
        return False if self.at_least_zero(-d - 1) else None

    def _decide_zero(self, d: Any) -> bool | None:
        if self.at_least_zero(d - 1) or self.at_least_zero(-d - 1):
            return False
        if ("ne0", signed(d.as_content_primitive()[1])) in self.facts:
            return False
        parts = factors(d)
        if parts and all(self.decide("eq0", sm.plain(part)) is False for part in parts):
            return False
        content: Any = d.as_content_primitive()[0] if d.is_Add else 1
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
        for kind, known in self.facts:
            if kind == "ge0" and known.as_coeff_Add()[1] == rest and known.as_coeff_Add()[0] <= constant:
                return True
        return self._shifted_is_positive(d)

    def _shifted_is_positive(self, d: Any) -> bool:
        """The same, with each part written as its least value plus a rest that is not negative: then no coefficient may be
        negative."""
        steps = {}
        for atom in atoms_of(d):
            low, _ = sm.bounds(atom, self.bound_of)
            if not math.isfinite(low) or int(low) != low:
                return False
            steps[atom] = sympy.Dummy(integer=True) + int(low)
        shifted = sympy.expand(d.xreplace(steps))
        return all(c >= 0 and t.is_polynomial() for t, c in shifted.as_coefficients_dict().items()) and bool(steps)

    def is_total(self, e: Any) -> bool:
        """Whether a float function surely has a value: divisors that are never 0, roots and logarithms of what is never 0."""
        low, high = self.range(e.args[0])
        if isinstance(e, sf.TrueDiv):
            below = e.args[1]
            return bool(below.is_Float and below != 0 or below.is_integer and self.decide("eq0", below) is False)
        if isinstance(e, sf.FloatPow):
            return bool(e.args[1].is_number) and 1 <= low and high <= LARGEST and abs(sm.value(e.args[1], {})) <= 16
        return low > 0 and type(e) in _FOR_POSITIVES or low >= 0 and isinstance(e, sf.FloatSqrt)

    def compute(self, name: str, a: Any, b: Any) -> Any:
        """A binary integer operation on ints and expressions."""
        key = (name, a, b)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = sm.plain(_INT_OPERATIONS[name](sympy.sympify(a), sympy.sympify(b)))
        return found


_INT_OPERATIONS: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: sympy.expand(a * b),
    "floordiv": lambda a, b: sm.FloorDiv(a, b),
    "mod": lambda a, b: sm.Mod(a, b),
    "pow": lambda a, b: sympy.expand(a**b),
    "max": lambda a, b: sm.Most(a, b),
    "min": lambda a, b: sm.Least(a, b),
    "and": lambda a, b: sm.BitAnd(a, b),
}


def signed(d: Any) -> Any:
    """Returns d or -d: the one that stands for both."""
    return sympy.expand(-d) if d.could_extract_minus_sign() else d


def factors(d: Any) -> list:
    """The expressions of which one is 0 when a product or power is 0; empty for all else. Fractions are exact: no denominator
    is 0."""
    parts = d.args if d.is_Mul else (d,) if d.is_Pow and d.exp.is_Integer and d.exp > 0 else ()
    return [p.base if p.is_Pow and p.exp.is_Integer else p for p in parts if not (p.is_Pow and p.exp.is_negative)]


def atoms_of(d: Any) -> set:
    """The symbols and functions in a polynomial."""
    if d.is_Add or d.is_Mul:
        return set().union(*(atoms_of(a) for a in d.args))
    if d.is_Pow and d.exp.is_Integer and d.exp > 0:
        return atoms_of(d.base)
    return set() if d.is_Number else {d}


def solved(d: Any, order: list) -> tuple[Any, Any] | None:
    """(part, rest) with part == rest where d == 0. part: the youngest symbol that stands alone, else a function that does."""
    content = d.as_content_primitive()[0]
    d = d if content == 1 else sympy.expand(d / content)
    symbols = [s for s in reversed(order) if s in d.free_symbols]
    functions = sorted((a for a in atoms_of(d) if not a.is_Symbol), key=lambda a: (-len(str(a)), str(a)))
    for part in (*symbols, *functions):
        coefficient = d.coeff(part, 1)
        rest = sympy.expand(d - coefficient * part)
        if rest.has(part) or not coefficient.is_Number or coefficient == 0:
            continue
        if part.is_Symbol and abs(coefficient) != 1:
            continue
        return part, sympy.expand(-rest / coefficient)
    return None
