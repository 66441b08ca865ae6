"""Calls that are made when the region ends, in their order: draws of Python's and numpy's random numbers, hooks put on,
warnings.

Nothing in the region may depend on what they give, except arithmetic, which is deferred as well. A number that enters an
operation is drawn before the graph (sizes/drawn.py); one that decides a branch breaks the graph.
"""

from __future__ import annotations

import _random
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.tracer import Tracer

from .made_generators import drawn
from .signals import Break
from .values import NONE, DeferredVar, FuncVar, InstanceVar, Known, SymVar, Var, expect

ARITHMETIC = {"add", "sub", "mul"}  # cannot raise for floats


class DeferredCalls(Component):
    """The part of the tracer that defers calls to the end of the region."""

    def __init__(self, t: Any) -> None:
        super().__init__(t)
        self.early = 0  # of these calls, those that are made before the graph (sizes/drawn.py)
        self.warns = self.recorded = False  # whether some give warnings, recorded in a list (builtins/given_warnings.py)
        self.said: set[str] = set()  # what torch's C++ has warned of while the region was traced (torch/warned.py)
        self.filtered = False  # whether some change which warnings are given (builtins/warning_filters.py)
        # blocks of warnings.catch_warnings that are open, and NONE for a change that stays; those that were left
        self.filters: list[Var] = []
        self.left: list[Var] = []
        self.parts = 0  # of those that are traced now, how many may defer nothing

    @contextmanager
    def part(self) -> Iterator[None]:
        """Around the trace of a function that may run elsewhere, or again, and so may have no effects."""
        self.parts += 1
        try:
            yield
        finally:
            self.parts -= 1

    @property
    def count(self) -> int:
        """Returns the number of calls."""
        return len(self.t.deferred_calls) + self.early + self.t.reads.count

    def defer(self, kind: type, function: Callable, args: list[Var]) -> DeferredVar:
        """A value of type `kind`: the result of function(*args) at the end of the region."""
        made = DeferredVar(kind, function, args, self.t.limits.steps)
        self.t.deferred_calls.append(made)
        self.t.effects.mutations += 1
        return made

    def defer_binary(self, name: str, function: Callable, a: Var, b: Var) -> Var | None:
        """Arithmetic on deferred floats; None for other operators and values."""
        for v in (a, b):
            if not (isinstance(v, DeferredVar) and v.kind is float or isinstance(v, Known) and type(v.obj) in (int, float)):
                return None
        return self.defer(float, function, [a, b]) if name in ARITHMETIC else None


def _draw(method: Callable, most: int) -> None:
    """A method of a generator from outside that gives a float: at most so many numbers are its arguments."""

    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if args and not kwargs and (found := drawn(t, method, args)) is not None:
            return found
        made_outside = args and isinstance(args[0], InstanceVar) and args[0].source is not None
        numbers = all(isinstance(a, Known) and type(a.obj) in (int, float) for a in args[1:])
        if kwargs or len(args) > most + 1 or not made_outside or not numbers:
            raise Break(f"random numbers of {method.__name__} with these arguments")
        if method is not _random.Random.random:
            _try(t, method, numpy_types.generator(), args[1:])
        return t.deferred.defer(float, method, list(args))

    MODELS[method] = run


def _try(t: Tracer, method: Callable, generator: Any, args: list[Var]) -> None:
    """Draw from another generator. Raises: Break where that raises: it may have drawn before."""
    try:
        method(generator, *map(t.const, args))
    except Exception as e:
        raise Break(f"{method.__name__} raises {type(e).__name__}") from None


def _draw_number(method: Callable, kind: type, least: int, most: int) -> None:
    """A method of Python's generator that gives a number. It may loop until it has drawn one that fits."""

    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        of, numbers = args[0], args[1:]
        plain = isinstance(of, InstanceVar) and of.source is not None and of.cls is random.Random
        if not plain or kwargs or not least <= len(numbers) <= most:
            return t.calls.inline(expect(t.values.constant(method), FuncVar), args, kwargs)
        _try(t, method, random.Random(0), numbers)
        return t.deferred.defer(kind, method, [of, *map(t.values.constant, map(t.const, numbers))])

    MODELS[method] = run


_draw_number(random.Random.randint, int, 2, 2)
_draw_number(random.Random.randrange, int, 1, 3)
for _name, _least, _most in (
    ("betavariate", 2, 2),
    ("expovariate", 0, 1),
    ("gammavariate", 2, 2),
    ("gauss", 0, 2),
    ("lognormvariate", 2, 2),
    ("normalvariate", 0, 2),
    ("paretovariate", 1, 1),
    ("triangular", 0, 3),
    ("vonmisesvariate", 2, 2),
    ("weibullvariate", 2, 2),
):
    _draw_number(getattr(random.Random, _name), float, _least, _most)
_draw(_random.Random.random, 0)
for _method, _most in numpy_types.draws():
    _draw(_method, _most)


def fits(seed: Var) -> bool:
    """Whether NumPy takes a seed. Of a number that changes that is a condition."""
    number = seed.value if type(seed) is SymVar else seed.obj if isinstance(seed, Known) else -1
    return bool(0 <= number and number < 2**32)


def _seed(method: Callable, bound: bool) -> None:
    """What sets a generator's seed: a method of the generator, or a function."""

    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        of, given = (args[:1], args[1:]) if bound else ([], args)
        if bound and not (isinstance(of[0], InstanceVar) and of[0].source is not None and of[0].cls is random.Random):
            return t.calls.inline(expect(t.values.constant(method), FuncVar), args, kwargs)
        if kwargs or len(given) != 1 or t.type_of(given[0]) is not int or not (bound or fits(given[0])):
            raise Break(f"a call of {method.__name__} with these arguments")
        t.deferred.warns = True  # from here on, code of the program's in the graph may draw
        t.deferred.defer(NoneType, method, [*of, given[0]])
        return NONE

    SEEDS.append(method)
    MODELS[method] = run


SEEDS: list[Callable] = []
_seed(random.Random.seed, True)
for _method in numpy_types.seeds():
    _seed(_method, False)


@models(random.random)
def draw_of_python(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The function of the module: bound to the generator that all share."""
    return t.deferred.defer(float, random.random, [])
