# ruff: noqa: B007 - what the programs do is the point
"""Generators and iterators"""

import collections
import itertools

import pytest
import torch

from .harness import F, Sign, Turn, case, make_case, program, run_case


def count_up(x, n):
    for i in range(n):
        got = yield x + i
        if got is not None:
            x = x * got
    return "done"


def delegate(x):
    r = yield from count_up(x, 2)
    yield r


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Seq:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10

    def __len__(self):
        return 3


@case(F(4), graphs=1)
def test_generator(x):
    """Generator consumed by `for`"""
    y = x
    for v in count_up(x, 3):
        y = y + v
    return y


@case(F(4), graphs=1)
def test_generator_send(x):
    """`send` and the return value"""
    g = count_up(x, 3)
    a = next(g)
    b = g.send(2)
    c = next(g)
    try:
        next(g)
    except StopIteration as s:
        return a, b, c, s.value


@case(F(4), graphs=1)
def test_generator_throw_close(x):
    """`throw` and `close`"""
    log = []

    def g():
        try:
            yield x
        except ValueError as e:
            log.append(str(e))
            yield x + 1
        finally:
            log.append("closed")

    it = g()
    a = next(it)
    b = it.throw(ValueError("t"))
    it.close()
    return a, b, log


@case(F(4), graphs=1)
def test_yield_from(x):
    """`yield from`"""
    return list(delegate(x))


@case(F(4), graphs=1)
def test_generator_expression(x):
    """Generator expressions in sum, tuple, any, all, max, join"""
    return (
        sum(x * i for i in range(3)),
        tuple(x + i for i in range(2)),
        any(i > 1 for i in range(3)),
        all(i > 1 for i in range(3)),
        max(i % 3 for i in range(5)),
        ",".join(str(i) for i in range(3)),
    )


@case(F(4), graphs=1)
def test_zip_enumerate_map_filter(x):
    """zip, enumerate, map, filter, reversed, sorted, sum, min, max"""
    a = [x, x + 1, x + 2]
    return (
        [p * q for p, q in zip(a, (1, 2, 3))],
        [i * v for i, v in enumerate(a, 1)],
        list(map(torch.sin, a)),
        list(map(lambda p, q: p - q, a, a[::-1])),
        list(filter(None, [0, 1, 2])),
        list(reversed(a)),
        sum([1, 2], 3),
        sorted([3, 1, 2], reverse=True),
        min(3, 1),
        max([2, 5], key=lambda v: -v),
    )


@case(F(4), graphs=1)
def test_zip_strict(x):
    """`zip(strict=True)` raises"""
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as e:
        return x + 1, str(e)


@case(F(4), graphs=1)
def test_itertools(x):
    """itertools: chain, product, islice, count, repeat, accumulate, groupby, zip_longest, ..."""
    t = itertools
    return (
        list(t.chain([x], [x + 1])),
        list(t.chain.from_iterable([[1], [2]])),
        list(t.product([1, 2], "ab")),
        list(t.islice(t.count(5, 2), 3)),
        list(t.repeat(x, 2)),
        list(t.accumulate([1, 2, 3])),
        [(k, list(g)) for k, g in t.groupby([1, 1, 2])],
        list(t.zip_longest([1, 2], [3], fillvalue=0)),
        list(t.combinations([1, 2, 3], 2)),
        list(t.permutations([1, 2])),
        list(t.takewhile(lambda v: v < 3, [1, 5])),
        list(t.dropwhile(lambda v: v < 3, [1, 5])),
        list(t.starmap(pow, [(2, 3)])),
        list(t.compress([1, 2], [0, 1])),
        list(t.pairwise([1, 2, 3])),
        list(t.filterfalse(None, [0, 1])),
    )


@case(F(4), graphs=1)
def test_itertools_accumulate_tensor(x):
    """`accumulate` and `reduce` over tensors"""
    import functools
    import operator

    return (
        list(itertools.accumulate([x, x, x])),
        functools.reduce(operator.add, [x, x, x]),
        functools.reduce(lambda a, b: a * b, [x, x], x),
    )


@case(F(4), graphs=1)
def test_user_iterator(x):
    """User-defined `__iter__`, `__next__`; iteration by `__getitem__`"""
    y = x
    for i in Countdown(3):
        y = y + i
    for v in Seq():
        y = y * v
    return y, list(Seq()), list(Countdown(2)), 10 in Seq()


@case(F(4), graphs=1)
def test_iter_sentinel_next_default(x):
    """`iter(f, sentinel)`, `next` with default"""
    vals = [3, 2, 1]
    return list(iter(lambda: vals.pop(), 3)), next(iter([]), x + 1)


