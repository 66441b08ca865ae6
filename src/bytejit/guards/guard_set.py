"""Guards, and sets of them in the order in which the trace added them: a guard on a base comes before guards on what is
fetched through it. A set drops duplicates, and what another guard implies; objects of the user are held weakly (`Ref`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

import torch

from bytejit.common.quiet_reads import HEAP_TYPE
from bytejit.common.where import short_path

from .global_state import ALWAYS, STATES, GlobalState
from .kinds import (
    ALIAS,
    ATTR_ABSENT,
    BOOL,
    DICT_ABSENT,
    DICT_KEYS,
    DISTINCT,
    EQUALS,
    EXPR,
    FUNCTION,
    GLOBAL_STATE,
    ID_IS,
    KINDS,
    LEN_IS,
    PRESENT,
    SET_ITEMS,
    TENSOR,
    TYPE_IS,
    VALUE,
)
from .references import Ref, permanent, plain
from .source import Source
from .sources import Constant, KnownSource, Scope


@dataclass(frozen=True, slots=True)
class Guard:
    """A source, a kind, the value seen, and the user's line that read it (`where`, a Where or None)."""

    kind: str
    source: Source
    value: Any
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        shown = code_text(self.value[0]) if self.kind == FUNCTION else repr(self.value)
        return f"{self.kind} {self.source.name()}: {shown}" + (f"   # {self.where}" if self.where else "")


class GuardSet:
    """Guards in order, without duplicates or guards that others imply."""

    def __init__(self) -> None:
        self._by_source: dict[Source, dict[Any, int]] = {}  # the number of each guard on a source
        self._guards: dict[int, Guard] = {}  # by number, in order
        self._numbers = 0

    def add(self, kind: str, source: Source, value: Any = None, where: Any = None) -> None:
        """Add a guard. User objects among the values are turned into weak references. Raises: KeyError (unknown
        kind)."""
        KINDS[kind]
        if _trivial(kind, source):
            return
        guard = Guard(kind, source, _kept(kind, value), where)
        mine = self._by_source.setdefault(source, {})
        slot = (kind, _slot(guard))
        if mine:
            if slot in mine or any(_implied(kind, self._guards[n]) for n in mine.values()):
                return
            for key in [k for k, n in mine.items() if _implied(self._guards[n].kind, guard)]:
                del self._guards[mine.pop(key)]
        mine[slot] = number = self._numbers
        self._guards[number] = guard
        self._numbers += 1

    def replace(self, guard: Guard, value: Any) -> None:
        """Give a guard another value."""
        new = Guard(guard.kind, guard.source, value, guard.where)
        self._guards[self._by_source[guard.source][guard.kind, _slot(guard)]] = new

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


def code_text(code: Any) -> str:
    """A function's code in a message: its name and place, without its address."""
    return (
        f"{code.co_qualname} at {short_path(code.co_filename)}:{code.co_firstlineno}"
        if isinstance(code, CodeType)
        else repr(code)
    )


def _trivial(kind: str, source: Source) -> bool:
    """Guards on constants, and identity or type of what is known by identity, cannot fail."""
    if isinstance(source, KnownSource) and kind == TYPE_IS:
        return not _class_can_change(source.ref.get())
    return isinstance(source, Constant) or (isinstance(source, (KnownSource, Scope)) and kind in (ID_IS, TYPE_IS))


def _kept(kind: str, value: Any) -> Any:
    """The value as a guard keeps it: objects as Ref, plain values as they are."""
    if isinstance(value, Ref):
        return value
    if kind == FUNCTION:  # what it is now: a function's code can be replaced
        if type(value) is tuple:
            return value
        return value.__code__, len(value.__defaults__ or ()), tuple(value.__kwdefaults__ or ())
    if kind in (ID_IS, TYPE_IS):
        return value if value is None or value is Ellipsis or type(value) is bool else Ref(value)
    if kind in (DICT_KEYS, SET_ITEMS) and not isinstance(value, frozenset):
        return tuple(k if isinstance(k, Ref) or plain(k) else Ref(k) for k in value)
    if kind == DICT_ABSENT and not plain(value):
        return Ref(value)
    return value


def _slot(guard: Guard) -> Any:
    """Returns what distinguishes guards of one kind on one source (a key, a name); False where there can be only one."""
    if guard.kind in (DICT_ABSENT, ATTR_ABSENT, EXPR, ALIAS, DISTINCT, VALUE):
        return (type(guard.value), guard.value)
    return guard.kind == SET_ITEMS and isinstance(guard.value, frozenset)


def _implied(kind: str, by: Guard) -> bool:
    """Whether `by`, on the same source, makes a guard of `kind` redundant."""
    if kind == PRESENT:
        return True
    if by.kind == ID_IS:
        if kind == TYPE_IS:  # an instance of a Python class can be given another __class__ later
            return not isinstance(by.value, Ref) or not _class_can_change(by.value.get())
        return kind == EQUALS and not isinstance(by.value, Ref)
    if by.kind == EQUALS:
        return kind in (TYPE_IS, BOOL, LEN_IS)
    if by.kind == TENSOR:
        return kind == TYPE_IS
    if by.kind in (DICT_KEYS, SET_ITEMS):  # a set's items in their order are more than its items
        return kind in (LEN_IS, DICT_ABSENT) or kind == SET_ITEMS and isinstance(by.value, tuple)
    return False


def _class_can_change(obj: Any) -> bool:
    if issubclass(type(obj), ModuleType):  # also a permanent one: modules do this to themselves
        return True
    return bool(type(obj).__flags__ & HEAP_TYPE) and not isinstance(obj, (type, torch.Tensor)) and not permanent(obj)
