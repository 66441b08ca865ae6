"""Random numbers of Python's and NumPy's generators that enter operations: eager's numbers, and eager's state after each call."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bytejit
from bytejit.compat import numpy_types

LINEAR = torch.nn.Linear(3, 3)


def arithmetic(x):
    return x * random.random() + random.random() - (-random.uniform(1, 2)) / 3


def used_and_returned(x):
    first, second, third = random.random(), random.uniform(1, 2), random.random()
    return x * second, first, second, {"third": third, "doubled": third * 2}


def in_a_loop(x):
    return [x * random.random() for _ in range(3)], random.random()


def ints(x):
    m = random.randint(0, 5) * 2 + 1
    return x + m, m, random.randrange(10), torch.full((3,), random.randrange(2, 9, 3))


def of_numpy(x):
    return x * np.random.uniform(0, 1) + np.random.rand() * random.random() + np.random.normal(1, 2)


def float_of_numpy(x):
    return x * float(np.random.uniform(0, 1))


def into_arguments(x):
    return torch.full((3,), random.random()), x.clamp(max=random.uniform(1, 2)), torch.add(x, x, alpha=random.random())


def beside_torchs(x):
    return x * random.random() + torch.rand(3), random.random()


def written(x):
    x.mul_(random.random())
    return x


def trained(x):
    return (LINEAR(x) * random.uniform(0.5, 1)).sum()


IN_ONE_GRAPH = [
    *(arithmetic, used_and_returned, in_a_loop, ints, of_numpy, float_of_numpy, into_arguments, beside_torchs, written, trained)
]


def over_a_break(x):
    number = random.random()
    y = x * number
    print("between")
    return y + random.random(), number


def decides(x):
    number = random.uniform(-1, 1)
    return x * number if number > 0 else x - number


def layers_dropped(x):
    for n in range(3):
        if random.uniform(0, 1) < 0.5:
            continue
        x = x * 2 + n
    return x * random.random()


def a_size(x):
    n = random.randint(1, 3)
    return x[:n].sum() + torch.zeros(n).sum(), n


def a_logarithm(x):
    return x * math.log(random.random() + 1), int(random.random() * 5)


def a_probability(x):
    return torch.nn.functional.dropout(x, random.random() * 0.5)


def seeded_inside(x):
    y = x * random.random()
    random.seed(4)
    return y + random.random()


def conditional(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x * random.random(),))


def mixed_up(x):
    lam = random.betavariate(1, 1)
    return lam * x + (1 - lam) * x.flip(0)


BROKEN = [over_a_break, decides, layers_dropped, a_size, a_logarithm, a_probability, seeded_inside, conditional, mixed_up]


def outcome(f: Callable, seed: int) -> tuple[Any, ...]:
    """What a call gives or raises, the states that it leaves, and what became of its argument."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(seed * 311):  # to where the generator makes its next numbers at once
        random.random()
    x = torch.arange(3.0) + 1
    try:
        made = f(x)
    except IndexError as e:
        made = type(e)
    left = random.getstate(), np.random.get_state()[2], torch.get_rng_state().sum().item()
    return made, left, x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [*IN_ONE_GRAPH, *BROKEN])
def test_numbers_and_states_are_eagers(f, backend, capsys) -> None:
    compiled = bytejit.compile(f, backend=backend, fullgraph=f in IN_ONE_GRAPH)
    graphs: list[int] = []
    for seed in range(4):
        torch.testing.assert_close(outcome(compiled, seed)[0], outcome(f, seed)[0])
        assert outcome(compiled, seed)[1] == outcome(f, seed)[1]
        graphs.append(sum(bytejit.counters["graphs"].values()))
    if f in IN_ONE_GRAPH:
        assert graphs == [1] * 4


def test_a_number_of_each_call() -> None:
    compiled = bytejit.compile(arithmetic, fullgraph=True)
    assert len({tuple(compiled(torch.ones(3)).tolist()) for _ in range(5)}) == 5


def test_gradients() -> None:
    compiled, given = bytejit.compile(trained, fullgraph=True), []
    for f in (trained, compiled):
        random.seed(1)
        LINEAR.zero_grad()
        f(torch.ones(3)).backward()
        given.append(LINEAR.weight.grad.clone())
    torch.testing.assert_close(*given)


def test_a_graph_that_raises_draws_once() -> None:
    def f(x):
        return x[torch.tensor([x.int()[2] + 7])] * random.random() * np.random.uniform()

    compiled = bytejit.compile(f, backend="eager")
    for seed in range(3):
        assert outcome(compiled, seed)[:2] == outcome(f, seed)[:2]


