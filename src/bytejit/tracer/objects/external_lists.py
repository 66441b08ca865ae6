"""Lists and deques from outside: while a region only appends to one and takes items by number, how many it holds is not guarded.
So one that grows from call to call, or from one run of a loop to the next, is no reason to compile anew. Where their number is
asked for, and was another in another call, it is a number from outside that changes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from bytejit.guards.changing_sources import length_of
from bytejit.guards.kinds import SizeCondition
from bytejit.guards.sources import Attr, Item, Source
from bytejit.tracer.core.values import DictVar, Known, Lazy, SeqVar, Var


class ExternalList(SeqVar):
    """A list or deque from outside. `tail`: what was appended before its length was asked for; None once `items` is known."""

    __slots__ = ("t", "known", "tail")

    def __init__(self, t: Any, obj: list | collections.deque, source: Source) -> None:
        self.t = t
        self.known: list[Var] = []
        self.tail: list[Var] | None = []
        maxlen = obj.maxlen if isinstance(obj, collections.deque) else None
        if type(obj) is collections.deque:
            t.guard("EQUALS", Attr(source, "maxlen"), maxlen)
        super().__init__(None, type(obj), source, obj, maxlen)

    @property
    def items(self) -> list[Var]:
        """All items, once looked at: their number is guarded then."""
        if self.tail is not None:
            self.t.guard("LEN_IS", self.source, len(self.real))
            self.known = [*(Lazy(o, Item(self.origin, i)) for i, o in enumerate(self.real)), *self.tail]
            if self.maxlen is not None:
                del self.known[: max(0, len(self.known) - self.maxlen)]
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
        if self.maxlen is not None and self.tail and not self._has_room(self.maxlen - len(self.tail)):
            return None
        at = i + len(self.tail) if i < 0 else i
        if not -len(self.real) <= at < len(self.real):
            return None
        return self.t.values.lazy(self.real[at], Item(self.origin, at))

    def _has_room(self, most: int) -> bool:
        """Whether what was appended has pushed nothing out: guarded where it is so."""
        if len(self.real) > most:
            return False
        self.t.guard("EXPR", self.source, SizeCondition(f"n <= {most}", (("n", length_of(self.origin)),)))
        return True

    def __repr__(self) -> str:
        return f"{self.cls.__name__} of {self.source}" if self.tail is not None else super().__repr__()


def extend(seq: SeqVar, values: Iterable[Var]) -> None:
    """seq.extend(values), which are taken one by one."""
    for value in values:
        into = seq.tail if isinstance(seq, ExternalList) and seq.tail is not None else seq.items
        into.append(value)
        if seq.maxlen is not None and len(into) > seq.maxlen:
            del into[0]


def length(t: Any, v: Var) -> Var | None:
    """len(v) of a container from outside that had another length in another call; None for others."""
    tail: list[Var] | None = []
    if isinstance(v, ExternalList):
        tail = v.tail if not v.tail or v.maxlen is None else None
    elif not isinstance(v, DictVar) or v.source is None or v.complete or id(v) in t.effects.dirty:
        return None
    if tail is None or length_of(v.origin) not in t.sizes.dynamic.changed or length_of(v.origin) in t.sizes.dynamic.static:
        return None
    found = t.values.wrap(len(v.real), length_of(v.origin))
    return t.operators.binary("add", found, Known(len(tail))) if tail else found


def is_filled(t: Any, v: ExternalList) -> bool:
    """bool(v)."""
    if not v.tail and v.tail is not None:
        t.guard("BOOL", v.source, len(v.real) > 0)
        return len(v.real) > 0
    return bool(v.tail or v.items)
