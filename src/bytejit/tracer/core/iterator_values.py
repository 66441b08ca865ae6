"""Values that stand for what gives items one after the other: iterators and generators."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from .models import STEPPED
from .values import Var


class IterVar(Var):
    """An iterator whose state the tracer holds. `kind` is a row of objects/iterator_steps.py; `state` what that row needs."""

    __slots__ = ("kind", "state", "step", "done")

    def __init__(self, kind: str, state: dict[str, Any], step: int = 0) -> None:
        super().__init__(None)
        self.kind, self.state, self.step, self.done = kind, state, step, False

    def __repr__(self) -> str:
        return f"IterVar({self.kind})"


class GenVar(Var):
    """A generator that the tracer runs: a suspended Frame. `call`: the function and arguments that made it in the trace.
    `real`: one from outside, see objects/external_generators.py; `closable`: whether closing that one as it stood would run
    none of its code."""

    __slots__ = ("frame", "started", "finished", "step", "running", "call", "real", "closable")

    def __init__(self, frame: Any, step: int = 0) -> None:
        super().__init__(None)
        self.frame, self.started, self.finished, self.step, self.running = frame, False, False, step, False
        self.call: tuple | None = None
        self.real: GeneratorType | None = None
        self.closable = True

    @property
    def steps(self) -> bool:
        """Whether it stands for an iterator of C, which nothing can be sent or thrown into."""
        return self.call is not None and self.call[0].code in STEPPED
