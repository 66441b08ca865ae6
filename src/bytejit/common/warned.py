"""Warnings that torch's Python gives while the compiler runs it. Other threads still get theirs. No filter is
changed: that would make Python repeat all warnings that it has given."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Say = Callable[[Any, Any], object]  # of a warning and its class


@contextmanager
def warnings_to(say: Say) -> Iterator[None]:
    """Inside, warnings of this thread go to `say`."""
    own, thread = warnings.warn, threading.get_ident()

    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
        if threading.get_ident() != thread:
            own(message, category, stacklevel + 1, source, **more)
        else:
            say(message, category or (type(message) if isinstance(message, Warning) else UserWarning))

    warnings.warn = warn  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.warn = own


def silently(message: Any, category: Any) -> None:
    """Drops the warning: the tracer has given it."""
