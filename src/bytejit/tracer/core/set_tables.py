"""How a set was made: the order in which it is gone through depends on every step, not on its items alone.

A `Table` is the last step; it refers to the one before. Real sets that are made by the same steps have the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MOST_STEPS = 400  # an entry repeats them


class Table:
    """One step in the life of a set.

    `name`: "of" (operands: class, keys: the set begins with these, one after the other), "outside" (a value from outside of the
    region), "as" (class, a table: `cls(set)`), "adds" (keys), "discards" (keys), or a method, whose operands are tables, dicts
    and tuples of keys.
    """

    __slots__ = ("before", "name", "operands", "size")

    def __init__(self, before: Table | None, name: str, operands: tuple) -> None:
        self.before, self.name, self.operands = before, name, operands
        self.size: int = 1 + sum(o.size for o in (before, *operands) if isinstance(o, Table))

    @property
    def changes(self) -> bool:
        """Whether the step changes the set, and makes no other one."""
        return self.name in ("adds", "discards", "pop", "clear") or self.name.endswith("update")

    def then(self, name: str, operands: tuple) -> Table | None:
        """The table after one more step; None where there are too many to repeat."""
        if name == self.name and name in ("adds", "discards"):
            made = Table(self.before, name, self.operands + operands)
        elif name == "adds" and self.name == "of" and self.operands[0] is set and type(self.operands[1]) is tuple:
            made = Table(None, "of", (set, self.operands[1] + operands))
        else:
            made = Table(self, name, operands)
        return made if made.size <= MOST_STEPS else None

    def steps(self) -> list[Table]:
        """Returns all steps, from the first on."""
        found: list[Table] = [self]
        while (before := found[-1].before) is not None:
            found.append(before)
        return found[::-1]


def of(cls: type, keys: Iterable) -> Table:
    """The table of a set that begins with these keys."""
    return Table(None, "of", (cls, tuple(keys)))


def outside(v: Any) -> Table:
    """The table of a set from outside, as it was when the region began."""
    return Table(None, "outside", (v,))


def outsiders(table: Table) -> Iterator[Any]:
    """The values from outside that a set was made of."""
    for step in table.steps():
        for o in step.operands:
            if isinstance(o, Table):
                yield from outsiders(o)
            elif step.name == "outside":
                yield o


class Unlike(Exception):
    """A set from outside that changed, and of which no copy has its order."""


def made(table: Table, real: Callable[[Any], Any]) -> Any:
    """A real set that is made by the steps of a table. real: the object of a value from outside, which stays as it is.
    Raises: Unlike."""
    first, *rest = table.steps()
    if first.name == "of":
        value = first.operands[0](first.operands[1])
    elif first.name == "as":
        value = first.operands[0](made(first.operands[1], real))
    else:
        value = real(first.operands[0])
        if rest and rest[0].changes:
            value = like(value)
    return taken(value, rest, real)


def like(value: set) -> set:
    """A copy of a set with the same places for the same items. Raises: Unlike where a copy has others."""
    copy = value.copy()
    if sys.getsizeof(copy) != sys.getsizeof(value) or any(a is not b for a, b in zip(copy, value)):
        raise Unlike
    return copy


def taken(value: Any, steps: list[Table], real: Callable[[Any], Any]) -> Any:
    """Returns the set after these steps, each of which changes it or makes another of it."""
    for step in steps:
        if step.name == "adds":
            value.update(step.operands)
        elif step.name == "discards":
            for key in step.operands:
                value.discard(key)
        else:
            found = getattr(value, step.name)(*(made(o, real) if isinstance(o, Table) else o for o in step.operands))
            value = value if step.changes else found
    return value


def numbered(table: Table, seen: list) -> Table:
    """The same table, in which values from outside are their places in `seen`, to which they are added."""
    before = None if table.before is None else numbered(table.before, seen)
    if table.name == "outside":
        if not any(v is table.operands[0] for v in seen):
            seen.append(table.operands[0])
        return Table(None, "outside", (next(i for i, v in enumerate(seen) if v is table.operands[0]),))
    return Table(before, table.name, numbered_operands(table, seen))


def numbered_operands(table: Table, seen: list) -> tuple:
    """The operands of the last step, numbered."""
    return tuple([numbered(o, seen) if isinstance(o, Table) else o for o in table.operands])


UNKNOWN = Table(None, "unknown", ())