@case(F(4), graphs=1)
def test_partial_consumption(x):
    """Iterator consumed in two places"""
    it = iter([x, x + 1, x + 2])
    first = next(it)
    rest = [v * 2 for v in it]
    return first, rest, list(it)


@program(F(4))
def test_iterator_given():
    """An iterator from outside, advanced: the caller sees where it stands"""
    it = iter(range(100))

    def f(x):
        return x + next(it) + next(it)

    return f, lambda: it.__length_hint__()


@case(F(4), [1, 2, 3], drive=lambda f, x, xs: (lambda it: (f(x, it), list(it)))(iter(xs)))
def test_list_iterator_argument(x, it):
    """A list iterator as argument, advanced inside"""
    return x * next(it)


@case(F(4), drive=lambda f, x: (lambda g: (f(x, g), list(g)))(count_up(x, 4)))
def test_generator_argument(x, g):
    """A generator made outside, advanced inside"""
    return next(g) + next(g)


@case(F(4), drive=lambda f, x: list(f(x)))
def test_compiled_generator(x):
    """The compiled function is a generator"""
    for i in range(3):
        x = x.sin() + i
        yield x
    return


@case(F(4), drive=lambda f, x: (lambda g: (next(g), g.send(3), list(g)))(f(x)))
def test_compiled_generator_send(x):
    """The compiled function is a generator that receives values"""
    k = yield x + 1
    yield x * k
    yield x.cos()


def _run_async(f, x):
    import asyncio

    return asyncio.run(f(x))


async def _plus_one(x):
    return x + 1


@case(F(4), drive=_run_async)
async def test_compiled_coroutine(x):
    """The compiled function is `async`"""
    y = x.sin()
    z = await _plus_one(y)
    return z * 2


async def _drain(agen):
    return [v async for v in agen]


@case(F(4), drive=lambda f, x: __import__("asyncio").run(_drain(f(x))))
async def test_compiled_async_generator(x):
    """The compiled function is an async generator"""
    for i in range(2):
        x = x + i
        yield x


@case(F(4), drive=lambda f, x: list(f(x)))
def test_returned_generator(x):
    """A generator made inside and returned"""
    y = x + 1
    return (y * i for i in range(3))


@case(F(4), drive=lambda f, x: [list(v) if not isinstance(v, torch.Tensor) else v for v in f(x)])
def test_returned_iterators(x):
    """zip, map, enumerate objects returned"""
    return [zip([x], [1]), map(torch.sin, [x, x]), enumerate([x]), iter([x, x + 1]), reversed([1, 2])]


@case(Sign(4), breaks=True)
def test_break_in_loop(x):
    """Break inside a `for` over a list, an iterator, zip, enumerate"""
    out = []
    for i, (v, w) in enumerate(zip([1, 2, 3], iter("abc"))):
        x = x + v
        if x.sum() > 0:
            out.append((i, w))
        else:
            out.append(x * i)
    return x, out


@case(Sign(4), breaks=True)
def test_break_in_generator(x):
    """Break inside a generator that the region runs"""

    def g():
        for i in range(3):
            if x.sum() > 0:
                yield x + i
            else:
                yield x - i

    return [v * 2 for v in g()]


@case(Sign(4), breaks=True)
def test_break_while_generator_suspended(x):
    """Break while a generator made inside is suspended"""
    g = count_up(x, 4)
    a = next(g)
    if a.sum() > 0:
        a = a + next(g)
    return a, list(g)


@case(Sign(4), breaks=True)
def test_break_in_comprehension(x):
    """Break inside a comprehension"""
    return [x + i if x.sum() > i else x - i for i in range(3)]


@case(F(4), graphs=1)
def test_generator_closure_state(x):
    """Generators interleaved, sharing a cell"""
    total = 0

    def g(k):
        nonlocal total
        for i in range(2):
            total += k
            yield x * total

    return [p + q for p, q in zip(g(1), g(10))], total


@case(F(4), graphs=1)
def test_generator_raises(x):
    """An exception from inside a generator"""

    def g():
        yield x
        raise KeyError("in g")

    out = []
    try:
        for v in g():
            out.append(v + 1)
    except KeyError as e:
        return out, e.args


@case(F(4), graphs=1)
def test_unpack_generator(x):
    """Unpacking generators, star calls, dict and set made of them"""
    a, b = (x + i for i in range(2))
    return (
        a - b,
        max(*(i for i in (3, 4))),
        dict((k, v) for k, v in [("a", x)]),
        set(i % 2 for i in range(4)),
        [*(i for i in range(2))],
    )


