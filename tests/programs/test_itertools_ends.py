"""itertools as C's classes do it: what a step raises, a StopIteration's value too, is passed on, and most go on after it."""

import itertools
import operator
import sys

import pytest
import torch

import bytejit


class Again:
    """Raises at each third step, and goes on."""

    def __init__(self, error):
        self.n, self.error = 0, error

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        if self.n > 7:
            raise StopIteration
        if self.n % 3 == 0:
            raise self.error(self.n)
        return self.n


def ends():
    yield 1
    yield 2
    return 8


def stops(error):
    """A function that raises now and then."""

    def f(n, m=0):
        if m or n in (2, 5):
            raise error(70 + n)
        return n

    return f


TAKING = {
    "islice": lambda it, f: itertools.islice(it, 9),
    "islice from": lambda it, f: itertools.islice(it, 1, 9, 2),
    "islice past": lambda it, f: itertools.islice(it, 4, 9),
    "takewhile": lambda it, f: itertools.takewhile(lambda n: f(n) < 9, it),
    "dropwhile": lambda it, f: itertools.dropwhile(lambda n: f(n) < 2, it),
    "dropwhile all": lambda it, f: itertools.dropwhile(lambda n: f(n) < 9, it),
    "accumulate": lambda it, f: itertools.accumulate(it),
    "accumulate by": lambda it, f: itertools.accumulate(it, lambda a, b: a + f(b)),
    "accumulate initial": lambda it, f: itertools.accumulate(it, initial=3),
    "filterfalse": lambda it, f: itertools.filterfalse(lambda n: f(n) == 1, it),
    "filterfalse None": lambda it, f: itertools.filterfalse(None, it),
    "compress": lambda it, f: itertools.compress(it, itertools.repeat(True)),
    "compress by": lambda it, f: itertools.compress([1, 2, 3, 4, 5, 6, 7, 8], it),
    "chain": lambda it, f: itertools.chain(it, [7], map(f, [1, 2, 3])),
    "chain of": lambda it, f: itertools.chain.from_iterable(map(lambda n: [f(n)], it)),
    "starmap": lambda it, f: itertools.starmap(f, zip(it)),
    "starmap add": lambda it, f: itertools.starmap(operator.add, zip(it, itertools.count(3))),
    "pairwise": lambda it, f: itertools.pairwise(it),
    "groupby": lambda it, f: map(operator.itemgetter(0), itertools.groupby(it, f)),
    "groups": lambda it, f: itertools.chain.from_iterable(
        map(operator.itemgetter(1), itertools.groupby(it, lambda n: f(n) // 2))
    ),
    "zip_longest": lambda it, f: itertools.zip_longest(it, [1, 2, 3, 4, 5]),
    "cycle": lambda it, f: itertools.cycle(it),
    "tee": lambda it, f: itertools.tee(it)[1],
}
if sys.version_info >= (3, 12):
    TAKING["batched"] = lambda it, f: itertools.batched(it, 2)
    TAKING["batched rest"] = lambda it, f: itertools.batched(it, 3)


def steps(it):
    said = []
    for _ in range(9):
        try:
            said.append(next(it))
        except (StopIteration, ValueError) as e:
            said.append((type(e).__name__, e.args))
    return said


def delegated(it):
    found = yield from it
    yield "ended with", found


@pytest.mark.parametrize("name", TAKING)
def test_what_a_step_raises(name):
    take = TAKING[name]

    def f(x):
        said = []
        for error in (StopIteration, ValueError):
            for source in (lambda: Again(error), ends):  # noqa: B023
                said += [steps(take(source(), abs)), steps(take(source(), stops(error)))]
                if error is StopIteration and name != "cycle":
                    said.append(list(delegated(take(source(), stops(error)))))
            said.append(steps(take(iter([1, 2, 3, 4, 5, 6]), stops(error))))
        return x + 1, said

    x = torch.ones(2)
    assert bytejit.compile(f, backend="eager", fullgraph=True)(x)[1] == f(x)[1]


def test_nothing_is_thrown_into_them():
    """They have no `throw` and no `close`: a generator that delegates to one gets the exception, and the iterator goes on"""

    def f(x):
        rest, closed = itertools.islice([1, 2, 3, 4], 4), itertools.chain([1, 2, 3])

        def g():
            try:
                yield from rest
            except ValueError:
                yield "caught"
            yield from rest

        went = g()
        said = [next(went), went.throw(ValueError), *went]
        left = delegated(closed)
        next(left)
        left.close()
        return x + 1, said, list(closed), [hasattr(rest, name) for name in ("throw", "close", "send")]

    x = torch.ones(2)
    assert bytejit.compile(f, backend="eager", fullgraph=True)(x)[1:] == f(x)[1:]


def test_a_count_of_tensors_writes_none():
    """count adds before it gives a value, and makes a new one"""

    def f(x):
        numbers = itertools.count(x[0])
        return next(numbers), next(numbers), next(numbers), x * 2

    got = bytejit.compile(f, backend="eager", fullgraph=True)(x := torch.ones(1))
    assert [t.item() for t in got] == [1, 2, 3, 2] and x.item() == 1
