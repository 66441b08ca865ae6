"""Generators that cross: those from outside advanced inside, and those made inside that leave."""

import contextlib
import itertools
import types

import pytest
import torch

from . import targets
from .harness import F, Sign, case, program


def begun(iterator, n=1):
    """The iterator, n items on."""
    for _ in range(n):
        next(iterator)
    return iterator


def steps(k):
    """Items and a result; the first yield receives a value."""
    sent = yield k
    for i in range(3):
        yield i * k + (sent or 0)
    return 5


def scaled(x):
    """One generator within another."""
    result = yield from steps(2)
    yield x * result


@case(
    args=lambda r: (
        r.f(4),
        (i * 2 for i in range(3)),
        begun(i * 2 for i in range(3)),
        steps(3),
        begun(steps(3)),
        begun(steps(3), 2),
    ),
    graphs=1,
)
def test_generators_given(x, *generators):
    """Generators from outside, new and begun: run to their ends inside, ended for the caller too"""
    for g in generators:
        for i in g:
            x = x + i
    return x, [list(g) for g in generators]


@case(args=lambda r: (r.f(4), scaled(r.f(4)), begun(scaled(r.f(4)), 2), begun(scaled(r.f(4)), 5)), graphs=1)
def test_generators_given_yield_from(x, new, within, behind):
    """Generators from outside that stand within a `yield from`"""
    return [x * i for i in new], [x + i for i in within], list(behind), next(new, None)


def powers(x):
    """Tensors, each computed when it is asked for."""
    for i in range(3):
        yield x
        x = x * (i + 2)


@case(
    args=lambda r: (
        r.f(4),
        powers(r.f(4)),
        torch.nn.Sequential(torch.nn.ReLU()).children(),
        torch.nn.BatchNorm1d(4).named_buffers(),
    ),
    graphs=1,
)
def test_generators_of_tensors_given(x, g, children, buffers):
    """A generator of tensors from outside, stacked; those of a module's children and buffers"""
    return torch.stack(list(g)) + x, dict(buffers), [c(x) for c in children]


@case(args=lambda r: (r.f(4), steps(2), begun(steps(3)), steps(1), begun(steps(2), 5 - 1)), graphs=1)
def test_generators_given_driven(x, sent, thrown, closed, last):
    """`send`, `throw`, `close` and the returned value of generators from outside"""
    out = [next(sent), sent.send(4), *sent]
    try:
        thrown.throw(KeyError("k"))
    except KeyError as e:
        out.append(str(e))
    out.append(next(closed))
    closed.close()
    try:
        next(last)
    except StopIteration as e:
        out.append(e.value)
    return x * 2, out, list(thrown), list(closed)


@program(F(4), graphs=1)
def test_generator_given_shares_a_cell():
    """Generators from outside that write to a cell which others read"""
    n, given = 0, []

    def rising(to):
        nonlocal n
        while n < to:
            n += 10
            yield n

    given += [rising(30 * i) for i in range(1, 4)]

    def f(x):
        return [x + i for i in given.pop(0)], n

    return f, lambda: (n, len(given))


@case(args=lambda r: (r.f(4), steps(2), (k for k in "abc"), itertools.starmap(pow, [(2, 3), (3, 2)])))
def test_generators_given_read_in_part(x, g, letters, more):
    """Generators from outside of which some items are taken: the caller takes the others"""
    a, b = zip(range(1), letters), next(g)
    return x + next(g) + b, list(a), next(more), [g, letters, more]


def managed(log):
    """Something to do when it is closed."""
    try:
        yield 1
        yield 2
    finally:
        log.append("closed")


@case(args=lambda r: (lambda log: (r.f(4), managed(log), log))([]), graphs=1)
def test_generator_given_with_finally(x, g, log):
    """A new generator from outside with a `finally`: it runs once"""
    for i in g:
        x = x + i
    return x, list(log)


@case(args=lambda r: (r.f(4), [], managed), drive=lambda f, x, log, make: (f(x, begun(make(log)), log), log))
def test_generator_given_within_try(x, g, log):
    """A generator from outside that stands within a `try`: its `finally` runs once"""
    y = [x + i for i in g]
    return y, list(log)


@case(Sign(4), drive=lambda f, x: (lambda g: (f(x, g), list(g)))(steps(2)), breaks=True)
def test_break_after_a_generator_given(x, g):
    """A break between two items of a generator from outside"""
    a = x + next(g)
    if a.sum() > 0:
        a = a * next(g)
    return a