@case(F(4), 4)
def test_next_with_default_of_an_exhausted_generator(x, n):
    """`next(generator, default)` at its end, within try"""

    def steps(t, k):
        for i in range(k % 4):
            yield t + i

    try:
        t = next(steps(x, n), x * 2)
        if n % 3 == 1:
            raise ValueError(n)
    except Exception as e:
        return t, type(e).__name__
    return t, ""


def outside(r):
    """Iterators of Python's own containers, some of them used up in part."""
    x, items = r.f(4), [r.f(4) for _ in range(3)]
    begun = iter([1, 2, 3, 4])
    next(begun)
    return (
        x,
        begun,
        iter((5, 6)),
        iter(range(3, 9, 2)),
        iter("ab"),
        iter({"k": items[0]}.items()),
        reversed(items),
        reversed((7, 8)),
        enumerate(items, 4),
        zip(items, range(2)),
        zip(enumerate("xy"), iter(b"pq")),
        iter({3}),
    )


@case(args=outside, graphs=1)
def test_iterators_given(x, *iterators):
    """Iterators of Python's own containers given from outside: read to their ends"""
    seen = []
    for it in iterators:
        for item in it:
            seen.append(item)
            if isinstance(item, tuple) and isinstance(item[-1], torch.Tensor):
                x = x + item[-1]
            x = x * 2
    return x, seen


@case(args=outside, graphs=1)
def test_iterators_given_read_in_part(x, *iterators):
    """Iterators given from outside, of which some items are taken: they stand behind these afterwards"""
    taken = [next(it) for it in iterators[:9]]
    first, *_ = iterators[9]
    return x + taken[0], taken, first, list(iterators[0]), next(iterators[0], "none")


@case(
    args=lambda r: (r.f(4), map(lambda a: a + 1, [1, 2, 3]), filter(None, iter([0, 1, 2])), map(lambda a, b: a * b, [1, 2], [3])),
    graphs=1,
)
def test_maps_given(x, mapped, filtered, two):
    """`map` and `filter` given from outside: their functions are called inside"""
    y = x * next(mapped)
    for k in filtered:
        y = y + k
    return y, list(two), mapped


@program(F(4), graphs=1)
def test_iterator_over_what_changes():
    """A list read through an iterator from outside, then changed; appended to after the iterator's end"""
    items = [1, 2]
    it, other = iter(items), iter(items)

    def f(x):
        for i in it:
            x = x * i
        items.append(len(items))
        return x

    return f, lambda: (items, list(it), next(other, None))


@program(F(4), graphs=1, total=2, calls=4)
def test_count_given():
    """An itertools.count of the program's own: a number for each object that is made"""
    made, down, log = itertools.count(3), itertools.count(-4, -5), []

    class Node:
        def __init__(self, x):
            self.x, self.number = x, next(made)

    def f(x):
        a, b = Node(x), Node(x + 1)
        log.append(f"{a.number} {b.number}")
        return a.x * b.number + next(down), [n for n, _ in zip(made, "ab")], isinstance(made, itertools.count)

    return f, lambda: (log, repr(made), repr(down))


@case(args=lambda r: (r.f(4), itertools.islice(itertools.count(r.call), 5), [iter("abcd")] * 2), breaks=True)
def test_iterators_not_looked_into(x, count, twice):
    """An itertools object from outside; one iterator zipped with itself"""
    for a, b in zip(*twice):
        x = x * len(a + b)
    return x, next(count), next(count)


@program(F(2, 4), total=2, breaks=True)
def test_break_in_loop_over_modules():
    """Break inside a loop over a ModuleList: what follows goes on into the next round"""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if i == 1 and x.sum() > 1e6:
                    x = x * 2
                x = x + i
            return x

    return Model()


@case(F(4), breaks=True)
def test_break_in_loops_over_dict_and_zip(x):
    """Break inside loops over a dict's items, zip, enumerate of zip, a map: the rest goes on with the same iterators"""
    scales = {"a": 2.0, "b": 3.0, "c": 4.0}
    for k, s in scales.items():
        x = x * s
        if x.sum() > 1e6:
            x = x - len(k)
    for i, (a, b) in enumerate(zip(scales.values(), [x, x + 1])):
        x = x + a * b
        print(i, float(x.sum()) > 1e6)
    for s in map(lambda v: v + 1, scales.values()):
        x = x / s
        if x.sum() > 1e6:
            break
    return x


# ---- closed and thrown into -------------------------------------------------------------------------------------------
def noted(log, name, x, swallow=()):
    """A generator that tells how it ends."""
    try:
        yield x
        yield x + 1
    except swallow as e:
        log.append((name, type(e).__name__))
        return 5
    finally:
        log.append((name, "out"))


