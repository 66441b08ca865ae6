"""The ambient state of torch and of Python, captured and put back: what an operation looks at besides its arguments.

Grad mode, inference mode, autocast, stacks of modes, dispatch keys, hooks, warnings' filters, the recursion limit, ...
(`ambient_kinds.KINDS`). What compiled code holds to:

- A compile leaves no trace. A site's miss captures before it compiles and puts back after it (75 us), at an exception or an
  interrupt too. Code that sets state for itself does the same, by `preserved` or `capture`.
- A graph begins in the state that its guards name: `GuardSet.add_state` adds what tracing asked and, before it is set, what
  the region sets.
- A graph leaves the state as it found it, or as its own setters' nodes leave it. The exit sets what else is different at the
  region's end; the nesting of autocast is the exit's alone (`nest`). When a graph raises or is interrupted, the entry first
  puts back what the region began with.
- What is baked in is not applied again. The operations of a normalised graph hold autocast's casts, so library calls run with
  autocast off where it is on around the region; grad mode and inference mode are set where the graph was traced in others. A
  graph that runs through torch has its setters as nodes instead.

    before = capture()
    try: ...
    finally: before.restore()          # safe from interrupts: preserved(function, *args)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .ambient_kinds import KINDS, Kind


class Ambient:
    """The values of some kinds at one moment."""

    __slots__ = ("kinds", "values")

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.kinds = kinds
        self.values = [kind.read() for kind in kinds]

    def __repr__(self) -> str:
        return "ambient state: " + ", ".join(f"{k.name} {v}" for k, v in zip(self.kinds, self.values))

    def changed(self) -> Iterator[tuple[Kind, Any]]:
        """The kinds that are otherwise now, with the value here, in the order of writing."""
        for kind, value in zip(self.kinds, self.values):
            if not kind.same(kind.read(), value):
                yield kind, value

    def restore(self) -> None:
        """Put back what is otherwise now. May be called again, also after a call that was cut short."""
        for kind, value in self.changed():
            assert kind.write is not None, kind
            kind.write(value)

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Name -> (value here, value now) of what is otherwise now, for messages and tests."""
        return {kind.name: (value, kind.read()) for kind, value in self.changed()}


def capture(kinds: tuple[Kind, ...] = KINDS) -> Ambient:
    """The ambient state of this thread and process. Cost: 30 us."""
    return Ambient(kinds)


def undone_if_cut(kinds: tuple[Kind, ...], work: Callable, args: tuple) -> Any:
    """work(*args); when it raises, the ambient state of these kinds is put back.

    For a function that changes the state when it ends well. On Python 3.11 a signal's handler may run between the end of a
    call with a starred argument and the next instruction, where no `try` of the function holds any more. So `args` is a
    tuple here: a plain call of a Python function from another looks for no signal at its end.
    """
    if not kinds:
        return work(*args)
    before = capture(kinds)
    try:
        return work(*args)
    except BaseException:
        before.restore()
        raise


def preserved(work: Callable, *args: Any) -> Any:
    """work(*args), with the ambient state put back at its end, whatever happens inside."""
    return putting_back(capture(), work, *args)


def putting_back(before: Ambient, work: Callable, *args: Any) -> Any:
    """work(*args), and at its end the ambient state as it was `before`.

    A signal handler that raises may end any call of a Python function, `restore` included. Then `restore` is called again,
    and the exception goes on. The calls are nested, not in a loop: Python runs signal handlers at the start of a function
    and at backward jumps, so none runs between two attempts within `except`.
    """
    try:
        return work(*args)
    finally:
        try:
            before.restore()
        except BaseException:
            try:
                before.restore()
            except BaseException:
                before.restore()
                raise
            raise
