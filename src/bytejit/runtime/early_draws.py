"""Random numbers that are drawn before a graph runs, which takes them as inputs: `random.random()`, `np.random.uniform()`.

Where the graph raises, the original code runs from the region's start and draws them again: the generators stand then where
they stood before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Draw:
    """function(*args), which draws from a generator."""

    function: Callable
    args: tuple
    generator: Any


def state_of(generator: Any) -> tuple[Callable[[Any], Any], Any]:
    """What sets a generator's state, and its state now."""
    if isinstance(generator, random.Random):
        return generator.setstate, generator.getstate()
    return generator.set_state, generator.get_state()


def drawing(graph: Callable, draws: Sequence[Draw], places: Sequence[int]) -> Callable:
    """A graph that draws its inputs at `places`, which ascend, itself.

    Cost: 8 us a call for the state of Python's generator.
    """
    generators = list({id(d.generator): d.generator for d in draws}.values())

    def run(*inputs: Any) -> Any:
        put_back = [state_of(g) for g in generators]
        try:
            given = list(inputs)
            for place, value in zip(places, [d.function(*d.args) for d in draws]):
                given.insert(place, value)
            return graph(*given)
        except BaseException:
            for setter, state in put_back:
                setter(state)
            raise

    return run


def peeked(draws: Sequence[Draw]) -> list:
    """The numbers that these calls will draw, which are not drawn."""
    put_back = [state_of(g) for g in {id(d.generator): d.generator for d in draws}.values()]
    try:
        return [d.function(*d.args) for d in draws]
    finally:
        for setter, state in put_back:
            setter(state)
