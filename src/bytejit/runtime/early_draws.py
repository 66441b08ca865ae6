"""Random numbers that are drawn before a graph runs, which takes them as inputs: `random.random()`, `np.random.uniform()`.

Where the graph raises, the original code runs from the region's start and draws them again: the generators stand then where
they stood before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Draw:
    """function(*args), which draws from a generator: from `generator`, which is the first argument if `bound`. It is one that all
    share, or an int: the place of the program's own among those that are fetched for each call."""

    function: Callable
    args: tuple
    generator: Any
    bound: bool

    def source(self, own: Sequence) -> Any:
        """The generator."""
        return own[self.generator] if type(self.generator) is int else self.generator

    def __call__(self, own: Sequence) -> Any:
        return self.function(self.source(own), *self.args) if self.bound else self.function(*self.args)


def state_of(generator: Any) -> tuple[Callable[[Any], Any], Any]:
    """Returns the function that sets a generator's state, and its state now."""
    if isinstance(generator, random.Random):
        return generator.setstate, generator.getstate()
    return generator.set_state, generator.get_state()


def states_of(draws: Sequence[Draw], own: Sequence) -> list[tuple[Callable[[Any], Any], Any]]:
    """`state_of` of each generator."""
    return [state_of(g) for g in {id(g): g for g in (draw.source(own) for draw in draws)}.values()]


def put_back(states: Sequence[tuple[Callable[[Any], Any], Any]]) -> None:
    """Generators as they stood."""
    for setter, state in states:
        setter(state)


def drawing(graph: Callable, draws: Sequence[Draw], places: Sequence[int], own: int) -> Callable:
    """A graph that draws its inputs at `places`, which ascend, itself. The last `own` arguments are generators of the program's.

    Cost: 8 us a call for the state of Python's generator.
    """

    def run(*inputs: Any) -> Any:
        given = list(inputs)
        generators = given[len(given) - own :]
        states = states_of(draws, generators)
        try:
            del given[len(given) - own :]
            for place, value in zip(places, [draw(generators) for draw in draws]):
                given.insert(place, value)
            return graph(*given)
        except BaseException:
            put_back(states)
            raise

    return run


def peeked(draws: Sequence[Draw], own: Sequence) -> list:
    """The numbers that these calls will draw, which are not drawn."""
    states = states_of(draws, own)
    try:
        return [draw(own) for draw in draws]
    finally:
        put_back(states)
