"""Lists from outside: while a region only appends to one and takes items by number, how many it holds is not guarded. So a
list that grows from call to call, or from one run of a loop to the next, is no reason to compile anew.
"""

from __future__ import annotations

from typing import Any

from bytejit.guards.sources import Item, Source
from bytejit.tracer.core.values import Lazy, SeqVar, Var


class ExternalList(SeqVar):
    """A list from outside. `tail`: what was appended before its length was asked for; None once `items` is known."""

    __slots__ = ("t", "known", "tail")

    def __init__(self, t: Any, obj: list, source: Source) -> None:
        self.t = t
        self.known: list[Var] = []
        self.tail: list[Var] | None = []
        super().__init__(None, list, source, obj)

    @property
    def items(self) -> list[Var]:
        """All items, once looked at: their number is guarded then."""
        if self.tail is not None:
            self.t.guard("LEN_IS", self.source, len(self.real))
            self.known = [*(Lazy(o, Item(self.origin, i)) for i, o in enumerate(self.real)), *self.tail]
            self.tail = None
        return self.known

    @items.setter
    def items(self, items: list[Var] | None) -> None:
        if items is not None:
            self.known, self.tail = items, None

    def picked(self, i: int) -> Var | None:
        """Item `i`, counted from the side that it is asked from. None where that takes the length: the items are known, or
        there is no such item. A list that is too short to fetch it from is a guard that failed."""
        if self.tail is None:
            return None
        if -len(self.tail) <= i < 0:
            return self.tail[i]
        at = i + len(self.tail) if i < 0 else i
        if not -len(self.real) <= at < len(self.real):
            return None
        return self.t.values.lazy(self.real[at], Item(self.origin, at))

    def __repr__(self) -> str:
        return f"list of {self.source}" if self.tail is not None else super().__repr__()


def append(seq: SeqVar, values: list[Var]) -> None:
    """seq.extend(values)."""
    if isinstance(seq, ExternalList) and seq.tail is not None:
        seq.tail.extend(values)
    else:
        seq.items.extend(values)
