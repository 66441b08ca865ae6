"""Lists and deques from outside: while a region only appends to one and takes items by number, how many it holds is not guarded.
So one that grows from call to call, or from one run of a loop to the next, is no reason to compile anew. Where their number is
asked for, and was another in another call, it is a number from outside that changes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from bytejit.guards.changing_sources import length_of
from bytejit.guards.conditions import SizeCondition
from bytejit.guards.sources import Attr, Item, Source
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, Lazy, SeqVar, Var
from bytejit.tracer.sizes.called_anew import changes, hint, source_of

from .changing_keys import all_new, picked
from .open_writes import ExternalDict, OpenWrites


class ExternalList(OpenWrites, SeqVar):
    """A list or deque from outside. `tail`: what was appended before its length was asked for; None once `items` is known."""

    __slots__ = ("t", "known", "tail", "late")

    def __init__(self, t: Tracer, obj: list | collections.deque, source: Source) -> None:
        self.t, self.late = t, {}
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
            places = [self.t.subscripts.index(key) for key, _ in self.late.values()]  # where one must stay open, nothing changes
            self.t.guard("LEN_IS", self.source, len(self.real))
            self.known = [*(Lazy(o, Item(self.origin, i)) for i, o in enumerate(self.real)), *self.tail]
            if self.maxlen is not None:
                del self.known[: max(0, len(self.known) - self.maxlen)]
            self.tail = None
            late, self.late = self.late, {}
            for place, (_, value) in zip(places, late.values()):
                self.known[place] = value
        return self.known

    @items.setter
    def items(self, items: list[Var] | None) -> None:
        if items is not None:
            self.known, self.tail = items, None

    def picked(self, i: int) -> Var | None:
        """Item `i`, counted from the side that it is asked from. None where that takes the length: the items are known, or
        there is no such item. A list that is too short to fetch it from is a guard that failed."""
        if self.tail is None or self.late:
            return None
        if -len(self.tail) <= i < 0:
            return self.tail[i]
        if self.maxlen is not None and self.tail and not self._has_room(self.maxlen - len(self.tail)):
            return None
        at = i + len(self.tail) if i < 0 else i
        if not -len(self.real) <= at < len(self.real):
            return None
        return self.t.values.lazy(self.real[at], Item(self.origin, at))

    def appended(self, key: Var) -> Var | None:
        """What was appended at a place that changes between calls, guarded; None where that is not known."""
        if not self.tail or self.late or self.maxlen is not None or not changes(self.t, key):
            return None
        source, place = source_of(self.t, key), hint(self.t, key)
        if source is None or type(place) is not int or not 0 <= place - len(self.real) < len(self.tail):
            return None
        nth = place - len(self.real)
        self.t.guard("EXPR", source, SizeCondition(f"key == n + {nth}", (("key", source), ("n", length_of(self.origin)))))
        return self.tail[nth]

    def write(self, key: Var, value: Var) -> bool:
        there = self.tail == [] and (self.late or picked(self.t, self, key) is not None)
        return bool(there) and super().write(key, value)

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
        into = seq.tail if isinstance(seq, ExternalList) and seq.tail is not None and not seq.late else seq.items
        into.append(value)
        if seq.maxlen is not None and len(into) > seq.maxlen:
            del into[0]


def added(t: Tracer, v: ExternalDict | ExternalList) -> int | None:
    """Returns how many items more than before the region a container from outside holds; None where that takes all its items."""
    if isinstance(v, ExternalList):
        return len(v.tail) if v.tail is not None and (v.maxlen is None or not v.tail) else None
    if v.complete or not v.late and id(v) in t.effects.dirty:
        return None
    return len(v.late) if all_new(t, v) else None


def length(t: Tracer, v: Var) -> Var | None:
    """len(v) of a container from outside that had another length in another call; None for others."""
    if not isinstance(v, (ExternalDict, ExternalList)) or (more := added(t, v)) is None:
        return None
    source, dynamic = length_of(v.origin), t.sizes.dynamic
    if source not in dynamic.changed or source in dynamic.static:
        return None
    found = t.values.wrap(len(v.real), source)
    return t.operators.binary("add", found, Known(more)) if more else found


def is_filled(t: Tracer, v: ExternalList) -> bool:
    """bool(v)."""
    if not v.tail and v.tail is not None:
        t.guard("BOOL", v.source, len(v.real) > 0)
        return len(v.real) > 0
    return bool(v.tail or v.items)
