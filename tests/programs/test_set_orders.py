"""The order in which a copy of a set is gone through: eager's, which is not always that of the set or of adding its items."""

import random
import types

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
