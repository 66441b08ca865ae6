"""Constants from outside that change between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.common.plain_types import DATES

from .signals import Break
from .values import Known, Var

NEVER_TWICE = (int, *DATES)  # times and large integers: no call is expected to bring one of another call again


class Differs(Break):
    """The graph break where a value that differs in each call would have to be a constant."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a value that differs in each call ({name}) is needed while tracing",
            "keep what depends on it (a key of a dict, a branch, a look-up) outside of the compiled function",
        )


class OpenVar(Known):
    """A constant from outside that changes between calls: `real` now. Its type is guarded.

    Whoever reads `obj` gets it; `fix` then guards that it is this one.
    """

    __slots__ = ("fix", "real")

    def __init__(self, real: Any, source: Any, fix: Callable[[], None]) -> None:
        Var.__init__(self, source)
        self.real, self.fix = real, fix

    @property
    def obj(self) -> Any:  # type: ignore[override]  # what Known keeps in a slot
        """Makes the value a constant, and returns it."""
        self.fix()
        return self.real

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.real!r})"
