"""Random numbers of Python's and NumPy's generators that operations of the region use: they are drawn before the graph runs,
and are inputs of it.

As long as nothing in the region uses a number, it is drawn when the region ends (core/deferred_calls.py). What the program
decides by one (a branch, a key, how often to loop) breaks the graph before it.
"""

from __future__ import annotations

import random
from typing import Any

from bytejit.compat import numpy_types
from bytejit.guards.source import Source
from bytejit.guards.sources import Drawn, KnownSource
from bytejit.runtime.early_draws import Draw, peeked
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.deferred_calls import SEEDS
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DeferredVar, InstanceVar, Known, SymVar, Var, expect
from bytejit.tracer.sizes.numbers import PASSED, is_math

PYTHONS = random.random.__self__  # type: ignore[attr-defined]  # the generator that all share


class DrawnNumbers(Component):
    """The part of the tracer that draws numbers before the graph."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.draws: list[Draw] = []
        self.generators: list[InstanceVar] = []  # those of the program's own that they draw from

    def early(self, v: Var) -> Var:
        """The number that stands for a deferred one from here on; other values as they are. Raises: Break."""
        v = self.t.values.real(v)
        if type(v) is not DeferredVar or v.kind not in (int, float):
            return v
        if (generator := self.generator_of(v)) is None:
            made = self.t.numbers.on_numbers(v.function, *map(self.early, v.args)) if all(map(self.is_number, v.args)) else None
            if made is None:
                raise Break("a random number used in the region")
            self._take(v, made)
            return made
        for other in list(self.t.deferred_calls):  # those before it come first
            if any(other.function is seed for seed in SEEDS):
                raise Break("a random number used in the region, after a generator's seed was set")
            if other is v or self.generator_of(other) is generator:
                self._take(other, self._drawn(other, generator))
            else:
                self._apart(v, other)
            if other is v:
                break
        return self.t.values.real(v)

    def _take(self, v: DeferredVar, early: Var) -> None:
        """The call is no longer one that the exit makes."""
        self.t.deferred_calls.remove(v)
        self.t.deferred.early += 1
        self.t.effects.mutations += 1
        v.early = early

    def is_number(self, v: Var) -> bool:
        """Whether an operand is a number, drawn or known."""
        v = self.t.values.real(v)
        drawn = type(v) is SymVar or type(v) is DeferredVar and v.kind in (int, float)
        return drawn or isinstance(v, Known) and type(v.obj) in (int, float)

    def generator_of(self, v: DeferredVar) -> Any:
        """The shared generator that a deferred call draws from; None for other calls. Raises: Break for another generator."""
        if v.function is random.random:
            return PYTHONS
        if not v.args or not isinstance(of := v.args[0], InstanceVar) or v.kind not in (int, float):
            return None
        if of.real is PYTHONS or numpy_types.is_shared_generator(of.real):
            return of.real
        if type(of.real) is random.Random and of.source is not None:
            return of.real
        raise Break("a random number of a generator of the program's used in the region")

    def _drawn(self, v: DeferredVar, generator: Any) -> SymVar:
        if self.t.program_operators.reaches:
            raise Break("a random number used in the region after a call of the program's own operator, which may draw some, too")
        given = tuple(a.obj for a in v.args if isinstance(a, Known))
        shared = generator is PYTHONS or numpy_types.is_shared_generator(generator)
        draw = Draw(v.function, given, generator if shared else self.place(expect(v.args[0], InstanceVar)), bool(v.args))
        now = peeked([*self.draws, draw], [g.real for g in self.generators])[-1]
        value = self.t.sizes.drawn_symbol(Drawn(len(self.draws)), now)
        self.draws.append(draw)
        return SymVar(value)

    def place(self, of: InstanceVar) -> int:
        """Returns the place of a generator of the program's own, which is fetched anew for each call."""
        if of not in self.generators:
            self.generators.append(of)
        return self.generators.index(of)

    def _apart(self, v: DeferredVar, pending: DeferredVar) -> None:
        """Guard that a call draws from another generator than an earlier call of the program that now runs after it."""
        drawn, other = self._source_of(v), self._source_of(pending)
        if drawn is not None and other is not None and drawn != other:
            self.t.guards.add("ALIAS", drawn, (other, False), self.t.tensors.where())

    def _source_of(self, v: DeferredVar) -> Source | None:
        """The source of a generator of the class that the program's own have; None for others."""
        generator = self.generator_of(v)
        if generator is PYTHONS:
            return KnownSource.of(PYTHONS)
        return v.args[0].source if type(generator) is random.Random and isinstance(v.args[0], InstanceVar) else None

    def computed_with(self, function: Any, args: list[Var]) -> list[Var]:
        """The arguments of a call: where the function computes with numbers, those that are drawn by now."""
        if not any(type(a) is DeferredVar and a.kind in (int, float) for a in args):
            return args
        return [self.early(a) for a in args] if is_math(function) or callable(function) and function in PASSED else args