def over(log, x, swallow=()):
    try:
        got = yield from noted(log, "inner", x, swallow)
        log.append(got)
        yield x * 3
    finally:
        log.append(("outer", "out"))


def of_list(log, x):
    try:
        yield from [x, x + 1]
    finally:
        log.append(("list", "out"))


@pytest.mark.parametrize("make", [noted, over, of_list])
@pytest.mark.parametrize("end", ["close", "throw", "let go", "break", "kept"])
def test_generator_in_the_middle(make, end):
    """close, throw, a loop left by break, the last name of a generator gone: its finally runs, and what it delegates to first"""

    def build():
        log = []

        def f(x):
            swallow = (ValueError,) if end == "throw" else ()
            args = (log, "alone", x, swallow) if make is noted else (log, x) if make is of_list else (log, x, swallow)
            if end == "break":
                for y in make(*args):
                    log.append("in")
                    break
                return y * 2, len(log)
            g = make(*args)
            y = next(g)
            if end == "close":
                g.close()
            elif end == "throw":
                try:
                    y = y + g.throw(ValueError("v"))
                except (ValueError, StopIteration) as e:
                    log.append(type(e).__name__)
            elif end == "let go":
                del g
            return y * 2, len(log), g if end == "kept" else None

        return f, lambda: log

    run_case(make_case(build, (F(3),), None, None, None, None, False, "eager", 2, None, (), (0.0, 0.0), __file__))


@program(F(3))
def test_generator_that_will_not_close():
    """A generator, behind `yield from`, that goes on when it is closed; one that returns"""
    log = []

    def stubborn(x):
        try:
            yield x
        except GeneratorExit:
            yield x * 2

    def calm(x):
        try:
            yield x
        except GeneratorExit:
            log.append("calm")
            return 5

    def passing(x, inner):
        try:
            log.append((yield from inner(x)))
            yield x
        except GeneratorExit:
            log.append("passed")
            raise

    def f(x):
        for inner in (stubborn, calm):
            g = passing(x, inner)
            y = next(g)
            try:
                g.close()
            except RuntimeError as e:
                log.append(str(e))
        return y * 2

    return f, lambda: log


@program(F(3))
def test_generator_left_where_other_exceptions_are_caught():
    """Iterators left in the middle whose code catches what is no GeneratorExit: one graph"""
    from collections.abc import Sequence

    class Row(Sequence):
        def __getitem__(self, i):
            return (1, 2, 3)[i]

        def __len__(self):
            return 3

    def pairs(source):
        it = iter(source)
        while True:
            try:
                yield next(it)
            except (StopIteration, ValueError):
                return
            except TypeError:
                yield None

    def f(x):
        return x * next(iter(Row())) + next(pairs([x, x]))

    return f


@program(F(3), calls=2)
def test_lengths_are_asked_as_in_eager():
    """What makes a list or a tuple asks for the length, or a hint of it, before the first item; iterators do not"""
    seen = []

    class Sized:
        def __init__(self, length):
            self.length = length

        def __iter__(self):
            seen.append("iter")
            return iter([3, 1, 2])

        def __len__(self):
            seen.append("len")
            if isinstance(self.length, Exception):
                raise self.length
            return self.length

    class Hinted:
        def __init__(self, hint):
            self.hint, self.left = hint, 3

        def __iter__(self):
            seen.append("iter of hinted")
            return self

        def __next__(self):
            seen.append("next")
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def __length_hint__(self):
            seen.append("hint")
            return self.hint

    class Items:
        def __len__(self):
            seen.append("len of items")
            return 2

        def __getitem__(self, i):
            seen.append(i)
            return [5, 6][i]

    def asked(made):
        first, *others = made()
        out = [list(made()), tuple(made()), sorted(made()), [*made()], (0, *made()), max(*made()), others, list(iter(made()))]
        out.extend(made())
        out += made()
        out[:1] = made()
        return [out, collections.deque(made()), set(made()), sum(made()), [v for v in made()], torch.Size(made())]

    def refused(made, ask):
        try:
            return ask(made)
        except (TypeError, ValueError) as e:
            return repr(e)

    def f(x):
        kinds = lambda: Sized(3), lambda: Sized(TypeError("not now")), lambda: Hinted(3), lambda: Hinted(NotImplemented), Items
        bad = Sized(-1), Sized(ValueError("no")), Hinted(-1), Hinted("many"), Sized("many")
        asks = list, tuple, len, bool, reversed
        return x + 1, [asked(made) for made in kinds], [refused(made, ask) for made in bad for ask in asks]

    return f, lambda: seen


