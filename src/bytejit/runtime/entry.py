"""Entries, which a site runs: their protocol and their class.

The protocol, all positional:

- *args* of a dispatcher and of an entry: the point's stack values without NULLs (bottom first; ``UNBOUND`` for a slot
  of ``Point.maybes`` that holds NULL), a value for each name of ``Point.live`` (``UNBOUND`` when it has none), the cell
  objects of co_cellvars and co_freevars (None for one that exists only within an inlined comprehension). The first
  ``state.flat`` of them are the *flat* state: stack and locals, no cells.
- An *exit*, which both return: ``(value, None)`` returns value from the function; ``(flat, k)`` goes on at point k with
  that point's flat state; ``MISS`` (entries only): the guards do not hold, nothing has been done. Exceptions propagate.
- ``own_exit(k, flat)`` is the exit of point k itself that changes nothing: the original instruction there runs.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

from bytejit.common.ambient_kinds import Kind

Args = tuple[Any, ...]
Exit = tuple[Any, int | None]


class Miss:
    """What an entry returns when its guards do not hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISS"

    def __reduce__(self) -> str:
        return "MISS"


MISS = Miss()


class NotCompiled(enum.Enum):
    """Why a compile made no entry, where that is more than "there is nothing to compile"."""

    COVERED = "what is reached from here holds nothing either, or is armed already"
    NOT_NOW = "the site stays as it is: its next call asks again"
    NOT_LOADED = "the region imports a module that is to be loaded first"


def own_exit(point_id: int, flat: Args) -> Exit:
    """Go on with the original code at the point itself, nothing changed. ``flat``: the args without the cells."""
    return flat, point_id


class Entry:
    """One way through a region. `run` checks the guards, runs graph and effects, and returns an exit or MISS.

    Dispatchers call `run` itself: an entry costs no more than a function.
    """

    run: Callable[..., Any]
    leaves: tuple[Kind, ...]  # kinds of ambient state that may differ after the region from before it
    by_value: bool  # whether it holds only for some values of the tensors among the arguments
    modules: tuple[weakref.ref, ...]  # the modules that the code was called on when it was made
    guards: Iterable[Any] = ()
    text: str = ""  # of its source
    negative: ClassVar[bool] = False  # whether it only passes calls for which there is nothing to compile: tried last

    # entries of a lower one are tried first: 1 of one that breaks the graph where a value is needed that differs in each call
    rank: int

    runs: int | None  # in how many calls it has fit, up to 2, where that is counted

    __slots__ = ("run", "leaves", "modules", "by_value", "rank", "runs", "__weakref__")

    def __init__(self, run: Callable[..., Any], leaves: tuple[Kind, ...] = (), by_value: bool = False) -> None:
        self.run, self.leaves, self.by_value, self.modules = run, leaves, by_value, ()
        self.runs, self.rank = None, 2 if self.negative else 0

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def alone(self, otherwise: Callable[..., Exit]) -> Callable[..., Exit] | None:
        """A cheaper dispatcher for a site that has only this entry; None where there is none."""
        return None

    def remember(self, modules: tuple) -> None:
        """Remember the modules that the code was called on."""
        self.modules = tuple(weakref.ref(m) for m in modules)

    def count_runs(self, counted: Callable[[], None]) -> None:
        """Count from now on whether it fits in more than one call. Costs 100 ns a call, until it does; then calls `counted`.

        An entry that leaves other ambient state is not counted: an interrupt behind it would lose the exit that belongs to it."""
        run, own = self.run, weakref.ref(self)
        if self.leaves:
            return
        self.runs = 0

        def counting(*args: Any) -> Any:
            left = run(*args)
            if left is not MISS and (entry := own()) is not None and entry.runs is not None and entry.run is counting:
                entry.runs += 1
                if entry.runs > 1:
                    entry.run = run
                    counted()
            return left

        self.run = counting

    @property
    def of_one_call(self) -> bool | None:
        """Of an entry whose object has died: whether it fit in one call only; None where that is not known, or a module died."""
        if self.runs is None or any(r() is None for r in self.modules):
            return None
        return self.runs <= 1

    def explain_failure(self, args: Args) -> str:
        """Returns which guard fails on these arguments, with the value seen."""
        return "other values"

    def changed_numbers(self, args: Args) -> dict[Hashable, int]:
        """The sources of sizes, strides, ints and floats that differ from what the guards have; each with the size above 1
        that it had, or 0."""
        return {}

    def between_modules(self, args: Args) -> tuple[set[Hashable], set[Hashable]]:
        """Sources of integers that modules hold as attributes, and of lengths, that differ from what the guards have."""
        return set(), set()

    def fails_by_class(self, args: Args) -> bool:
        """Whether it fits but for a class that the program has made anew."""
        return False

    def dead_objects(self) -> Iterable[Hashable]:
        """Sources of objects that the guards know by identity, and that have died."""
        return ()
