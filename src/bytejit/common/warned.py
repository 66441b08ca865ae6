"""Warnings that torch gives while the compiler runs it. Other threads still get theirs. The filters' version stays: another
one would make Python repeat all warnings that it has given."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Say = Callable[[Any, Any], object]  # of a warning and its class


def silently(message: Any, category: Any) -> None:
    """Drops the warning: the tracer has given it."""


class _Heard:
    """The pattern of a filter that takes all warnings of one thread: those that C++ gives ask nothing but the filters."""

    def __init__(self, thread: int, texts: frozenset[str] | None = None) -> None:
        self.thread, self.texts = thread, texts  # None: all
        self.off = False  # while what goes to `say` is given
        self.said: list[str] = []

    def match(self, text: str) -> bool:
        if self.off or threading.get_ident() != self.thread or self.texts is not None and text not in self.texts:
            return False
        self.said.append(text)
        return True


@contextmanager
def warnings_to(say: Say, in_c: Say = silently) -> Iterator[None]:
    """Inside, warnings of this thread go to `say`. in_c: where those of C++ go at the end; of meta tensors they are often about
    other operations than eager's."""
    own, thread = warnings.warn, threading.get_ident()

    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
        if threading.get_ident() != thread:
            own(message, category, stacklevel + 1, source, **more)
            return
        heard.off = True
        try:
            say(message, category or (type(message) if isinstance(message, Warning) else UserWarning))
        finally:
            heard.off = False

    heard = _Heard(thread)
    rule: Any = ("ignore", heard, Warning, None, 0)
    warnings.warn = warn  # type: ignore[assignment]
    filters: Any = warnings.filters
    filters.insert(0, rule)
    try:
        yield
    finally:
        warnings.warn = own
        filters.remove(rule)
    for text in heard.said:
        in_c(text, UserWarning)


def silenced(call: Callable, texts: frozenset[str]) -> Callable:
    """A graph's callable without the warnings that were given while it was traced."""
    if not texts:
        return call

    def quiet(*inputs: Any) -> Any:
        filters: Any = warnings.filters
        rule: Any = ("ignore", _Heard(threading.get_ident(), texts), Warning, None, 0)
        filters.insert(0, rule)
        try:
            return call(*inputs)
        finally:
            filters.remove(rule)

    return quiet
