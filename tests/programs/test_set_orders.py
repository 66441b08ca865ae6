"""The order in which a copy of a set is gone through: eager's, which is not always that of the set or of adding its items."""

import random
import statistics
import types
from collections.abc import Callable

import pytest
import torch

import bytejit

SETS = [
    set(rng.sample(range(0, 4000, 8), rng.randint(2, 5))) for rng in map(random.Random, range(30))
]  # multiples of 8 meet in a small set's table
for _rng, _set in zip(map(random.Random, range(10)), SETS):  # places in the table that were taken once
    _set.update(_rng.sample(range(0, 4000, 8), 8))
    while len(_set) > 4:
        _set.discard(_rng.choice(sorted(_set)))


def step(x, n):
    return x * 2 + n


def program(members):
    def f(x):
        for n in set(members):
            x = x * 2 + n
        for n in frozenset(members.copy()):
            x = x * 3 - n
        return x, members.copy(), set(members), frozenset(members)

    return f


@pytest.mark.parametrize("kind", [set, frozenset])
def test_numbers(kind):
    for numbers in map(kind, SETS):
        bytejit.reset()  # each of them is a closure over the same code
        f = program(numbers)
        got = bytejit.compile(f, backend="eager", fullgraph=True)(torch.ones(2, dtype=torch.float64))
        want = f(torch.ones(2, dtype=torch.float64))
        assert torch.equal(got[0], want[0]), numbers
        assert [[*s] for s in got[1:]] == [[*s] for s in want[1:]], numbers


def changing(members):
    def f(x):
        made, before = set(members), set(members)
        made.add(-1)
        members.add(-2)
        for n in before:
            x = x * 2 + n
        return x, sorted(made), before, sorted(members)

    return f


def test_a_set_that_was_changed_since():
    for numbers in SETS:
        bytejit.reset()
        got = bytejit.compile(changing(set(numbers)), backend="eager", fullgraph=True)(torch.ones(2, dtype=torch.float64))
        want = changing(set(numbers))(torch.ones(2, dtype=torch.float64))
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


def test_the_same_items_in_another_order_cost_one_more_compile():
    steps = [types.FunctionType(step.__code__, {}, step.__name__, (n,)) for n in range(30)]
    members = set(steps[:9])

    def f(x):
        for step in members.copy():
            x = step(x)
        return x

    compiled = bytejit.compile(f, backend="eager", fullgraph=True, options={"recompile_limit": 20})
    for change in (
        lambda: None,
        lambda: members.update(steps),
        lambda: members.difference_update(steps[9:]),  # what it was, in a larger table
        lambda: members.difference_update(steps[3:]),
        lambda: members.update(steps[3:9]),
    ):
        change()
        assert torch.equal(compiled(torch.ones(2, dtype=torch.float64)), f(torch.ones(2, dtype=torch.float64)))


VALUES = [*range(-3, 40), *range(0, 4000, 40), "a", "bb", None, 3.5, (1, 2), True]
STEPS: dict[str, Callable[[set, list, set], object]] = {
    "add": lambda s, a, o: [s.add(v) for v in a],
    "discard": lambda s, a, o: [s.discard(v) for v in a],
    "remove": lambda s, a, o: s and s.remove(sorted(s, key=repr)[0]),
    "update": lambda s, a, o: s.update(a),
    "update from a generator": lambda s, a, o: s.update(v for v in a),
    "update from a dict": lambda s, a, o: s.update(dict.fromkeys(a)),
    "update from a set": lambda s, a, o: s.update(set(a)),
    "update from outside": lambda s, a, o: s.update(o),
    "or": lambda s, a, o: s | set(a),
    "and": lambda s, a, o: s & (o | set(a)),
    "sub": lambda s, a, o: s - set(a),
    "xor": lambda s, a, o: s ^ frozenset(a),
    "union": lambda s, a, o: s.union(set(a), a),
    "intersection": lambda s, a, o: s.union(a).intersection(set(a) | s),
    "difference_update": lambda s, a, o: s.difference_update(a),
    "intersection_update": lambda s, a, o: s.intersection_update(s | set(a)),
    "symmetric_difference_update": lambda s, a, o: s.symmetric_difference_update(a),
    "copy": lambda s, a, o: s.copy(),
    "from a list": lambda s, a, o: set(list(s)),
    "frozen": lambda s, a, o: set(frozenset(s)),
    "comprehension": lambda s, a, o: {v for v in s if v != 3},
    "clear": lambda s, a, o: s.clear(),
    "pop": lambda s, a, o: s and s.pop(),
}
STARTS: list[Callable[[list, set], set]] = [
    lambda a, o: set(a),
    lambda a, o: {*a},
    lambda a, o: set(dict.fromkeys(a)),
    lambda a, o: set(o),
    lambda a, o: {5, *o},
    lambda a, o: {1, 17, 40, 5, 9, 33},
]


