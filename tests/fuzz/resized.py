"""A chain's text with inputs of other sizes, as later calls have them: sizes that coincide, change places, or are 1."""

import random
import re

from .chain_runner import build

MADE = re.compile(r"(torch\.randn\(|torch\.randint\(-?\d+, \d+, )\(([\d, ]*)\)")
NUMBER = re.compile(r"\d+")


def sizes_of(text: str) -> list[int]:
    """The sizes of the inputs, each once."""
    return sorted({int(n) for found in MADE.finditer(text) for n in NUMBER.findall(found[2])})


def with_sizes(text: str, new: dict[int, int]) -> str:
    """The text with other sizes of the inputs."""
    change = lambda n: str(new.get(int(n[0]), int(n[0])))  # noqa: E731
    return MADE.sub(lambda found: f"{found[1]}({NUMBER.sub(change, found[2])})", text)


def resized(text: str, seed: int) -> tuple[str, ...]:
    """The text in other sizes: all the same, in another order, any, some of them 1. Sizes that were equal stay so."""
    r, sizes = random.Random(seed), [n for n in sizes_of(text) if n > 1]
    same, shuffled = r.choice((2, 3, 4, 6)), r.sample(sizes, len(sizes))
    ways = (
        dict.fromkeys(sizes, same),
        dict(zip(sizes, shuffled)),
        {n: r.choice((2, 3, 4, 5, 6, 8, 10)) for n in sizes},
        {n: 1 if r.random() < 0.5 else n for n in sizes},
    )
    return tuple(made for made in dict.fromkeys(with_sizes(text, way) for way in ways) if made != text and _has_inputs(made))


def _has_inputs(text: str) -> bool:
    try:
        build(text)["inputs"]()
    except (RuntimeError, IndexError):  # a view that this size does not have
        return False
    return True
