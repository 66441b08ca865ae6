"""Calls that are made when the region ends, in their order: draws of Python's and numpy's random numbers, hooks put on.

Nothing in the region may depend on what they give, except arithmetic, which is deferred as well: a number that decides a
branch or enters an operation breaks the graph before it.
"""

from __future__ import annotations

import _random
import random
from collections.abc import Callable

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.tracer import Tracer

from .signals import Break
from .values import DeferredVar, InstanceVar, Known, Var

ARITHMETIC = {"add", "sub", "mul"}  # cannot raise for floats


class DeferredCalls(Component):
    """The part of the tracer that defers calls to the end of the region."""

    def defer(self, kind: type, function: Callable, args: list[Var]) -> DeferredVar:
        """A value of type `kind`: the result of function(*args) at the end of the region."""
        made = DeferredVar(kind, function, args, self.t.limits.steps)
        self.t.deferred_calls.append(made)
        self.t.effects.mutations += 1
        return made

    def defer_binary(self, name: str, function: Callable, a: Var, b: Var) -> Var:
        """Arithmetic on deferred floats. Raises: Break for other operators and values."""
        for v in (a, b):
            if not (isinstance(v, DeferredVar) and v.kind is float or isinstance(v, Known) and type(v.obj) in (int, float)):
                raise Break("a random number used in the region")
        if name not in ARITHMETIC:
            raise Break("a random number used in the region")
        return self.defer(float, function, [a, b])


def _draw(method: Callable, most: int) -> None:
    """A method of a generator from outside that gives a float: at most so many numbers are its arguments."""

    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        made_outside = args and isinstance(args[0], InstanceVar) and args[0].source is not None
        numbers = all(isinstance(a, Known) and type(a.obj) in (int, float) for a in args[1:])
        if kwargs or len(args) > most + 1 or not made_outside or not numbers:
            raise Break(f"random numbers of {method.__name__} with these arguments")
        return t.deferred.defer(float, method, list(args))

    MODELS[method] = run


_draw(_random.Random.random, 0)
for _method, _most in numpy_types.draws():
    _draw(_method, _most)


@models(random.random)
def draw_of_python(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The function of the module: bound to the generator that all share."""
    return t.deferred.defer(float, random.random, [])
