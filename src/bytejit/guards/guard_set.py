"""Guards, and sets of them in the order in which the trace added them: a guard on a base comes before guards on what is
fetched through it. A set drops duplicates, and what another guard implies; objects of the user are held weakly (`Ref`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from bytejit.common.light_dataclass import light_dataclass

from .global_state import ALWAYS, STATES, GlobalState
from .kinds import GLOBAL_STATE, KINDS, PRESENT
from .references import Ref
from .source import Source
from .sources import Constant


@light_dataclass(frozen=True, slots=True)
class Guard:
    """A source, a kind, the value seen, and the user's line that read it (`where`, a Where or None)."""

    kind: str
    source: Source
    value: Any
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        show = KINDS[self.kind].shown or repr
        return f"{self.kind} {self.source.name()}: {show(self.value)}" + (f"   # {self.where}" if self.where else "")


class GuardSet:
    """Guards in order, without duplicates or guards that others imply."""

    def __init__(self) -> None:
        self._by_source: dict[Source, dict[Any, int]] = {}  # the number of each guard on a source
        self._guards: dict[int, Guard] = {}  # by number, in order
        self._numbers = 0

    def add(self, kind: str, source: Source, value: Any = None, where: Any = None) -> None:
        """Add a guard. User objects among the values are turned into weak references. Raises: KeyError (unknown
        kind)."""
        row = KINDS[kind]
        if isinstance(source, Constant) or row.sure(source):
            return
        guard = Guard(kind, source, value if isinstance(value, Ref) else row.keep(value), where)
        mine = self._by_source.setdefault(source, {})
        slot = _slot(guard)
        if mine:
            if slot in mine or any(_implies(self._guards[n], kind) for n in mine.values()):
                return
            for key in [k for k, n in mine.items() if _implies(guard, self._guards[n].kind)]:
                del self._guards[mine.pop(key)]
        mine[slot] = number = self._numbers
        self._guards[number] = guard
        self._numbers += 1

    def replace(self, guard: Guard, value: Any) -> None:
        """Give a guard another value."""
        new = Guard(guard.kind, guard.source, value, guard.where)
        self._guards[self._by_source[guard.source][_slot(guard)]] = new

    def add_state(self, *names: str) -> None:
        """Guard global state as it is now: the rows of STATES named, or ALWAYS (with autocast's details when it is
        on)."""
        wanted = list(names or ALWAYS)
        if not names and STATES["autocast"][0]():
            wanted += ["autocast_cpu", "autocast_cuda", "autocast_cache"]
        for name in wanted:
            self.add(GLOBAL_STATE, GlobalState(name), STATES[name][0]())

    def update(self, other: GuardSet) -> None:
        """Add all guards of another set."""
        for g in other:
            self.add(g.kind, g.source, g.value, g.where)

    def copy(self) -> GuardSet:
        """A set with the same guards, to go on from (or to come back to)."""
        new = GuardSet()
        new._guards, new._numbers = dict(self._guards), self._numbers
        new._by_source = {s: dict(m) for s, m in self._by_source.items()}
        return new

    def on(self, source: Source) -> list[Guard]:
        """The guards on a source."""
        return [self._guards[n] for n in self._by_source.get(source, {}).values()]

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def __len__(self) -> int:
        return len(self._guards)

    def text(self) -> str:
        """Prints one line for each guard."""
        return "\n".join(map(repr, self))

    def __repr__(self) -> str:
        return f"GuardSet({len(self)} guards on {len(self._by_source)} sources)"


def _slot(guard: Guard) -> tuple[str, Any]:
    """The key of a guard among those on its source: a second guard with the same key says nothing new."""
    return guard.kind, KINDS[guard.kind].apart(guard.value)


def _implies(guard: Guard, kind: str) -> bool:
    """Whether a guard makes one of `kind` on the same source redundant."""
    return kind == PRESENT or KINDS[guard.kind].implies(guard.value, kind)