@case(args=lambda r: (r.f(4), types.SimpleNamespace(source=(i + 1 for i in range(3)), more=[iter("ab"), steps(1)])), graphs=1)
def test_generators_as_attributes(x, holder):
    """Generators found in attributes and lists, made anew for each call"""
    return [x * i for i in holder.source], holder.source is holder.source, [len(list(m)) for m in holder.more]


@case(args=lambda r: (r.f(4), *[(i for i in range(2))] * 2))
def test_one_generator_twice(x, a, b):
    """One generator under two names: one iteration"""
    return [x + i for i in a], [x + i for i in b], a is b


@case(args=lambda r: (r.f(4), (1 // i for i in (1, 0, 2))), graphs=1)
def test_generator_given_raises(x, g):
    """An exception out of a generator from outside, caught"""
    out = []
    try:
        for i in g:
            out.append(x + i)
    except ZeroDivisionError as e:
        out.append(str(e))
    return out, list(g)


@contextlib.contextmanager
def noted(log):
    """Notes when it is entered and left."""
    log.append("in")
    try:
        yield 2
    finally:
        log.append("out")


def entered(f, x, log):
    manager = noted(log)
    manager.__enter__()
    return f(x, manager, log), log


@case(F(4), [], drive=entered)
def test_manager_entered_outside(x, manager, log):
    """A `@contextmanager` entered by the caller, left inside"""
    y = x + 1
    manager.__exit__(None, None, None)
    return y * len(log)


@case(F(4), 3, drive=lambda f, x, n: [v if isinstance(v, (int, str)) else list(v) for v in f(x, n)], graphs=1)
def test_generators_returned(x, n):
    """Generators, generator expressions and itertools objects made inside and returned, begun by the caller"""
    y, ended = x + 1, steps(n)
    last = list(ended)
    return (
        (y * i for i in range(n)),
        steps(n),
        scaled(y),
        zip(steps(k=2), "ab"),
        itertools.chain([y], (y for _ in "a")),
        itertools.islice(itertools.count(n), 3),
        ended,
        len(last),
        type(itertools.count()).__name__,
        type(ended).__name__,
        map(steps, [1]),
    )


@case(F(4))
def test_begun_generators_returned(x):
    """A generator begun inside and returned; one whose frame the caller looks into"""
    g, other = steps(2), steps(3)
    a = next(g)
    other.note = None if hasattr(other, "note") else a
    return g, x + a


@case(F(4), drive=lambda f, x: [(g.gi_frame.f_locals, g.__name__, g.__qualname__, g.gi_code.co_name) for g in f(x)], graphs=1)
def test_returned_generators_locals(x):
    """What the caller sees of a generator made inside: names and locals"""
    y = x * 2

    def named(a, /, b=y, *args, c, **more):
        yield a

    return named(1, c=x, d=y), named(x, 2, 3, c=4)


def guarded(x, log):
    try:
        yield x + 1
        yield x + 2
    finally:
        log.append("end")


def by_none(x, log):
    g = guarded(x, log)
    y = next(g)
    g = None
    log.append("after")
    return y * 2


def by_another(x, log):
    g = guarded(x, log)
    y = next(g)
    g = guarded(x * 2, log)
    log.append("after")
    return y * 2 + next(g)


def in_loop(x, log):
    for i in range(2):
        g = guarded(x, log)
        y = next(g)
        log.append(i)
    log.append("after")
    return y * 2


def by_manager(x, log):
    g = guarded(x, log)
    y = next(g)
    with contextlib.nullcontext() as g:
        log.append("within")
    return y * 2


def last_of_two(x, log):
    g = guarded(x, log)
    y, h = next(g), g
    g = None
    log.append("held")
    h = 0
    log.append("after")
    return y * 2 + h


@pytest.mark.parametrize("fn", [by_none, by_another, in_loop, by_manager, last_of_two], ids=lambda f: f.__name__)
def test_overwritten(fn):
    """A local that holds a suspended generator, and is overwritten, lets it go there and not at the region's end"""
    run = targets.compiled(fn, targets.Counter())
    for _ in range(3):
        want, log = [], []
        expected = fn(torch.ones(2), want)
        assert torch.equal(run(torch.ones(2), log), expected) and log == want
