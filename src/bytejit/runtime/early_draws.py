"""Random numbers that are drawn before a graph runs, which takes them as inputs: `random.random()`, `np.random.uniform()`.

Where the graph raises, the original code runs from the region's start and draws them again: the generators stand then where
they stood before.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Draw:
    """function(*args), which draws from a generator: from `generator`, which is the first argument if `bound`. It is one that all
    share, or a weak reference to the program's, which a guard knows."""

    function: Callable
    args: tuple
    generator: Any
    bound: bool

    def source(self) -> Any:
        """The generator."""
        return self.generator() if isinstance(self.generator, weakref.ref) else self.generator

    def __call__(self) -> Any:
        return self.function(self.source(), *self.args) if self.bound else self.function(*self.args)


def state_of(generator: Any) -> tuple[Callable[[Any], Any], Any]:
    """What sets a generator's state, and its state now."""
    if isinstance(generator, random.Random):
        return generator.setstate, generator.getstate()
    return generator.set_state, generator.get_state()


def states_of(draws: Sequence[Draw]) -> list[tuple[Callable[[Any], Any], Any]]:
    """`state_of` of each generator."""
    return [state_of(g) for g in {id(g): g for g in (draw.source() for draw in draws)}.values()]


def put_back(states: Sequence[tuple[Callable[[Any], Any], Any]]) -> None:
    """Generators as they stood."""
    for setter, state in states:
        setter(state)


def drawing(graph: Callable, draws: Sequence[Draw], places: Sequence[int]) -> Callable:
    """A graph that draws its inputs at `places`, which ascend, itself.

    Cost: 8 us a call for the state of Python's generator.
    """

    def run(*inputs: Any) -> Any:
        states = states_of(draws)
        try:
            given = list(inputs)
            for place, value in zip(places, [draw() for draw in draws]):
                given.insert(place, value)
            return graph(*given)
        except BaseException:
            put_back(states)
            raise

    return run


def peeked(draws: Sequence[Draw]) -> list:
    """The numbers that these calls will draw, which are not drawn."""
    states = states_of(draws)
    try:
        return [draw() for draw in draws]
    finally:
        put_back(states)
