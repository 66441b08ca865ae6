"""Signals while the compiler works: where their handlers run, and what they leave."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

import pytest
import torch

import bytejit
from bytejit.common import interrupts
from bytejit.common.ambient import capture
from bytejit.common.ambient_kinds import KINDS, WATCHED
from bytejit.common.interrupts import SIGNALS, interruptible, poll, uninterrupted
from bytejit.kernels import workers
from bytejit.kernels.tune import Tuner
from bytejit.kernels.tune_gpu import GpuTuner
from bytejit.runtime import dispatch

if sys.platform == "win32":
    pytest.skip("no SIGALRM", allow_module_level=True)


class TimedOut(Exception):
    """What a program's own handler raises: an ordinary exception."""


def expire(number: int, frame: object) -> None:
    raise TimedOut(number)


@contextlib.contextmanager
def handling(handler: Callable, number: int = signal.SIGALRM) -> Iterator[None]:
    """With a handler of the program; nothing of the compiler's stays."""
    before, state = signal.signal(number, handler), capture(KINDS + WATCHED)
    try:
        yield
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert not SIGNALS.holding and not SIGNALS.noted and not SIGNALS.pending
    assert not dispatch._COMPILING.locked() and not state.differences()


def test_a_handler_waits_until_the_end() -> None:
    seen = []

    def work() -> int:
        signal.raise_signal(signal.SIGALRM)
        seen.append("worked")
        return 3

    with handling(expire):
        with pytest.raises(TimedOut):
            uninterrupted(work)
    with handling(lambda *_: seen.append("handled")):
        assert uninterrupted(work) == 3
    assert seen == ["worked", "worked", "handled"]


def test_a_handler_runs_in_a_poll() -> None:
    """What it raises passes `except Exception`; `finally` runs, and no other handler in it"""
    seen = []

    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        try:
            poll()
        except Exception:
            seen.append("swallowed")
        finally:
            signal.raise_signal(signal.SIGALRM)
            seen.append("cleaned up")

    with handling(expire):
        with pytest.raises(TimedOut):
            uninterrupted(work)
    assert seen == ["cleaned up"]


def test_code_of_the_program_is_interruptible() -> None:
    """Within it the program finds its own handlers"""

    def user() -> None:
        assert signal.getsignal(signal.SIGALRM) is expire
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("not reached")

    def work() -> None:
        try:
            interruptible(user)
        finally:
            assert SIGNALS.holding

    with handling(expire):
        with pytest.raises(TimedOut):
            uninterrupted(work)


def test_all_handlers_run() -> None:
    """Each signal's, also where one of them raises"""
    seen = []

    def work() -> None:
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGUSR2):
            signal.raise_signal(number)

    with (
        handling(expire),
        handling(lambda n, _: seen.append(n), signal.SIGUSR1),
        handling(lambda n, _: seen.append(n), signal.SIGUSR2),
    ):
        with pytest.raises(TimedOut):
            uninterrupted(work)
    assert seen == [signal.SIGUSR1, signal.SIGUSR2]


def test_a_handler_set_meanwhile_stays() -> None:
    def other(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGALRM, expire)
    try:
        uninterrupted(lambda: signal.signal(signal.SIGALRM, other))
        assert signal.getsignal(signal.SIGALRM) is other
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not SIGNALS.noted


def test_flags_of_the_system_stay() -> None:
    """SA_RESTART, which signal.siginterrupt sets, and which Python drops when it sets a handler"""

    def action() -> bytes:
        found = interrupts._action(signal.SIGALRM)
        whole = ctypes.string_at(found, len(found))
        return whole[:16] + whole[136:140]  # the handler, the mask, the flags

    if not sys.platform.startswith("linux"):
        pytest.skip("the fields are at other places")

    with handling(expire):
        signal.siginterrupt(signal.SIGALRM, False)
        before = action()
        inside = uninterrupted(action)
        assert action() == before == inside
        signal.siginterrupt(signal.SIGALRM, True)
        assert action() != before


def test_a_handler_that_was_left_in_place_is_the_programs() -> None:
    """As when a signal came between two handlers that are put back"""
    with handling(expire):
        noted = interrupts.Noted(SIGNALS, signal.SIGALRM, expire)
        noted.put_in()
        uninterrupted(lambda: None)
        assert signal.getsignal(signal.SIGALRM) is expire
        noted.put_in()
        with pytest.raises(TimedOut):
            signal.raise_signal(signal.SIGALRM)
        assert signal.getsignal(signal.SIGALRM) is expire


def test_other_threads_hold_nothing() -> None:
    found = []
    with handling(expire):
        thread = threading.Thread(target=lambda: found.append(uninterrupted(lambda: SIGNALS.holding)))
        thread.start()
        thread.join()
    assert found == [False]


# ---- in compiles and in calls ----------------------------------------------------------------------------------------
def alarming(gm: torch.fx.GraphModule, inputs: list) -> Callable:
    """A backend during whose work a signal comes."""
    signal.raise_signal(signal.SIGALRM)
    return gm.forward


