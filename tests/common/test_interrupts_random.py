"""2,000 moments, drawn by lot, at which a signal's handler raises: the process is as it was, whatever was going on. They are
counted in calls and returns, not in seconds: the same moments in every run, however busy the machine is."""

from __future__ import annotations

import random
import signal
import sys
import traceback
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.common import registry
from bytejit.common.ambient import Ambient, capture
from bytejit.common.ambient_kinds import KINDS, WATCHED
from bytejit.common.interrupts import SIGNALS
from bytejit.runtime import dispatch

from .moments import sent_at

if sys.platform == "win32":
    pytest.skip("no SIGALRM", allow_module_level=True)

PROGRAMS = {
    "straight": "def f(x): return (x * K).sin().relu().sum(0) + x.shape[0]",
    "break_in_no_grad": """def f(x):
    with torch.no_grad():
        y = x * K
        print(end='')
        y = y + 1
    return y * x""",
    "break_in_autocast": """def f(x):
    with torch.autocast('cpu', enabled=K % 2 == 0):
        y = x @ x
        print(end='')
        y = y @ x
    return y.float()""",
    "inference": """def f(x):
    with torch.inference_mode():
        y = x.cos() * K
        if y.sum() > 0: y = y + 1
    return y + x""",
    "inlines": """def g(x, k): return h(x) * k if k else x
def h(x): return [v + 1 for v in (x, x)][0]
def f(x):
    for i in range(3): x = g(x, i)
    return x - K""",
    "raises": """def f(x):
    try:
        y = x * K
        print(end='')
        y.reshape(77)
    except RuntimeError:
        y = x - K
    return y""",
    "trains": """def f(x):
    w = (torch.zeros(4, 4) + K).requires_grad_()
    (x @ w).square().sum().backward()
    return w.grad""",
}
BACKENDS = {"eager": 1407, "aot_eager": 350, "inductor": 245}  # moments each
WHOLE = {"eager": 5, "aot_eager": 2, "inductor": 2}  # one in so many: the function is called again behind it, and compiled
BEFORE = signal.getsignal(signal.SIGINT)  # a shell's background job ignores it


class Moment:
    """Whether a signal's handler raises now: only while the call of a test runs."""

    armed = False


def expire(number: int, frame: object) -> None:
    """The handler. The first signal of a call raises; one that comes afterwards does nothing."""
    if Moment.armed:
        Moment.armed = False
        raise KeyboardInterrupt


def fresh(text: str, k: int) -> Callable:
    """The program as a function whose code is new: other code may have been at its address."""
    space = {"torch": torch, "K": k}
    exec(compile(text, f"<moment {k}>", "exec"), space)
    return space["f"]


# torch's managers, which the program enters where its own code runs: they are Python, and may be cut short as in eager
MANAGERS = ("autocast_mode.py", "grad_mode.py")


def interrupted(call: Callable, x: torch.Tensor, step: int, state: Ambient) -> bool:
    """Call with a signal at that step; whether it came.

    What the handler raises leaves within `try` only: the flag is set and cleared there, and a handler that runs in between
    has cleared it itself. No signal interrupts `except`, or what follows it, with an exception.
    """
    try:
        Moment.armed = True
        with sent_at(step):
            call(x)
            Moment.armed = False
    except KeyboardInterrupt as e:
        if any(frame.f_code.co_filename.endswith(MANAGERS) for frame, _ in traceback.walk_tb(e.__traceback__)):
            state.restore()
        return True
    return False


def check_process(state: Ambient, other: Callable, x: torch.Tensor) -> None:
    """All is as it was before."""
    assert not Moment.armed and sys.getprofile() is None
    y = torch.ones(2) + 1
    assert type(y) is torch.Tensor and y.tolist() == [2, 2] and not state.differences()
    assert not dispatch._COMPILING.locked() and not registry.only_runs()
    assert not SIGNALS.holding and not SIGNALS.noted and not SIGNALS.pending
    assert signal.getsignal(signal.SIGALRM) is expire and signal.getsignal(signal.SIGINT) is BEFORE
    assert torch.equal(other(x), x.sin() + 3)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_moments(program: str, backend: str) -> None:
    text, x = PROGRAMS[program], torch.arange(16.0).reshape(4, 4) / 16
    options = {"recompile_limit": 1000}
    draw = random.Random(f"{program} {backend}")
    other = bytejit.compile(lambda x: x.sin() + 3, backend="eager")
    other(x)
    for _ in range(2):  # imports, kernels
        with sent_at(0) as steps:
            bytejit.compile(fresh(text, 3), backend=backend)(x)
    before, state = signal.signal(signal.SIGALRM, expire), capture(KINDS + WATCHED)
    hits = 0
    try:
        many = BACKENDS[backend] // len(PROGRAMS)
        for n in range(many):  # one in each of so many equal parts of the call
            f = fresh(text, 3 if backend == "inductor" else n)  # one kernel, that is there
            c = bytejit.compile(f, backend=backend, options=options)
            hits += interrupted(c, x, 1 + int((n + draw.random()) * steps.count / many), state)
            check_process(state, other, x)
            if n % WHOLE[backend]:
                continue
            bytejit.counters.clear()
            for _ in range(2):
                torch.testing.assert_close(c(x), f(x))
            assert not bytejit.counters["faults"] and not any("raised" in why for why in bytejit.counters["fallbacks"])
            check_process(state, other, x)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > many // 2  # one that a finalizer or a callback raises is printed


def test_a_site_interrupted_in_its_compile_compiles_at_the_next_call() -> None:
    x = torch.ones(3)

    def alarming(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        if len(made) < 3:
            made.append(gm)
            signal.raise_signal(signal.SIGALRM)
        return gm.forward

    made: list = []
    c = bytejit.compile(lambda x: x * 2 + 1, backend=alarming)
    before = signal.signal(signal.SIGALRM, expire)
    try:
        for _ in range(3):
            Moment.armed = True
            with pytest.raises(KeyboardInterrupt):
                c(x)
    finally:
        signal.signal(signal.SIGALRM, before)
    bytejit.counters.clear()
    assert torch.equal(c(x), x * 3) and torch.equal(c(x), x * 3)
    assert bytejit.counters["graphs"].total() == 1
