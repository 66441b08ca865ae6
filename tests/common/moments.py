"""Every moment of a call at which Python would run a signal's handler, one after the other: no clock, no chance.

Python looks for signals at certain instructions only (calls, jumps back, beginnings of functions). A handler that lets its
signal come again is called at each of them; `interrupted` lets it raise at the n-th that lies in chosen code.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_add = ctypes.pythonapi.Py_AddPendingCall
_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_trip = ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p)
_send = ctypes.cast(ctypes.CDLL(None)["raise"], ctypes.c_void_p)  # of the C library: the signal comes as another process sends it


def again(number: int) -> None:
    """The signal comes again at the next instruction that looks for one."""
    _add(_trip, number)


class Interrupt(BaseException):
    """What the handler raises."""


@dataclass(frozen=True)
class Moment:
    """Where an interrupt came. `files`: of all code that it passed through; the exception itself is gone, and with it what
    its frames held, which may set torch's state when it ends."""

    place: str
    files: frozenset[str]


class _Handler:
    """Counts the moments in chosen code while it is on; raises at one of them."""

    def __init__(self, chosen: Callable[[types.CodeType], bool], raises_at: int) -> None:
        self.chosen, self.left, self.on = chosen, raises_at, False

    def __call__(self, number: int, frame: types.FrameType) -> None:
        if not self.on:
            return
        if self.chosen(frame.f_code):
            if not self.left:
                self.on = False
                raise Interrupt
            self.left -= 1
        again(number)


def interrupted(call: Callable[[], object], chosen: Callable[[types.CodeType], bool], n: int) -> Moment | None:
    """Call with an interrupt at the n-th moment in chosen code. Returns where, None when the call ended before."""
    handler = _Handler(chosen, n)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        handler.on = True
        again(signal.SIGALRM)
        call()
        handler.on = False
    except Interrupt as error:
        # the last frame is the handler's
        steps = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][:-1]
        code, line = steps[-1]
        place = f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"
        return Moment(place, frozenset(code.co_filename for code, _ in steps))
    finally:
        handler.on = False
        signal.signal(signal.SIGALRM, before)
    return None


def each_moment(
    call: Callable[[], object],
    chosen: Callable[[types.CodeType], bool],
    prepare: Callable[[], object] = lambda: None,
    most: int = 2000,
) -> Iterator[Moment]:
    """Call again and again, after `prepare`, with an interrupt at each moment in turn; yields where it came."""
    for n in range(most):
        prepare()
        moment = interrupted(call, chosen, n)
        if moment is None:
            return
        yield moment
    raise AssertionError(f"{most} moments and the call has not ended")


class Steps:
    """Calls and returns of functions so far, of all code; at the `last` one a signal is sent."""

    def __init__(self, number: int, last: int) -> None:
        self.number, self.last, self.count = number, last, 0

    def __call__(self, frame: types.FrameType, event: str, arg: object) -> None:
        self.count += 1
        if self.count == self.last:
            _add(_send, self.number)


@contextlib.contextmanager
def sent_at(step: int, number: int = signal.SIGALRM) -> Iterator[Steps]:
    """A signal comes at that step of what runs within, counted from 1; none at step 0: then the steps are counted. No collection
    adds any. In CPython 3.11 and later the handler runs at the next or the second call, jump back or beginning of a function."""
    steps, before, collects = Steps(number, step), sys.getprofile(), gc.isenabled()
    gc.disable()
    try:
        sys.setprofile(steps)
        yield steps
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
