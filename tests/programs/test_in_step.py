"""What takes from an iterator is in step with it: how far it reads, when, and what others that read it get afterwards."""

import functools
import itertools
import operator
from collections import Counter, deque

import pytest

from .harness import F, case, make_case, run_case


def numbers(log, n=9):
    for i in range(n):
        log.append(i)
        yield i


def noted(log, what, value):
    log.append(what)
    return value


CONSUMERS = {
    "in": lambda g, log: 3 in g,
    "in map": lambda g, log: 2 in map(lambda i: noted(log, "m", i), g),
    "in enumerate": lambda g, log: (2, 2) in enumerate(g),
    "in zip": lambda g, log: (1, "b") in zip(g, "abc"),
    "in filter": lambda g, log: 3 in filter(None, g),
    "in chain": lambda g, log: 2 in itertools.chain(g, "x"),
    "in reversed": lambda g, log: [2 in (k := reversed([1, 2, 3])), list(k)],
    "in keys": lambda g, log: ["b" in (k := iter(dict.fromkeys("abc"))), list(k)],
    "indexOf": lambda g, log: operator.indexOf(g, 3),
    "countOf": lambda g, log: operator.countOf(g, 3),
    "isdisjoint": lambda g, log: [{3}.isdisjoint(g), frozenset([6]).isdisjoint(g)],
    "keys isdisjoint": lambda g, log: {3: 0}.keys().isdisjoint(g),
    "issuperset": lambda g, log: {0, 1}.issuperset(g),
    "min key": lambda g, log: min(g, key=lambda i: noted(log, "k", i)),
    "max key": lambda g, log: max(g, key=lambda i: noted(log, "k", -i), default=0),
    "max of none": lambda g, log: max((i for i in ()), key=abs, default="none"),
    "sorted key": lambda g, log: sorted(g, key=lambda i: noted(log, "k", -i)),
    "reduce": lambda g, log: functools.reduce(lambda a, b: noted(log, "r", a + b), g),
    "islice": lambda g, log: list(itertools.islice(g, 1, 7, 3)),
    "islice behind its end": lambda g, log: list(itertools.islice(g, 3, 2)),
    "islice of none": lambda g, log: list(itertools.islice(g, 0)),
    "zip longest": lambda g, log: list(itertools.islice(itertools.zip_longest(g, "ab", fillvalue="-"), 3)),
    "groupby": lambda g, log: [(k, next(v)) for k, v in itertools.islice(itertools.groupby(g, lambda i: i // 3), 2)],
    "groupby, left group": lambda g, log: groups(itertools.groupby(g, lambda i: noted(log, "k", i // 2))),
    "tee": lambda g, log: branches(*itertools.tee(g, 3)),
    "star": lambda g, log: [*itertools.islice(g, 2), *itertools.takewhile(lambda i: i < 4, g)],
    "extend": lambda g, log: (y := [1], y.extend(y[-1] + i for i in g))[0],
    "deque extendleft": lambda g, log: (y := deque([1], 4), y.extendleft(y[0] + i for i in g))[0],
    "deque extend": lambda g, log: (y := deque([1], 4), y.extend(y[-1] + len(y) + i for i in g))[0],
    "set update": lambda g, log: (y := {1}, y.update(len(y) for i in g))[0],
    "dict update": lambda g, log: (y := {"a": 1}, y.update((i, len(y)) for i in g))[0],
    "Counter update": lambda g, log: (y := Counter("a"), y.update("a" * y["a"] for i in itertools.islice(g, 2)))[0],
    "extend by itself": lambda g, log: (y := [1, next(g)], y.extend(y), z := deque(y), z.extend(z))[0::2],
}


def groups(pairs):
    first, one = next(pairs)
    second, two = next(pairs)
    return first, list(one), second, list(two)


def branches(a, b, c):
    return next(a), next(a), next(b), list(itertools.islice(c, 4)), list(b), list(a)


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer(name):
    """Each consumer of an iterator reads as far as Python's, and no further"""
    consume = CONSUMERS[name]

    def build():
        def f(x):
            log = []
            source = numbers(log)
            got = consume(source, log)
            read = list(log)
            return x + 1, got, read, next(source, None), log

        return f, None

    run_case(make_case(build, (F(3),), None, None, 1, None, False, "eager", 2, None, (), (0.0, 0.0), __file__))


MAKERS = {
    "product": lambda g: itertools.product(g, [1], repeat=2),
    "combinations": lambda g: itertools.combinations(g, 2),
    "combinations again": lambda g: itertools.combinations_with_replacement(g, 2),
    "permutations": lambda g: itertools.permutations(g, 2),
    "chain": lambda g: itertools.chain(g, g),
    "from_iterable": lambda g: itertools.chain.from_iterable([i] * 2 for i in g),
    "islice": lambda g: itertools.islice(g, 1, None, 2),
    "zip longest": lambda g: itertools.zip_longest(g, "ab"),
    "pairwise": itertools.pairwise,
    "accumulate": lambda g: itertools.accumulate(g, initial=5),
    "takewhile": lambda g: itertools.takewhile(lambda i: i < 2, g),
    "dropwhile": lambda g: itertools.dropwhile(lambda i: i < 2, g),
    "filterfalse": lambda g: itertools.filterfalse(None, g),
    "compress": lambda g: itertools.compress(g, g),
    "starmap": lambda g: itertools.starmap(max, zip(g, g)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_maker(name):
    """Each of itertools takes from its sources when it is made, or item by item, as Python's does"""
    make = MAKERS[name]

    def build():
        def f(x):
            log, seen = [], []
            made = make(numbers(log, 4))
            seen.append(list(log))
            for _ in range(2):
                seen.append((next(made, "end"), list(log)))
            return x + 1, seen, list(made), log, next(made, "end")

        return f, None

    run_case(make_case(build, (F(3),), None, None, 1, None, False, "eager", 2, None, (), (0.0, 0.0), __file__))


@case(F(3), graphs=1)
def test_wrong_arguments_of_itertools(x):
    """itertools refuses wrong arguments when it is called, not at the first item"""
    said = []
    for call in (
        lambda: itertools.product(3),
        lambda: itertools.islice(3, 1),
        lambda: itertools.islice([1], -1),
        lambda: itertools.islice([1]),
        lambda: itertools.islice([1], 0, 3, 0),
        lambda: itertools.islice([1], "a", 3),
        lambda: itertools.starmap(pow, 3),
        lambda: itertools.count("a"),
        lambda: itertools.repeat(1, "a"),
        lambda: itertools.cycle(3),
        lambda: itertools.combinations([1], -1),
        lambda: itertools.zip_longest(3),
        lambda: itertools.groupby(3),
        lambda: itertools.takewhile(None, 3),
        lambda: iter(3, 4),
        lambda: reversed({1}),
        lambda: deque([], -1),
        lambda: isinstance(1, 3),
        lambda: (lambda *a: a)(*3),
        lambda: (lambda **a: a)(**3),
        lambda: dict(a=1, **{"a": 2}),
        lambda: {**1},
    ):
        try:
            said.append(type(call()).__name__)
        except (TypeError, ValueError) as e:
            said.append((type(e), str(e)))
    return x + 1, said


@case(F(3), graphs=1)
def test_iterators_of_itertools_leave(x):
    """Iterators of itertools that nothing was taken from are returned"""
    return x + 1, list(map(list, makers_left(x)))


def makers_left(x):
    return (
        itertools.islice(itertools.count(2, 3), 3),
        itertools.product([x, 1], repeat=2),
        itertools.zip_longest([1], [2, x]),
        itertools.accumulate([1, 2], operator.mul),
        itertools.combinations_with_replacement("ab", 2),
        itertools.chain.from_iterable([[1], [2]]),
        itertools.repeat(x, 2),
    )
