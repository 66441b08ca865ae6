"""Signals while the compiler works: what their handlers raise leaves the compiler at its own points, and nowhere else.

Python runs the handler of a signal between any two instructions of the main thread. What a handler raises
(KeyboardInterrupt, a timeout of the program's own) would leave the compiler between `__enter__` and the body of a `with`
statement, between a lock and its `try`, between two stores that belong together. So within `uninterrupted` each handler
of the program is replaced by a `Noted`, which only takes note. `poll` is called where the compiler can stop. It runs the
program's handlers; an exception of theirs goes on as `Interrupted`, which no `except Exception` catches. `interruptible`
puts the program's handlers back for as long as the compiler runs code of the program that may take long (a backend).

The handlers stay as they were (`signal.getsignal`, the flags of `sigaction`). Signals reach the main thread only; a
compile in another thread needs none of this.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # CPython has no stub of it
import ctypes
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from bytejit.common.quiet_reads import function_of

T = TypeVar("T")


class Interrupted(BaseException):
    """Carries what a handler of the program raised out of the compiler. `error`: that exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Noted:
    """Stands in for the program's handler of one signal. One that was left in place calls that handler, and goes."""

    __slots__ = ("signals", "number", "handler", "action")

    def __init__(self, signals: Signals, number: int, handler: Callable) -> None:
        self.signals, self.number, self.handler = signals, number, handler
        self.action = _action(number)

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        if self.signals.holding:
            self.signals.pending.append(self)
        else:
            self.put_back()
            self.handler(number, frame)

    def put_in(self) -> None:
        _signal.signal(self.number, self)
        _set_action(self.number, self.action)

    def put_back(self) -> None:
        """Restore the program's handler, unless the program has set another. May be repeated."""
        if _signal.getsignal(self.number) is self:
            _signal.signal(self.number, self.handler)
        if _signal.getsignal(self.number) is self.handler:
            _set_action(self.number, self.action)


class Signals:
    """The handlers that are held back. One a process: `SIGNALS`; only the main thread changes it."""

    __slots__ = ("holding", "noted", "pending")

    def __init__(self) -> None:
        self.holding = False
        self.noted: list[Noted] = []
        self.pending: list[Noted] = []

    def hold(self) -> None:
        """Replace each handler of the program. Raises: what a handler raises until then; nothing is replaced then."""
        self.holding = True
        try:
            self._put_in()
        except BaseException:
            self.release()
            raise

    def _put_in(self) -> None:
        """Apart from `hold`: CPython 3.14 looks for signals where a loop jumps back on a condition, and its compiler leaves
        that jump out of a `try` around the loop. A call within `try` has no such instruction."""
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if type(handler) is Noted:  # one that was left: its own signal came while it was put back
                handler = handler.handler
            if callable(handler):
                noted = Noted(self, number, handler)
                self.noted.append(noted)
                noted.put_in()

    def release(self) -> None:
        """Put the handlers back, then run those whose signals came. Raises: what they raise."""
        try:
            self._put_back()
        finally:  # a signal whose handler is back may have come while another was put back: two more attempts
            try:
                self._put_back()
            finally:
                try:
                    self._put_back()
                finally:  # it may be in the third that the first signal comes
                    self.holding = False
                    self._run_pending()

    def _put_back(self) -> None:
        while self.noted:
            self.noted[-1].put_back()
            self.noted.pop()

    def _run_pending(self) -> None:
        pending, self.pending = self.pending, []
        try:
            while pending:
                noted = pending.pop(0)
                noted.handler(noted.number, sys._getframe(2))
        finally:
            if pending:  # a handler raised: the others are as important
                self.pending = pending
                self._run_pending()

    def deliver(self) -> None:
        """Run the handlers of signals that came. Raises: Interrupted."""
        if threading.get_ident() != _MAIN:
            return
        waiting, self.pending = self.pending, []
        for i, noted in enumerate(waiting):
            if noted.handler is not _signal.default_int_handler and _within_modes():
                self.pending.append(noted)  # operations of the handler's would be told to the compiler's modes
                continue
            try:
                noted.handler(noted.number, sys._getframe(2))
            except BaseException as error:
                self.pending += waiting[i + 1 :]
                raise Interrupted(error) from None


SIGNALS = Signals()
_MAIN = threading.main_thread().ident
_NUMBERS = tuple(sorted(_signal.valid_signals())) if hasattr(_signal, "valid_signals") else tuple(range(1, _signal.NSIG))
_LIBC = getattr(ctypes.CDLL(None), "sigaction", None) if sys.platform != "win32" else None
_Action = ctypes.c_char * 256  # more than any system's struct sigaction takes


def _action(number: int) -> ctypes.Array | None:
    """What the system has for a signal: its flags get lost when Python sets a handler."""
    if _LIBC is None:
        return None
    action = _Action()
    return action if _LIBC(int(number), None, action) == 0 else None


def _set_action(number: int, action: ctypes.Array | None) -> None:
    if action is not None and _LIBC is not None:
        _LIBC(int(number), action, None)


def _within_modes() -> bool:
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def _in_main_interpreter() -> bool:
    """Whether this thread is the one that runs handlers of signals."""
    return threading.get_ident() == _MAIN


def uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """function(*args), in which no handler of a signal runs but in `poll` and `interruptible`. Raises: what they raise.

    Cost: some 15 us.
    """
    if SIGNALS.holding or not _in_main_interpreter():
        return function(*args)
    SIGNALS.hold()
    try:
        return function(*args)
    except Interrupted as e:
        error = e.error
        # `e` will be its context: neither may keep the other, and with its traceback's frames the program's objects, until a
        # collection
        e.error = None  # type: ignore[assignment]
        try:
            raise error from None
        finally:
            del error
    finally:
        SIGNALS.release()


def interruptible(function: Callable[..., T], *args: Any) -> T:
    """function(*args), code of the program's that is called within `uninterrupted`, with the program's handlers."""
    if not SIGNALS.holding or not _in_main_interpreter():
        return function(*args)
    try:
        SIGNALS.release()
        return function(*args)
    finally:
        try:
            SIGNALS.hold()
        except BaseException:  # a handler ran once more and raised: the way out of the compiler is held all the same
            SIGNALS.hold()
            raise


def poll() -> None:
    """A point at which the compiler can be left: handlers of signals that came run here. Raises: Interrupted."""
    if SIGNALS.pending:
        SIGNALS.deliver()


def from_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised this exception (a timeout): it is not the interrupted code's own."""
    codes = [code for number in _NUMBERS if (code := _code_of(_signal.getsignal(number))) is not None]
    tb = error.__traceback__ if codes else None
    while tb is not None:
        if any(tb.tb_frame.f_code is code for code in codes):  # a code may hold constants that have no hash
            return True
        tb = tb.tb_next
    return False


def _code_of(handler: object) -> types.CodeType | None:
    if not callable(handler) or handler is _signal.default_int_handler:
        return None
    found = function_of(handler)
    if not isinstance(found, types.FunctionType):
        found = getattr(type(handler), "__call__", None)
    return getattr(found, "__code__", None)
