"""Operators that are the program's Python: they see what was written before the call, and the region sees what they write."""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import FunctionType, SimpleNamespace

import pytest
import torch

import bytejit
from bytejit.tracer.objects.code_reach import facts_of, walk

NUMBER, TENSOR, LOG, TABLE, CONFIG = 1, torch.zeros(3), [], {}, SimpleNamespace(factor=1)
CALLED: list[Callable] = []


def reset() -> None:
    global NUMBER, TENSOR
    NUMBER, TENSOR, CONFIG.factor = 1, torch.zeros(3), 1
    LOG.clear()
    TABLE.clear()
    CALLED.clear()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER


def reads(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + TENSOR + 100 * len(LOG) + 10 * TABLE.get("k", 0) + CONFIG.factor


def writes(x: torch.Tensor) -> torch.Tensor:
    global NUMBER, TENSOR
    NUMBER, TENSOR = NUMBER + 1, TENSOR + 1
    LOG.append(len(LOG))
    TABLE["k"] = NUMBER
    CONFIG.factor += 1
    return x + NUMBER


def calls(x: torch.Tensor) -> torch.Tensor:
    return CALLED[0](x)


def counts(x: torch.Tensor) -> torch.Tensor:
    LOG.append("called")
    return x.cos()


def refuses(x: torch.Tensor) -> torch.Tensor:
    LOG.append("asked")
    if x.sum() > 2:
        raise ValueError("too much")
    return x + 1


def pure(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x)
    made[:] = helper_without_state(x)
    return made


def helper_without_state(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


OPS = {
    f.__name__: torch.library.custom_op(f"bytejit_tests::program_{f.__name__}", f, mutates_args=())
    for f in (reads, writes, calls, counts, refuses, pure)
}
for op in OPS.values():
    op.register_fake(torch.empty_like)
LIBRARY = torch.library.Library("bytejit_program_tests", "FRAGMENT")
LIBRARY.define("plain(Tensor x) -> Tensor")
LIBRARY.impl("plain", reads, "CPU")
LIBRARY.impl("plain", torch.empty_like, "Meta")
plain = torch.ops.bytejit_program_tests.plain


def global_before(x):
    global NUMBER
    NUMBER = NUMBER + 1
    return OPS["reads"](x) * 2


def tensor_before(x):
    global TENSOR
    TENSOR = x * 3
    return OPS["reads"](x + 1)


def tensor_in_place(x):
    TENSOR.add_(x)
    y = OPS["reads"](x)
    TENSOR.mul_(2)
    return y + OPS["reads"](x)


def objects_before(x):
    LOG.append(5)
    TABLE["k"] = 3
    CONFIG.factor = CONFIG.factor + 2
    return OPS["reads"](x)


def of_a_library(x):
    global NUMBER
    NUMBER += 1
    LOG.append(1)
    return plain(x) + 1


def in_a_loop(x):
    global NUMBER
    for i in range(3):
        NUMBER += 1
        x = OPS["reads"](x) + 1
        LOG.append(i)
    return x


def global_after(x):
    return OPS["writes"](x * 2) * NUMBER + TENSOR


def objects_after(x):
    y = OPS["writes"](x * 2)
    return y * len(LOG) + TABLE["k"] + CONFIG.factor


def before_and_after(x):
    global NUMBER
    a, b = NUMBER, CONFIG.factor
    x = OPS["writes"](x)
    c = NUMBER
    NUMBER = c + 10
    return OPS["writes"](x), a, b, c, NUMBER, CONFIG.factor


def raises_in_try(x):
    y = OPS["counts"](x)
    try:
        y = OPS["refuses"](x * 3) + y
    except ValueError as e:
        y = y * 2 + len(str(e))
    finally:
        y = y + 1
    return y


def closures():
    n, held = 0, SimpleNamespace(a=0)

    def inner(x):
        nonlocal n
        n += 1
        held.a += 2
        return x + n + held.a

    def f(x):
        nonlocal n
        CALLED[:] = [inner]
        n += 100
        y = OPS["calls"](x)
        held.a += 1
        return y + n + held.a

    return f


def methods():
    class Scaler:
        def __init__(self):
            self.seen, self.by = collections.deque(), 1

        def scale(self, x):
            self.seen.append(self.by)
            return x * self.by

    scaler = Scaler()

    def f(x):
        CALLED[:] = [scaler.scale]
        scaler.by += 1
        y = OPS["calls"](x)
        return y + len(scaler.seen)

    return f


FUNCTIONS = [
    raises_in_try,
    *(global_before, tensor_before, tensor_in_place, objects_before, of_a_library, in_a_loop),
    *(global_after, objects_after, before_and_after),
]
PROGRAMS: dict[str, Callable[[], Callable]] = {f.__name__: (lambda f=f: f) for f in FUNCTIONS}
PROGRAMS |= {"closures": closures, "methods": methods}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    found = []
    for compiled in (lambda f: f, lambda f: bytejit.compile(f, backend=backend)):
        reset()
        f = compiled(PROGRAMS[name]())
        said = []
        for i in range(3):
            made = f(torch.full((3,), float(i)))
            state = torch.tensor([float(NUMBER), *TENSOR.tolist(), len(LOG), TABLE.get("k", 0), CONFIG.factor])
            said += [*(made if isinstance(made, tuple) else (made,)), state]
        found.append([torch.as_tensor(x, dtype=torch.float32) for x in said])
    torch.testing.assert_close(found[1], found[0])


def test_what_does_not_touch_the_regions_state_is_in_its_graph() -> None:
    """A counter of its own, results that it fills, functions that both call."""
    reset()
    steps = []

    @bytejit.compile(backend="eager", fullgraph=True)
    def f(x):
        steps.append(len(steps))
        y = helper_without_state(OPS["counts"](x))
        return OPS["pure"](y) + len(steps)

    x = torch.linspace(0, 1, 3)
    for i in (1, 2):
        torch.testing.assert_close(f(x), x.cos().sin().sin() + i)
    assert LOG == ["called"] * 2 and steps == [0, 1]


def test_what_leaves_no_traces_is_in_the_graph_within_try() -> None:
    @bytejit.compile(backend="eager")
    def f(x):
        try:
            return OPS["pure"](x) + 1
        except ValueError:
            return x

    bytejit.counters.clear()
    torch.testing.assert_close(f(torch.ones(3)), torch.ones(3).sin() + 1)
    assert not bytejit.counters["breaks"]


def test_functions_of_one_code_are_read_once_in_each_namespace() -> None:
    """A library that makes hundreds of functions of one code took 10 seconds for each of its operators."""
    facts_of.cache_clear()
    own = {"NUMBER": 5, "found": (unlike := object())}
    other = FunctionType((lambda x: (x * NUMBER, found)).__code__, own)  # noqa: F821  # in the namespace
    cells = [object() for _ in range(200)]

    def maker(kept):
        def inner(x):
            return helper(x), kept

        return inner

    reach = walk([*map(maker, cells), FunctionType(other.__code__, {"found": 1}), other])
    assert all(id(c) in reach.objects for c in (*cells, unlike))
    assert {(id(globals()), "NUMBER"), (id(own), "NUMBER")} <= reach.names
    assert facts_of.cache_info().misses == 3  # of `inner`, `helper` and `other`


@pytest.mark.parametrize("written", [CONFIG, LOG, TABLE], ids=["an attribute", "a list", "a dict"])
def test_one_change_before(written):
    """What an operator reads of one object alone, which the region has changed"""

    def f(x):
        if written is CONFIG:
            CONFIG.factor = CONFIG.factor + 2
        elif written is LOG:
            LOG.append(5)
        else:
            TABLE["k"] = 3
        return OPS["reads"](x) * 2

    reset()
    expected = f(torch.ones(3))
    reset()
    assert torch.equal(bytejit.compile(f, backend="eager")(torch.ones(3)), expected)
    reset()
