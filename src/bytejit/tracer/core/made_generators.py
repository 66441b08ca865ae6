"""Generators of Python's random numbers that the region makes of a known seed: what they draw is known while tracing."""

from __future__ import annotations

import _random
import random
from collections.abc import Callable
from typing import Any

from .models import MODELS, models
from .signals import Break
from .tracer import Tracer
from .values import NONE, InstanceVar, Known, Var

SEEDS = (int, float, str, bytes)


class GeneratorVar(InstanceVar):
    """A random.Random that the region made. `state`: a generator of the trace's own, which stands where it stands."""

    __slots__ = ("state",)

    def __init__(self, state: random.Random, step: int) -> None:
        super().__init__(random.Random, step=step)
        self.state = state


@models(random.Random)
def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Raises: Break where the seed is not known, or changes between calls."""
    if len(args) != 1 or kwargs or type(args[0]) is not Known or type(args[0].obj) not in SEEDS:
        raise Break("making a random.Random of what is no known seed")
    t.effects.mutations += 1
    made = GeneratorVar(random.Random(args[0].obj), t.limits.steps)
    t.attribute_writes.setattr(made, "gauss_next", NONE)
    return made


def drawn(t: Tracer, method: Callable, args: list[Var]) -> Var | None:
    """What a method in C of a generator of the region's gives; None for other generators. Raises: Raised."""
    if not isinstance(of := args[0], GeneratorVar):
        return None
    t.effects.mutations += 1
    return t.operators.fold(lambda *given: method(of.state, *given), *map(t.const, args[1:]))


def remade(state: Any) -> random.Random:
    """A generator that stands there. Its attributes are set apart."""
    made = random.Random.__new__(random.Random)
    _random.Random.setstate(made, state)
    return made


def _of_the_regions(method: Callable) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if kwargs or (found := drawn(t, method, args)) is None:
            raise Break(f"a call of Random.{method.__name__}")
        return found

    MODELS[method] = run


_of_the_regions(_random.Random.getrandbits)
_of_the_regions(_random.Random.seed)
