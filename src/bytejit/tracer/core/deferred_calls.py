"""Draws of Python's and numpy's random numbers, hooks put on: calls that are made when the region ends, in their order.

Nothing in the region may depend on what they give, but for arithmetic that is done late as well: a number that decides a
branch or enters an operation breaks the graph before it.
"""
from __future__ import annotations

import _random
import random

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.objects.calls import HANDLERS, models

from .signals import Break
from .values import InstanceVar, Known, LateVar, Var

ARITHMETIC = {"add", "sub", "mul"}            # cannot raise for floats


class DeferredCalls(Component):
    """The part of the tracer that deals in numbers that come late."""

    def late_call(self, kind: type, function, args: list[Var]) -> LateVar:
        """A value of type `kind` that function(*args) will give."""
        made = LateVar(kind, function, args, self.t.limits.steps)
        self.t.late.append(made)
        self.t.effects.mutations += 1
        return made

    def late_binary(self, name: str, function, a: Var, b: Var) -> Var:
        """Arithmetic on floats that come late. Raises: Break for other operators and values."""
        for v in (a, b):
            if not (isinstance(v, LateVar) and v.kind is float or isinstance(v, Known) and type(v.obj) in (int, float)):
                raise Break("a random number used in the region")
        if name not in ARITHMETIC:
            raise Break("a random number used in the region")
        return self.late_call(float, function, [a, b])


def _draw(method, most: int):
    """A method of a generator from outside that gives a float: at most so many numbers are its arguments."""
    def run(t: Tracer, args, kwargs):
        made_outside = args and isinstance(args[0], InstanceVar) and args[0].source is not None
        numbers = all(isinstance(a, Known) and type(a.obj) in (int, float) for a in args[1:])
        if kwargs or len(args) > most + 1 or not made_outside or not numbers:
            raise Break(f"random numbers of {method.__name__} with these arguments")
        return t.deferred.late_call(float, method, list(args))
    HANDLERS[method] = run


_draw(_random.Random.random, 0)
for _method, _most in numpy_types.draws():
    _draw(_method, _most)


@models(random.random)
def draw_of_python(t: Tracer, args, kwargs):
    """The function of the module: bound to the generator that all share."""
    return t.deferred.late_call(float, random.random, [])