@program(F(3), calls=2)
def test_containers_with_a_length_of_their_own():
    """Looking at a list, a tuple or a dict from outside does not ask the program for its length or keys"""
    seen = []

    def sized(kind):
        class Sized(kind):
            def __len__(self):
                seen.append("len")
                return super().__len__()

        return Sized((1, 2))

    class Table(dict):
        def __len__(self):
            seen.append("len of table")
            return super().__len__()

        def __iter__(self):
            seen.append("iter of table")
            return super().__iter__()

        def __contains__(self, key):
            seen.append("contains")
            return super().__contains__(key)

    lists, table = (sized(list), sized(tuple)), Table(a=1)

    def f(x):
        return (
            x + 1,
            [(sum(held), 3 in held, [v for v in held], list(held), bool(held)) for held in lists],
            [(table.get("a"), table.get("b"), "b" in table, bool(table), sum(table.values()), [k for k in table])],
        )

    return f, lambda: seen


@program(F(3), Turn(3, 1, 2))
def test_changed_while_iterated():
    """A set or deque that grows or shrinks while it is iterated: Python's error, and again at the next step"""
    held, row = {1, 2}, collections.deque([1, 2])

    def f(x, n):
        found, s = [], {1, n}
        for change in (
            lambda: [s.add(v + 100) for v in s],
            lambda: [s.discard(v) for v in s],
            lambda: [held.add(n + 50) for v in held],
            lambda: [row.append(v) for v in row],
            lambda: [row.popleft() for v in row],
        ):
            try:
                found.append(change())
            except RuntimeError as e:
                found.append(str(e))
        it = iter(s)
        next(it)
        s.add(-1)
        for _ in range(2):
            try:
                next(it)
            except RuntimeError as e:
                found.append(str(e))
        row.extend([1, 2])
        for i, v in enumerate(row):
            row[i] = v + 1
        it = iter(s)
        list(it)
        s.add(-5)
        return x * n, found, next(it, "end"), len(s), list(row)

    return f, lambda: (held, row)


class Ends:
    """An iterator whose end says something"""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if not self.n:
            raise StopIteration("the end", 7)
        self.n -= 1
        return self.n


@case(F(4), graphs=1)
def test_what_the_end_of_an_iterator_says(x):
    """The StopIteration of a program's `__next__`: caught, given by `yield from`, and where next() has a default"""

    def delegate(found):
        found.append((yield from Ends(2)))

    found = []
    items, it = list(delegate(found)), Ends(1)
    try:
        while True:
            items.append(next(it))
    except StopIteration as e:
        found += [e.value, e.args]
    return x + 1, items, found, next(it, "default")


class Anew:
    """An iterator that begins anew where it is asked for one"""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == 4:
            raise StopIteration
        self.at += 1
        return self.at


@case(F(4), graphs=1)
def test_iterators_that_begin_anew(x):
    """itertools ask a source for its iterator once"""
    it = Anew()
    parts = [list(itertools.islice(it, 1, 3)), list(itertools.pairwise(it)), list(itertools.accumulate(it))]
    parts += [list(itertools.dropwhile(lambda n: n < 2, it)), list(itertools.zip_longest(it, [1]))]
    parts += [[list(group) for _, group in itertools.groupby(it, lambda n: n // 2)], list(itertools.tee(it)[0])]
    return x + 1, parts, list(itertools.chain.from_iterable([it, it])), list(itertools.islice(itertools.cycle(it), 6))


@program(F(3), graphs=1)
def test_the_end_of_what_takes_from_iterators():
    """map, filter, zip and enumerate pass on what the end of their source says, and ask it once more; a function may end them"""

    class Again(Ends):
        def __next__(self):
            self.n += 1
            if self.n % 3 == 0:
                raise StopIteration(self.n)
            return self.n

    def ends():
        yield 1
        return 8

    def first(n):
        if n == 2:
            raise StopIteration(7)
        return n

    def rest():
        found = yield from map(first, [1, 2])
        yield found

    def f(x):
        said = []
        for make in (lambda i: map(str, i), lambda i: filter(None, i), zip, enumerate, lambda i: zip([5, 6, 7, 8], i)):
            for it in (make(Again(0)), make(ends())):
                for _ in range(4):
                    try:
                        said.append(next(it))
                    except StopIteration as e:
                        said.append(e.args)
        again, called = map(first, [1, 2, 3]), iter(lambda: first(2), 0)
        items = [*again, *again, *rest(), *map(first, [1, 2]), next(called, "end"), *called]
        return x + len(said), said, items

    return f
