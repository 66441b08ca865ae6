"""itertools in Python, inlined in place of its C classes.

Each takes from its sources when the C class does: work before the first item is in a function, the rest in a generator that
it calls. A program can see this order if a source has effects or is also read by others.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from bytejit.tracer.core.models import REPLACED, STAYING, STEPPED, replaces
from bytejit.tracer.core.versions import BATCHED_NAMES, newer

END: Any = object()  # what next() gives at the end of a source


def iterates(*classes: object, goes_on: bool = True) -> Callable:
    """Register a generator function that replaces a C iterator; it takes the same arguments. It must catch no exception,
    and keep its state in local variables: an exception of a step, StopIteration included, reaches the caller, and the next
    step starts where the failed one started. goes_on: whether the C iterator can be asked again after an exception."""

    def register(function: Callable) -> Callable:
        for c in classes:
            REPLACED.set(function.__code__, c)
        STEPPED.set(function.__code__, goes_on)
        return function

    return register


@replaces(itertools.chain)
def chain(*iterables: Iterable) -> Iterator:
    return _chain(iter(iterables))


@iterates(itertools.chain.from_iterable)
def _chain(iterables: Any) -> Iterator:
    active: Any = None
    while active is not None or iterables is not None:
        if active is None:
            source, iterables = iterables, None  # at its end should this raise
            iterable = next(source, END)
            if iterable is END:
                return
            active, iterables = iter(iterable), source
        item = next(active, END)
        if item is END:
            active = None
        else:
            yield item


@replaces(itertools.chain.from_iterable)
def chain_from_iterable(iterable: Iterable) -> Iterator:
    return _chain(iter(iterable))


@iterates(itertools.islice, goes_on=False)
def _islice(iterator: Iterator, start: int, stop: int | None, step: int) -> Iterator:
    wanted, at = start, 0
    while True:
        while at < wanted:
            next(iterator)
            at += 1
        if stop is not None and at >= stop:
            return
        item = next(iterator)
        at += 1
        wanted += step
        if stop is not None and wanted > stop:
            wanted = stop
        yield item


@replaces(itertools.islice)
def islice(iterable: Iterable, *args: int | None) -> Iterator:
    if not 1 <= len(args) <= 3:
        raise TypeError(f"islice expected at {'most 4' if args else 'least 2'} arguments, got {len(args) + 1}")
    bounds = slice(*args)
    start, stop, step = (None if n is None else _bound(n) for n in (bounds.start, bounds.stop, bounds.step))
    if stop is False:
        what = "Stop argument" if len(args) == 1 else "Indices"
        raise ValueError(f"{what} for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if start is False:
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step is not None and not step:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), start or 0, stop, step or 1)


def _bound(n: Any) -> Any:
    """An index or step as islice takes it, False where it does not."""
    if not hasattr(n, "__index__"):
        return False
    n = operator.index(n)
    return False if n < 0 else n


@iterates(itertools.count)
def _count(start: Any, step: Any) -> Iterator:
    while True:
        value, start = start, start + step
        yield value


@replaces(itertools.count)
def count(start: Any = 0, step: Any = 1) -> Iterator:
    for n in (start, step):
        if not (hasattr(n, "__index__") or hasattr(n, "__int__") or hasattr(n, "__float__") or isinstance(n, complex)):
            raise TypeError("a number is required")
    return _count(start, step)


@iterates(itertools.repeat)
def _repeat(value: object, *times: int) -> Iterator:
    if not times:
        while True:
            yield value
    for _ in range(times[0]):
        yield value


@replaces(itertools.repeat)
def repeat(object: object, *args: int, **kwargs: int) -> Iterator:
    times = args or tuple(kwargs.values())
    return _repeat(object, operator.index(times[0])) if times else _repeat(object)


@iterates(itertools.cycle)
def _cycle(iterator: Iterator) -> Iterator:
    saved, item = [], next(iterator, END)
    while item is not END:
        saved.append(item)
        yield item
        item = next(iterator, END)
    while saved:
        yield from saved


@replaces(itertools.cycle)
def cycle(iterable: Iterable) -> Iterator:
    return _cycle(iter(iterable))


@iterates(itertools.starmap)
def _starmap(function: Callable, iterator: Iterator) -> Iterator:
    while True:
        yield function(*next(iterator))


@replaces(itertools.starmap)
def starmap(function: Callable, iterable: Iterable, /) -> Iterator:
    return _starmap(function, iter(iterable))


@iterates(itertools.takewhile)
def _takewhile(predicate: Callable, iterator: Iterator) -> Iterator:
    while predicate(item := next(iterator)):
        yield item


@replaces(itertools.takewhile)
def takewhile(predicate: Callable, iterable: Iterable, /) -> Iterator:
    return _takewhile(predicate, iter(iterable))


@iterates(itertools.dropwhile)
def _dropwhile(predicate: Callable, iterator: Iterator) -> Iterator:
    while predicate(item := next(iterator)):
        pass
    while True:
        yield item
        item = next(iterator)


@replaces(itertools.dropwhile)
def dropwhile(predicate: Callable, iterable: Iterable, /) -> Iterator:
    return _dropwhile(predicate, iter(iterable))


@iterates(itertools.filterfalse)
def _filterfalse(predicate: Callable, iterator: Iterator) -> Iterator:
    while True:
        item = next(iterator)
        if not (item if predicate is None else predicate(item)):
            yield item


@replaces(itertools.filterfalse)
def filterfalse(function: Callable, iterable: Iterable, /) -> Iterator:
    return _filterfalse(function, iter(iterable))


@iterates(itertools.compress)
def _compress(data: Iterator, selectors: Iterator) -> Iterator:
    while True:
        item = next(data)
        if next(selectors):
            yield item


@replaces(itertools.compress)
def compress(data: Iterable, selectors: Iterable) -> Iterator:
    return _compress(iter(data), iter(selectors))


@iterates(itertools.pairwise, goes_on=False)
def _pairwise(iterator: Iterator) -> Iterator:
    before = next(iterator)
    while True:
        item = next(iterator)
        yield before, item
        before = item


@replaces(itertools.pairwise)
def pairwise(iterable: Iterable, /) -> Iterator:
    return _pairwise(iter(iterable))


@iterates(*newer(itertools, "batched"), goes_on=False)
def _batched(iterator: Iterator, n: int, *, strict: bool = False) -> Iterator:
    while True:
        row: list = []
        while len(row) < n and (item := next(iterator, END)) is not END:
            row.append(item)
        if not row:
            return
        if strict and len(row) < n:
            raise ValueError("batched(): incomplete batch")
        yield tuple(row)


@replaces(*newer(itertools, "batched"))
def batched(iterable: Iterable, n: int, **named: bool) -> Iterator:
    if named.keys() - BATCHED_NAMES:
        raise TypeError(f"batched() got an unexpected keyword argument {[*named][0]!r}")
    n = operator.index(n)
    if n < 1:
        raise ValueError("n must be at least one")
    return _batched(iter(iterable), n, **named)


@iterates(itertools.accumulate)
def _accumulate(iterator: Iterator, func: Callable | None, *, initial: Any) -> Iterator:
    total = next(iterator) if initial is None else initial
    yield total
    while True:
        item = next(iterator)
        total = total + item if func is None else func(total, item)
        yield total


@replaces(itertools.accumulate)
def accumulate(iterable: Iterable, func: Callable | None = None, *, initial: Any = None) -> Iterator:
    return _accumulate(iter(iterable), func, initial=initial)


@iterates(itertools.zip_longest, goes_on=False)
def _zip_longest(*iterators: Iterator, fillvalue: Any) -> Iterator:
    sources: list[Iterator | None] = list(iterators)
    left = len(iterators)
    while left:
        row = []
        for i, source in enumerate(sources):
            item = END if source is None else next(source, END)
            if item is END and source is not None:
                left -= 1
                if not left:
                    return
                sources[i] = None
            row.append(fillvalue if item is END else item)
        yield tuple(row)


@replaces(itertools.zip_longest)
def zip_longest(*iterables: Iterable, fillvalue: Any = None) -> Iterator:
    return _zip_longest(*[iter(iterable) for iterable in iterables], fillvalue=fillvalue)


@iterates(itertools.groupby)
def _groupby(iterator: Iterator, key: Callable | None) -> Iterator:
    current = value = wanted = END
    number = 0

    def step() -> None:
        nonlocal current, value
        item = next(iterator, END)
        if item is END:
            raise StopIteration
        current = item if key is None else key(item)
        value = item

    def group(of: Any, mine: int) -> Iterator:
        nonlocal value
        while number == mine:
            if value is END:
                step()
            if not (of is current or of == current):
                return
            item, value = value, END
            yield item

    while True:
        number += 1
        while current is END or wanted is not END and (wanted is current or wanted == current):
            step()
        wanted = current
        yield wanted, group(wanted, number)


@replaces(itertools.groupby)
def groupby(iterable: Iterable, key: Any = None) -> Iterator:
    return _groupby(iter(iterable), key)


@replaces(itertools.tee)
def tee(iterable: Iterable, n: int = 2, /) -> tuple[Iterator, ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    seen: list = []
    return tuple([_branch(iterator, seen) for _ in range(n)])


@iterates()
def _branch(iterator: Iterator, seen: list) -> Iterator:
    at = 0
    while True:
        if at == len(seen):
            item = next(iterator, END)
            if item is END:
                raise StopIteration
            seen.append(item)
        at += 1
        yield seen[at - 1]


@replaces(operator.indexOf)
def index_of(a: Iterable, b: Any, /) -> int:
    at = 0
    for item in a:
        if item is b or item == b:
            return at
        at += 1
    raise ValueError("sequence.index(x): x not in sequence")


@replaces(operator.countOf)
def count_of(a: Iterable, b: Any, /) -> int:
    count = 0
    for item in a:
        if item is b or item == b:
            count += 1
    return count


# what tee and a group are cannot be made anew from outside
STAYING.set(_branch.__code__, True)
_group = next(c for c in _groupby.__code__.co_consts if isinstance(c, CodeType) and c.co_name == "group")
STAYING.set(_group, True)
STEPPED.set(_group, True)