def steps_of(rng: random.Random) -> Callable:
    start = rng.choice(STARTS)
    begin = rng.choices(VALUES, k=rng.randrange(14))
    steps = [(rng.choice([*STEPS.values()]), rng.choices(VALUES, k=rng.randrange(8))) for _ in range(rng.randrange(5))]

    def f(x, o):
        s, seen = start(begin, o), []
        for step, values in steps:
            made = step(s, values, o)
            s = made if isinstance(made, set) else s
            seen.append(list(s))
        return x + 1, seen, s, frozenset(s)

    return f


@pytest.mark.parametrize("seed", range(40))
def test_each_step_in_the_life_of_a_set(seed):
    rng = random.Random(seed)
    f, numbers = steps_of(rng), rng.sample(range(0, 900, 8), 6)
    compiled = bytejit.compile(f, backend="eager")
    for more in ((), (808,)):
        (_, *want), (_, *got) = f(torch.ones(1), {*numbers, *more}), compiled(torch.ones(1), {*numbers, *more})
        for s in (want[1], got[1]):  # and what is done with it afterwards
            s.update((1000, 33, -7))
        assert (got[0], [*got[1]], [*got[2]], got[1].pop()) == (want[0], [*want[1]], [*want[2]], want[1].pop())


@pytest.mark.parametrize("seed", range(20))
def test_a_set_from_outside_is_changed_step_by_step(seed):
    rng = random.Random(seed)
    kinds = ("add", "discard", "update", "update from a set", "update from a dict", "difference_update", "clear")
    steps = [(STEPS[rng.choice(kinds)], rng.choices(VALUES, k=rng.randrange(8))) for _ in range(4)]
    numbers = rng.sample(range(0, 900, 8), 6)

    def f(x, o):
        for step, values in steps:
            step(o, values, o)
        return x + 1, [*o]

    compiled = bytejit.compile(f, backend="eager")
    for more in ((), (808,)):
        mine, theirs = {*numbers, *more}, {*numbers, *more}
        assert compiled(torch.ones(1), mine)[1] == f(torch.ones(1), theirs)[1]
        assert [*mine] == [*theirs]


def test_a_set_of_constants_decides_the_order_of_operations():
    def f(x):
        for n in {17, 2, 40, 5, 9}:
            x = x * 2 + n
        return x

    x = torch.ones(2, dtype=torch.float64)
    assert torch.equal(bytejit.compile(f, backend="eager", fullgraph=True)(x), f(x))


def made_of_changed(how: Callable) -> Callable:
    def f(x, o, p):
        o.add(1)
        o.discard(24)
        made = how(o, p)
        return x + 1, list(made), made, o, p

    return f


MADE_OF_CHANGED: dict[str, Callable[[set, set], set]] = {
    "or": lambda o, p: o | {184},
    "or of a copy": lambda o, p: o.copy() | {184},
    "frozen": lambda o, p: frozenset(o),
    "and": lambda o, p: o & {1, 16, 8, *p},
    "into another": lambda o, p: p.update(o) or p | o,
    "both": lambda o, p: p.add(9) or o.update(p) or p.intersection_update(o) or p - {9},
    "what it was": lambda o, p: [q := o.copy(), o.add(33), o.intersection_update(q)] and q,
}


@pytest.mark.parametrize("how", MADE_OF_CHANGED)
def test_sets_made_of_one_that_the_region_changed(how):
    f = made_of_changed(MADE_OF_CHANGED[how])
    compiled = bytejit.compile(f, backend="eager")

    def shrunk(items: set) -> set:  # its table is larger than that of a new set of the same items
        made = set(range(0, 800, 8)) | items
        made.difference_update(made - items)
        return made

    for begin in (set, shrunk):
        for o in ({0, 8, 16, 24}, {8, 16}, {0, 8}, {24, 57}, set(range(0, 72, 8))):
            _, *want = f(torch.ones(1), begin(o), {40, 3})
            _, *got = compiled(torch.ones(1), begin(o), {40, 3})
            for s in (*want[1:], *got[1:]):
                getattr(s, "update", len)((1000, 33, -7))
            assert [*map(list, got)] == [*map(list, want)], (o, begin)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_the_order_of_a_set_from_outside_is_guarded(kind):
    def f(x, numbers):
        for n in numbers:
            x = x * 2 + n
        return x

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for numbers in ([0, 8], [8, 0], [0, 8]):
        assert torch.equal(compiled(torch.ones(1), kind(numbers)), f(torch.ones(1), kind(numbers)))


def test_items_of_a_subclass_of_int_stay_what_they_are():
    class Size(int):
        pass

    made = bytejit.compile(lambda x, v, w: (x, {v, w}), backend="eager")(torch.ones(1), 2.5, Size(4))[1]
    assert {type(v) for v in made} == {float, Size}


class Weight:
    """Its hash depends on its address."""


def test_one_item_has_one_place():
    def f(x, o):
        one, types, made = {o}, {type(v) for v in (1.0, 2.0)}, {x}
        made |= {x}
        a, *rest = one
        return sum(made) + statistics.mean([1.0, 2.0, 6.0]), a is o, rest, [*types], [v for v in one - {o}]

    x, o = torch.ones(2), Weight()
    assert repr(bytejit.compile(f, backend="eager", fullgraph=True)(x, o)) == repr(f(x, o))
