"""What both sides of a random program are made of: its text run afresh, the arguments of a call, the call."""

import contextlib
import linecache
from collections.abc import Callable, Iterator

import torch

from bytejit.common.ambient import capture

from ..programs import harness

CALLS = 3
Change = Callable[[torch.Tensor], torch.Tensor]


def build(source: str, name: str):
    """(program, observe) of a fresh run of the text; tracebacks and inspect find its lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"__name__": "fuzzed"}
    exec(compile(source, name, "exec"), space)
    return space["program"], lambda: (space["LOG"], space["TOTAL"])


def case_of(fresh: Callable, name: str, backend: str = "eager", drive: Callable | None = None) -> harness.Case:
    """The program as the harness runs it. drive(fn, *args): how to call it."""
    return harness.make_case(fresh, (), None, None, None, None, False, backend, CALLS, drive, (), (0.0, 0.0), name)


def arguments(r: harness.Rand, space_of: dict, change: Change = lambda t: t) -> tuple:
    """Arguments of a call: y is a view of x's storage in odd calls, n changes, containers and the object are new.
    change: made of each tensor that is drawn."""
    base = change(r.f(4))
    x, y = (base[:3], base[1:]) if r.call % 2 else (change(r.f(3)), change(r.f(3)))
    thing = space_of["Child" if r.call == 2 else "Thing"]
    return x, y, (3, 3, 4)[r.call % 3], [1, x], {"a": 2, "t": y}, thing(change(r.f(3)), 2)


def call(side: harness.Side, n: int, change: Change = lambda t: t) -> harness.Outcome:
    """A call whose object is of the side's own class. Raises: AssertionError where it leaves the ambient state changed."""
    with state_stays():
        return side.call(n, lambda r: (arguments(r, side.space, change), {}))


@contextlib.contextmanager
def state_stays() -> Iterator[None]:
    """Torch's and Python's ambient state is the same afterwards. Raises: AssertionError."""
    before = capture()
    yield
    differences = before.differences()
    before.restore()
    assert not differences, f"the ambient state changed: {differences}"