@pytest.mark.parametrize("error", [TimedOut, KeyboardInterrupt])
def test_an_interrupt_in_a_backend(error: type[BaseException]) -> None:
    """It reaches the program as it is; the next call compiles"""

    def raising(*_: object) -> None:
        raise error

    f = bytejit.compile(lambda x: x.sin() + 1, backend=alarming)
    with handling(raising), pytest.raises(error):
        f(torch.ones(2))
    with handling(lambda *_: None):
        assert torch.equal(f(torch.ones(2)), torch.ones(2).sin() + 1)
    assert bytejit.counters["graphs"].total() == 2 and not bytejit.counters["fallbacks"]


def test_a_timeout_in_a_graph_is_not_the_graphs_error() -> None:
    """The program is told, instead of the original code being run in its place"""

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        def run(*args: torch.Tensor) -> object:
            if hot:
                signal.raise_signal(signal.SIGALRM)
            return gm.forward(*args)

        return run

    hot: list[int] = []
    f = bytejit.compile(lambda x: x.sin() + 1, backend=backend)
    f(torch.ones(2))
    hot.append(1)
    with handling(expire), pytest.raises(TimedOut):
        f(torch.ones(2))
    assert not bytejit.counters["fallbacks"]


def test_a_timeout_in_a_guard_is_no_miss() -> None:
    class Loud:
        def __getattr__(self, name: str) -> int:
            raise AttributeError(name)

    class Sized:
        @property
        def size(self) -> int:
            if hot:
                signal.raise_signal(signal.SIGALRM)
            return 3

    hot: list[int] = []
    with handling(expire):
        env = {"MISS": dispatch.MISS, "sized": Sized()}
        from bytejit.guards.generated import Work, compile_entry
        from bytejit.guards.guard_set import GuardSet
        from bytejit.guards.sources import Attr, Local

        guards = GuardSet()
        guards.add("EQUALS", Attr(Local("x"), "size"), 3)
        entry = compile_entry(["L_x"], guards, Work([], "return (1, None)", env))
        assert entry(Sized()) == (1, None) and entry(Loud()) is dispatch.MISS
        hot.append(1)
        with pytest.raises(TimedOut):
            entry(Sized())


def test_an_interrupt_in_a_graph_that_changes_the_grad_mode() -> None:
    """As `with` does, a region that is left by an exception leaves the mode that it found"""

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        def run(*args: torch.Tensor) -> object:
            torch._C._set_grad_enabled(False)
            if hot:
                raise KeyboardInterrupt
            return gm.forward(*args)

        return run

    hot: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            print(end="")
            y = y + 1
        return y

    c = bytejit.compile(f, backend=backend)
    before = capture()
    assert torch.equal(c(torch.ones(2)), f(torch.ones(2)))
    before.restore()
    hot.append(1)
    with pytest.raises(KeyboardInterrupt):
        c(torch.ones(2))
    assert torch.is_grad_enabled()


class Waiting:
    """A compile worker that takes a second a job."""

    asked = 0

    def __init__(self) -> None:
        self.process = types.SimpleNamespace(poll=lambda: None)

    def ask(self, job: dict) -> dict:
        Waiting.asked += 1
        time.sleep(1)
        return job

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("count", [1, 5])
def test_a_signal_while_workers_compile(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Jobs of a GPU's kernels are waited for by threads: the compile ends at once, and begins no further job"""
    monkeypatch.setattr(workers, "Worker", Waiting)
    Waiting.asked = 0
    pool, jobs = workers.Workers(2), [{"job": i} for i in range(count)]
    with handling(expire):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begin = time.perf_counter()
        with pytest.raises(TimedOut):
            uninterrupted(pool.map, jobs)
        assert time.perf_counter() - begin < 0.9
    time.sleep(1)
    assert Waiting.asked == min(count, 2)
    assert pool.map(jobs[:2]) == jobs[:2]


def test_what_a_worker_raises_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Waiting, job: dict) -> dict:
        raise OSError("no process")

    monkeypatch.setattr(workers, "Worker", Waiting)
    monkeypatch.setattr(Waiting, "ask", refuse)
    with pytest.raises(OSError, match="no process"):
        workers.Workers(2).map([{}, {}, {}])


@pytest.mark.parametrize("kind", [Tuner, GpuTuner])
def test_a_signal_while_libraries_are_timed(monkeypatch: pytest.MonkeyPatch, kind: type[Tuner]) -> None:
    """Between two rounds of calls; the GPU is pretended"""
    tuner = object.__new__(kind)
    tuner.clock, tuner.spent = iter(range(10**6)).__next__, 0.0
    monkeypatch.setattr(GpuTuner, "_seconds", lambda self, call, runs: call() or 1.0)
    calls = []

    def slow() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            signal.raise_signal(signal.SIGALRM)

    ready = {"a": (slow, [()]), "b": (slow, [()])}
    with handling(expire):
        with pytest.raises(TimedOut):
            uninterrupted(tuner._rounds, ready, {"a": 1e-6, "b": 1e-6}, "a")
    assert len(calls) == 2
