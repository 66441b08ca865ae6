"""Exceptions that stop or redirect a trace: a graph break, an exception of the traced program, a restart."""

from __future__ import annotations

from typing import Any


class Break(Exception):
    """The tracer cannot take this step into the graph. `reason`: for users; `do`: what they can do about it. `long`: only
    because much was traced without tensor work; the sites on the way would lead to the same. `generator`: the function's
    locals hold, from there on, a generator that is not at its end. `refused`: the program has said that it is an error."""

    def __init__(
        self, reason: str, do: str = "", at_step: int | None = None, long: bool = False, generator: bool = False
    ) -> None:
        super().__init__(reason)
        self.generator, self.refused = generator, False
        self.reason, self.do, self.at_step, self.long = reason, do, at_step, long


class Raised(Exception):
    """The traced program raised `exc`, a Var; `real` is the exception when it came from a folded operation."""

    def __init__(self, exc: Any) -> None:
        super().__init__()
        self.exc = exc


class Restart(Exception):
    """Trace again and stop before root step `stop_at`."""

    def __init__(self, stop_at: int, cause: Break) -> None:
        super().__init__()
        self.stop_at, self.cause = stop_at, cause


class Specialise(Exception):
    """Trace again with these sizes (sources) static: the operation at `where` takes none that are symbolic."""

    def __init__(self, sources: frozenset, where: object = None) -> None:
        super().__init__()
        self.sources, self.where = sources, where


class LeaveToTorch(Exception):
    """Trace again, and leave the backward pass of an autograd function, a class, to torch. changes: whether it may change what
    is outside of it."""

    def __init__(self, cls: type, why: str, changes: bool) -> None:
        super().__init__(why)
        self.cls, self.changes = cls, changes


class TooLong(Exception):
    """Tracing took longer than the user allows."""


class NotNow(Exception):
    """This call runs uncompiled, because it does something that is done only once (a lazy module creates its parameters).
    Later calls may be compiled."""


class NotLoaded(Exception):
    """The region imports the module `name`, which is to be loaded first; then it is traced again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


SIGNALS = (Break, Raised, Restart, Specialise, LeaveToTorch, TooLong, NotNow, NotLoaded)


class CannotReconstruct(Exception):
    """A value cannot leave the region as it is; the region has to end before `step`, where it was made. `generator`: it is one
    that is not at its end."""

    def __init__(self, what: str, step: int, generator: bool = False) -> None:
        super().__init__(what)
        self.what, self.step, self.generator = what, step, generator
