"""What a trace found in classes, and whether a class still gives it.

A trace looks for names in classes as the interpreter does: along the MRO. What it found, or that it found nothing, decides
what an attribute, an operator, a truth or a call of an instance means. A guard of kind CLASS holds all that was looked for in
one class. It looks at the class's version (compat/class_versions.py) and, where that has moved, at each name again: then
it remembers the new version. So a class whose attributes change often costs time, and no new compile.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.quiet_reads import MRO, NAMESPACE
from bytejit.common.registry import PresentMethod
from bytejit.compat import class_versions

from .equality import same
from .references import Ref, plain

MISSING = object()
BASES = type.__dict__["__bases__"].__get__
IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
FAILED, UNKNOWN = -1, 0  # what `ClassCheck.again` returns in place of a version


def searched(cls: type, after: type | None = None) -> tuple[type, ...]:
    """The classes in which an attribute is looked for, in order: those of the MRO after `after` when given."""
    mro = MRO(cls)
    return mro[mro.index(after) + 1 :] if after is not None else mro


def find(cls: type, name: str, after: type | None = None) -> tuple[Any, type | None]:
    """(value, owner) of a class attribute by MRO, after `after` when given; (MISSING, None) without one. For a method of a
    compiled module it is what the original's class has now."""
    for c in MRO(cls) if after is None else searched(cls, after):
        found = NAMESPACE(c).get(name, MISSING)
        if found is not MISSING and not isinstance(found, PresentMethod):
            return found, c
    return MISSING, None


def marks(found: Any) -> tuple:
    """Returns what identifies a class attribute: the facts that decide how it is bound. The value of a plain attribute is guarded
    where it is read."""
    if found is MISSING:
        return ()
    kind = type(found)
    if issubclass(kind, types.FunctionType):
        return (kind, found.__code__)
    if issubclass(kind, property):
        return (kind, found.fget, found.fset, found.fdel)
    if issubclass(kind, (classmethod, staticmethod)):
        return (kind, found.__func__)
    if issubclass(kind, IN_C):  # it holds its class, which is held weakly here
        return (kind, found.__objclass__, found.__name__)
    binds = any(find(kind, hook)[1] is not None for hook in ("__get__", "__set__", "__delete__"))
    return (kind,) if binds or found is None else ("a value",)


@light_dataclass(frozen=True)
class Lookup:
    """A name that was looked for in a class, after a class of its MRO when given; the class that has it, and its marks."""

    name: str
    after: Ref | None
    owner: Ref | None
    marks: tuple

    @staticmethod
    def of(name: str, after: type | None, found: Any, owner: type | None) -> Lookup:
        kept = tuple(m if plain(m) else Ref(m) for m in marks(found))
        return Lookup(name, None if after is None else Ref(after), None if owner is None else Ref(owner), kept)

    def holds(self, cls: type) -> bool:
        """Whether the class still gives the same result."""
        found, owner = find(cls, self.name, self.after.get() if self.after is not None else None)
        if owner is None or self.owner is None:
            return owner is None and self.owner is None
        now = marks(found)
        return (
            self.owner.is_(owner)
            and len(now) == len(self.marks)
            and all(k.is_(m) if isinstance(k, Ref) else same(m, k) for m, k in zip(now, self.marks))
        )


def order(cls: type) -> tuple[type, ...]:
    """The MRO of a class, and its bases."""
    return (*MRO(cls), *BASES(cls))


@light_dataclass(frozen=True)
class ClassLookups:
    """What was looked for in one class, and its MRO. The value of a guard of kind CLASS."""

    order: tuple[Ref, ...]  # as `order` gives it
    lookups: tuple[Lookup, ...]

    @staticmethod
    def of(cls: type, lookups: Iterable[Lookup]) -> ClassLookups:
        return ClassLookups(tuple(map(Ref, order(cls))), tuple(lookups))

    def changed(self, cls: type) -> list[str]:
        """The lookups whose result has changed."""
        now = order(cls)
        if len(now) != len(self.order) or not all(k.is_(c) for k, c in zip(self.order, now)):
            return ["__mro__"]
        return [one.name for one in self.lookups if not one.holds(cls)]

    def holds(self, cls: type) -> bool:
        """Whether all lookups still have the same result."""
        return not self.changed(cls)

    def __repr__(self) -> str:
        return ", ".join(sorted({one.name for one in self.lookups})) or "its bases"


class ClassCheck:
    """The check of one class in one entry: the version for which all was looked at. Costs 45 ns while the version stays."""

    __slots__ = ("lookups", "now", "seen")

    def __init__(self, lookups: ClassLookups):
        self.lookups = lookups
        self.now: Any = None
        self.seen = UNKNOWN

    def again(self, cls: type) -> int:
        """The version for which all holds now, to be remembered; UNKNOWN where it has none; FAILED where it does not hold."""
        self.now = self.now or class_versions.view(cls)
        class_versions.give(cls)
        version = self.now.value if self.now is not None else UNKNOWN
        return version if self.lookups.holds(cls) else FAILED

    def holds(self, cls: type) -> bool:
        """Whether all lookups in the class still have the same result. Every call passes the same class."""
        if self.seen > UNKNOWN and self.now.value == self.seen:
            return True
        self.seen = self.again(cls)
        return self.seen != FAILED
