"""The symbols of one trace, what is known about them, and the conditions that the trace relies on.

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
from .conditions import Condition, condition
from .knowledge import INF, LARGEST, Knowledge, factors, signed, solved
from .nodes import Node
from .plain_floats import on_its_side


class Env(Knowledge):
    """Symbols with their hints and ranges, and the conditions that the traced code relies on.

    `where`: called when a condition is recorded; what it returns (a Where, or None) is kept with it. `inside`: symbols that the
    graph itself measures. A condition on one that is asked outside of `inferring` calls `refuse`, which raises.
    """

    def __init__(self, where: Callable[[], Any] | None = None, refuse: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.where, self.refuse = where or (lambda: None), refuse or (lambda: None)
        self.inside: set[sympy.Symbol] = set()
        self.never: set[sympy.Symbol] = set()  # of these, those on which no inference may rely either
        self.unlike: set[sympy.Symbol] = set()  # numbers that differ in each call
        self.refuse_constant: Callable[[Any], None] = lambda e: None  # called where the program needs such a one as a constant
        self.inferring = False
        self.relaxed = False  # see `Manner`
        self.taken: Callable[[Any], float] | None = None  # the plain float for an operator: `plain_floats.py`
        self.waived: list[tuple[str, Any, Any]] = []  # (relation, difference, where): taken as they are now under `relaxed`

    def __repr__(self) -> str:
        return f"Env({', '.join(f'{s}={h}' for s, h in self.hints.items())}; {len(self.facts)} facts)"

    def symbol(self, name: str, hint: int, low: int | None = 2, high: int | None = None) -> torch.SymInt:
        """A new symbol in [low, high], None where unbounded. The range is not a condition: the maker guards it."""
        s = sympy.Symbol(name, integer=True)
        if s in self.hints:
            raise ValueError(f"there is a symbol {name} already")
        self.hints[s] = hint
        self.given[s] = self.ranges[s] = (
            -INF if low is None else low,
            (LARGEST if low is not None else INF) if high is None else high,
        )
        return torch.SymInt(Node(self, s, int))

    def float_symbol(self, name: str, hint: float) -> torch.SymFloat:
        """A new symbol that stands for any float, nan and infinities too."""
        s = sympy.Symbol(name)
        self.hints[s] = hint
        self.given[s] = self.ranges[s] = (-INF, INF)
        return torch.SymFloat(Node(self, s, float))

    on_its_side = staticmethod(on_its_side)

    def let_go(self) -> None:
        """Drop the references to the tracer: the trace is over."""
        self.where = self.refuse = lambda: None
        self.refuse_constant = lambda e: None

    def made_constant(self, e: Any) -> None:
        """The program needs the value of an expression as it is now."""
        if self.unlike and not self.unlike.isdisjoint(getattr(e, "free_symbols", ())):
            self.refuse_constant(e)

    # ---- questions about values --------------------------------------------------------------------------------------
    def ask(self, kind: str, d: Any) -> bool:
        """The truth of a relation. Where it is not known, the hints decide, and this becomes a condition."""
        found = self.decide(kind, d)
        if found is not None:
            return found
        d = self.simplified(d)
        if not self.never.isdisjoint(d.free_symbols):
            self.refuse()
        at_hint = self.value(d)
        truth = {"ge0": at_hint >= 0, "eq0": at_hint == 0, "ne0": at_hint != 0}[kind]
        if (self.relaxed or self.inferring and d.free_symbols <= self.inside) and at_hint != 0 and self.asks_for_one(kind, d):
            self.waive(kind, d)
            return truth  # of what is measured: a size that it has to equal is a condition all the same
        if truth:
            self.record(kind, d)
        elif kind == "ge0":
            self.record("ge0", sympy.expand(-d - 1))
        else:
            self.record("ne0" if kind == "eq0" else "eq0", d)
        return truth

    def waive(self, kind: str, d: Any) -> None:
        """Under `relaxed`: a relation is taken as it is now, without a condition."""
        if self.relaxed:
            self.waived.append((kind, d, self.where()))

    def asks_for_one(self, kind: str, d: Any) -> bool:
        """Whether a relation asks if a symbol (or a function of some) is 1: as itself, or as a factor."""
        constant, s = signed(d.as_content_primitive()[1]).as_coeff_Add()
        return kind != "ge0" and (s.is_Symbol or s.is_Function) and constant == -1

    def record(self, kind: str, d: Any) -> None:
        """Record a relation, which holds for the hints, as a condition."""
        if kind != "ge0":
            d = signed(d.as_content_primitive()[1])
        if kind == "ne0" and (parts := factors(d)):
            for part in parts:
                self.ask("ne0", part)
            return
        if kind == "ne0":
            kind, d = self._not_at_end(d)
        if (kind, d) in self.facts:
            return
        self._may_rely_on(d.free_symbols)
        self.facts[kind, d] = (condition(kind, d), self.where())
        self.learnt()
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
        if self.inside and not (self.never if self.inferring else self.inside).isdisjoint(symbols):
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
        if relation.op != "is" or not self.never.isdisjoint(relation.symbols()):
            self._may_rely_on(relation.symbols())
        self.facts.setdefault(("float", relation), (relation, self.where()))

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
        found = solved(d, list(self.hints))
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
        elif isinstance(part, sm.Mod) and rest == 0:  # a % b == 0: then a // b is exact
            self.replacements[sm.FloorDiv(*part.args, evaluate=False)] = sympy.expand(part.args[0] / part.args[1])

    def equal_hint(self, e: Any) -> Any:
        """Make an expression a constant, with a condition. Returns its value."""
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
        """Make a float symbol the constant that it is now, bit for bit."""
        at = self.hints[s]
        self.record_as_is(Condition("!=", s, s) if at != at else Condition("==", s, at))
        if at == 0:
            self.record_as_is(Condition("==", sf.MATH["copysign", 2](sf.number(1.0), s), math.copysign(1.0, at)))
        self.replacements[s] = sf.number(at)
        self.fixed += 1
        self.learnt()

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
        for (kind, d), (relation, where) in self.facts.items():
            if (
                kind == "ge0"
                and len(d.free_symbols) == 1
                and sm.bounds(d, self.bound_of_symbol)[0] >= 0
                and not d.free_symbols & self.replacements.keys()
            ):
                continue  # said by the ranges
            out.append((relation, where))
        return out

    def why_fixed(self, s: Any) -> tuple[Condition | None, Any]:
        """Why a symbol became a constant: (the condition, the place that needed it). The condition may be about symbols
        that equal this one."""
        group = {s}
        found: tuple[Condition | None, Any] = None, None
        for (kind, _), (relation, where) in self.facts.items():
            mine = relation.symbols()
            if mine & group and (kind == "eq0" or kind != "ne0" and mine == {s} and found[0] is None):
                group |= mine
                found = relation, where
        return found

    def _wheres_of(self, s: Any) -> tuple:
        """Returns the places where the lower and the upper bound of a symbol were last narrowed."""
        low = high = None
        for (kind, d), (_, where) in self.facts.items():
            if kind == "ge0" and d.free_symbols == {s}:
                c = d.coeff(s, 1)
                if c.is_Integer and c > 0:
                    low = where
                elif c.is_Integer and c < 0:
                    high = where
        return low, high
