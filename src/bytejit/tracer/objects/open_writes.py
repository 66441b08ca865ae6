"""Containers from outside that a region writes under keys which change between calls: the keys stay open while nothing else of
the container is asked for after them. So one more key costs no compile.
"""

from __future__ import annotations

from typing import cast

from bytejit.guards.sources import Source
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Lazy, Var
from bytejit.tracer.sizes.called_anew import changes, source_of


class OpenWrites:
    """What was written last, under open keys, in order. `late`: the key's source -> (key Var, value Var).

    While it holds something, nothing else was written since the region began: who asks for all items settles it first.
    """

    __slots__ = ()
    t: Tracer
    late: dict[Source, tuple[Var, Var]]

    def write(self, key: Var, value: Var) -> bool:
        """Write under a key that changes between calls; False, and nothing is written, where the key must be known."""
        if not changes(self.t, key) or not self.late and id(self) in self.t.effects.dirty:
            return False
        source = source_of(self.t, key)
        if source is None or source in self.late and source != self.last:  # what is between may have the same key
            return False
        self.t.touch(cast(Var, self))
        self.late[source] = key, value
        return True

    @property
    def last(self) -> Source | None:
        """The open key that was written last: what is under it is known, whatever the other keys are."""
        return next(reversed(self.late), None)


class ExternalDict(OpenWrites, DictVar):
    """A dict from outside."""

    __slots__ = ("t", "known", "late")

    def __init__(self, t: Tracer, cls: type, source: Source, obj: dict, factory: Lazy | None = None) -> None:
        self.t, self.late = t, {}
        self.known: dict = {}
        super().__init__({}, cls, source, obj, factory)

    @property
    def items(self) -> dict:
        """Returns the known items. Open keys become constants. Raises: Break where one cannot; then nothing has changed."""
        if self.late:
            late, known = self.late, dict(self.known)
            self.late = {}
            try:
                for key, value in late.values():
                    self.t.subscript_writes.dict_set(self, key, value, is_open=False)
            except BaseException:
                self.late, self.known = late, known
                raise
        return self.known

    @items.setter
    def items(self, items: dict) -> None:
        self.known = items

    def write(self, key: Var, value: Var) -> bool:
        return not (self.complete and self.real) and super().write(key, value)

    def __repr__(self) -> str:
        return f"{self.cls.__name__}<{len(self.known) + len(self.late)}>"
