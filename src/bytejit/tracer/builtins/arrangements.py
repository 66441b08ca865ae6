"""product, combinations and permutations of itertools, inlined: they take all of their sources when they are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from bytejit.tracer.core.models import replaces

from .lazy_iterators import iterates


@iterates(itertools.product)
def _product(*pools: Sequence, repeat: int) -> Iterator:
    result: list[tuple] = [()]
    for pool in pools * repeat:
        result = [(*x, y) for x in result for y in pool]
    yield from result


@replaces(itertools.product)
def product(*iterables: Iterable, repeat: int = 1) -> Iterator:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = []
    if repeat:
        for iterable in iterables:
            pools.append(tuple(iterable))
    return _product(*pools, repeat=repeat)


@iterates(itertools.combinations)
def _combinations(pool: Sequence, r: int) -> Iterator:
    yield from _choose(pool, r, 0, 1)


def _choose(pool: Sequence, r: int, start: int, step: int) -> Iterator:
    """step: distance from one chosen place to the next; 0 allows a place to be chosen again."""
    if r == 0:
        yield ()
        return
    for i in range(start, len(pool) - (r - 1) * step):
        for rest in _choose(pool, r - 1, i + step, step):
            yield (pool[i], *rest)


def _pool(iterable: Iterable, r: int) -> tuple:
    """Returns the elements of which r are chosen."""
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return pool


@replaces(itertools.combinations)
def combinations(iterable: Iterable, r: int) -> Iterator:
    return _combinations(_pool(iterable, r), r)


@iterates(itertools.combinations_with_replacement)
def _combinations_with_replacement(pool: Sequence, r: int) -> Iterator:
    yield from _choose(pool, r, 0, 0)


@replaces(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable: Iterable, r: int) -> Iterator:
    return _combinations_with_replacement(_pool(iterable, r), r)


@iterates(itertools.permutations)
def _permutations(pool: Sequence, r: int) -> Iterator:
    yield from _arrange(pool, r, ())


def _arrange(pool: Sequence, r: int, used: tuple) -> Iterator:
    if len(used) == r:
        yield tuple(pool[i] for i in used)
        return
    for i in range(len(pool)):
        if i not in used:
            yield from _arrange(pool, r, (*used, i))


@replaces(itertools.permutations)
def permutations(iterable: Iterable, r: int | None = None) -> Iterator:
    pool = tuple(iterable)
    if r is not None and r < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, len(pool) if r is None else r)