class Noise(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def forward(self, x):
        return x * self.rng.random() + self.rng.randint(1, 5) * random.random()


def test_a_generator_of_the_programs_own() -> None:
    noise, same = Noise(3), Noise(3)
    compiled = bytejit.compile(noise, backend="eager", fullgraph=True)
    for _ in range(3):
        state = random.getstate()
        want = same(torch.ones(2))
        random.setstate(state)
        assert torch.equal(compiled(torch.ones(2)), want) and noise.rng.getstate() == same.rng.getstate()
    noise.rng, same.rng = random.Random(9), random.Random(9)
    state = random.getstate()
    want = same(torch.ones(2))
    random.setstate(state)
    assert torch.equal(compiled(torch.ones(2)), want) and noise.rng.getstate() == same.rng.getstate()


def test_two_generators_that_change_places() -> None:
    def f(x, first, second):
        return x * first.random() - second.uniform(1, 2)

    compiled = bytejit.compile(f, backend="eager")
    pair, same = ([random.Random(k) for k in (1, 2)] for _ in range(2))
    for order in ((0, 1), (1, 0), (0, 0)):
        want = f(torch.ones(2), *(same[k] for k in order))
        assert torch.equal(compiled(torch.ones(2), *(pair[k] for k in order)), want)
        assert [g.getstate() for g in pair] == [g.getstate() for g in same]


def test_a_generator_of_each_call() -> None:
    """Made in the region's function, or given: no call compiles anew. A number that is drawn late comes in its turn."""

    def made(x, rng):
        return x * random.Random(5).uniform(1, 2) + random.Random(6).random()

    def late(x, rng, other, *more):
        n = other.random()
        return sum(more, x * rng.random()), n

    for f, count in ((made, 0), (late, 1), (late, 9)):
        compiled = bytejit.compile(f, backend="eager")
        bytejit.counters.clear()
        for seed in range(6):
            given, more = (torch.ones(2), random.Random(seed)), [torch.ones(2)] * (count - 1)
            others = [random.Random(7)] if count else []
            want = f(*given, *others, *more)
            given[1].seed(seed)
            others = [random.Random(7)] if count else []
            assert repr(compiled(*given, *others, *more)) == repr(want)
        assert bytejit.counters["graphs"]["eager"] <= 2, f
    compiled = bytejit.compile(late, backend="eager")
    for pair in ((1, 2), (2, 2), (0, 2), (2, 0), (0, 0)):
        generators = [random._inst, random.Random(1), random.Random(2)]
        runs = []
        for run in (late, compiled):
            for k, g in enumerate(generators):
                g.seed(k)
            runs.append((repr(run(torch.ones(2), *(generators[k] for k in pair))), [g.getstate() for g in generators]))
        assert runs[0] == runs[1], pair


def test_a_generator_is_not_kept_alive() -> None:
    noise = Noise(3)
    compiled, gone = bytejit.compile(lambda x, rng: x * rng.random(), backend="eager"), weakref.ref(noise.rng)
    compiled(torch.ones(2), noise.rng)
    del noise
    gc.collect()
    assert gone() is None


def test_randint_in_the_words_of_random() -> None:
    def f(x):
        try:
            return x + random.randint(5, 1)
        except ValueError as e:
            return x, str(e)

    assert repr(bytejit.compile(f, backend="eager")(torch.ones(1))) == repr(f(torch.ones(1)))


@pytest.mark.parametrize("limit, breaks", [(0.0, False), (0, False), (1.5, False), (-1, False), (0.5, True)])
def test_a_branch_on_what_rand_draws(limit, breaks) -> None:
    """A comparison that all numbers that can be drawn answer alike is no break; the number is drawn all the same."""

    def f(x):
        for _ in range(2):
            if torch.rand([]) < limit:
                x = x + 1
            if limit <= torch.rand(1):
                x = x * 2
        return torch.nn.functional.dropout(x)

    compiled, x = bytejit.compile(f), torch.ones(5)
    for seed in range(3):
        given = []
        for each in (f, compiled):
            torch.manual_seed(seed)
            given.append((each(x), torch.get_rng_state()))
        assert all(map(torch.equal, *given))
    assert bool(bytejit.counters["breaks"]) == breaks


def mixed(x: torch.Tensor) -> tuple:
    """Mixup, as it is written: a number that is drawn is used twice."""
    lam = np.random.beta(0.4, 0.4)
    other = random.gauss(0.0, 1.0)
    at = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[at], (other - 2) * x * other, lam


def drawn(x: torch.Tensor) -> tuple:
    """Numbers of many kinds, which nothing uses."""
    of_numpy = [getattr(np.random, name)(*(0.3, 0.5, 0.9)[:most]) for name, most in numpy_types.DRAWS]
    r = random
    of_python = r.gauss(0, 1), r.gauss(0.0, 2), r.betavariate(1, 2), r.triangular(), r.normalvariate(1, 2), r.expovariate(2)
    more = r.gammavariate(1, 2), r.lognormvariate(0, 1), r.paretovariate(2), r.vonmisesvariate(0, 1), r.weibullvariate(1, 2)
    return x + 1, of_numpy, of_python, more


def refused(x: torch.Tensor) -> tuple:
    """Arguments that raise, some of them when numbers are drawn already; sizes."""
    said: list = []
    for draw in (
        lambda: np.random.beta(-1, 1),
        lambda: np.random.normal(0, -1),
        lambda: np.random.beta(1),
        lambda: random.gauss("a", 1),  # type: ignore[arg-type]
        lambda: random.betavariate(0, 0),
        lambda: np.random.normal(0, 1, 2).tolist(),
    ):
        try:
            said.append(draw())
        except Exception as e:
            said.append((type(e).__name__, str(e)))
    return x + 1, said


class Halves(random.Random):
    def random(self) -> float:
        return 0.5


def own(x: torch.Tensor) -> tuple:
    """Generators of the program's, one of a class with a method of its own."""
    a, b = GENERATORS
    return x * a.gauss(0, 1) + b.betavariate(2, 3) * x, b.gauss(0, 1), a.random()


GENERATORS = (random.Random(3), Halves(3))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f, whole", [(mixed, True), (drawn, True), (refused, False), (own, False)])
def test_draws_of_many_kinds(f: Callable, whole: bool, backend: str) -> None:
    compiled, x, found = bytejit.compile(f, backend=backend, fullgraph=whole), torch.arange(4.0), []
    for each in (f, compiled):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        for g in GENERATORS:
            g.seed(1)
        said = [each(x) for _ in range(4)]
        found.append((said, random.random(), np.random.rand(), torch.rand(1), [g.random() for g in GENERATORS]))
    wanted, got = found
    torch.testing.assert_close(
        [[a for a in r if type(a) is torch.Tensor] for r in got[0]],
        [[a for a in r if type(a) is torch.Tensor] for r in wanted[0]],
    )
    plain = lambda r: [a for a in r if type(a) is not torch.Tensor]  # noqa: E731
    assert list(map(plain, got[0])) == list(map(plain, wanted[0])) and got[1:] == wanted[1:]


def with_a_made_one(x, seed=5):
    rng = random.Random(seed)
    order = [0, 1, 2, 3]
    rng.shuffle(order)
    picked = rng.choice(order), rng.sample(order, 2), rng.randint(1, 6), rng.gauss(0.0, 1.0), rng.getrandbits(5)
    return x * rng.random() + rng.uniform(1, 2), order, picked, rng


def test_a_generator_that_the_region_makes():
    """Of a known seed its numbers are known; what leaves stands where eager's stands, with half a pair of gauss()."""
    compiled = bytejit.compile(with_a_made_one, backend="eager", fullgraph=True)
    for _ in range(2):
        (*want, same), (*got, rng) = with_a_made_one(torch.ones(2)), compiled(torch.ones(2))
        assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
        assert type(rng) is random.Random and rng.getstate() == same.getstate() and rng.gauss(0, 1) == same.gauss(0, 1)


def test_a_made_generator_over_a_break_and_of_seeds_that_change(capsys):
    def f(x, seed):
        rng = random.Random("text" if seed is None else seed)
        first = rng.random()
        rng.seed(7)
        print("between")
        return x * first + rng.random(), rng

    compiled = bytejit.compile(f, backend="eager")
    for seed in (1, 1, None, None, 2, 3, 4, 5, 6, 7, 8, 9):
        (want, same), (got, rng) = f(torch.ones(2), seed), compiled(torch.ones(2), seed)
        assert torch.equal(want, got) and rng.getstate() == same.getstate(), seed
    assert bytejit.counters.total("graphs") <= 4
    assert capsys.readouterr().out == "between\n" * 24


def test_seeds_that_are_not_known():
    """Of the system's entropy, or of what random.Random refuses"""

    def f(x, *seed):
        return x + 1, random.Random(*seed).random() < 1.0

    compiled = bytejit.compile(f, backend="eager")
    assert compiled(torch.ones(2))[1] and compiled(torch.ones(2), None)[1]
    with pytest.raises(TypeError):
        compiled(torch.ones(2), [1])
