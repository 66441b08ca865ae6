"""The text of a call function with the values of its names; raises the errors that kernels report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.common.boxed import Boxed
from bytejit.common.light_dataclass import light_dataclass

from .check import LibraryResults

FAULTS = {1: (RuntimeError, "ZeroDivisionError"), 2: (IndexError, "index out of range in self")}


@light_dataclass(frozen=True)
class CallSource:
    """Python text of `call` and the values of its names. externs: (target, reason) of each library call; library_results: what
    its first call records of their results, where all sizes are constants; numbers: positions of inputs that are numbers and
    that the text reads; boxed: `call` takes its inputs in one list."""

    text: str
    names: dict[str, Any]
    externs: tuple[tuple[str, str], ...]
    library_results: LibraryResults | None = None
    numbers: frozenset[int] = frozenset()
    boxed: bool = False

    def __repr__(self) -> str:
        return f"call source: {self.text.count(chr(10))} lines, {len(self.externs)} externs"

    def make(self) -> Callable:
        """The function of the inputs."""
        space = dict(self.names)
        exec(compile(self.text, "<bytejit call>", "exec"), space)
        return Boxed(space["call"]) if self.boxed else space["call"]


def fail(code: int) -> None:
    """Raise what torch raises for an error code of a kernel. The site then runs the user's code, which raises its
    own."""
    kind, text = FAULTS[1 if code & 1 else 2]
    raise kind(text)
