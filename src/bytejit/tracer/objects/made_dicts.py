"""Dicts that a region makes under keys which change between calls: the keys stay open, and a guard tells them apart. So other
keys cost no compile while what is asked of the dict does not depend on them.
"""

from __future__ import annotations

from typing import Any

from bytejit.guards.conditions import SizeCondition
from bytejit.guards.sources import Constant, Source
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Known, SeqVar, SymVar, TensorVar, Var
from bytejit.tracer.sizes.called_anew import changes, hint, source_of

MOST_KEYS = 16  # of a dict with open keys: each is compared with all others in each call


class MadeDict(DictVar):
    """A dict of the region. `late`: from its first open key on all entries in order, by their keys' sources -> (key Var, value
    Var). Who asks for `items` settles it first: the keys become constants."""

    __slots__ = ("t", "known", "late")

    def __init__(self, t: Tracer, cls: type = dict) -> None:
        self.t = t
        self.late: dict[Source, tuple[Var, Var]] = {}
        self.known: dict = {}
        super().__init__({}, cls)

    @property
    def items(self) -> dict:
        """Returns the items. Open keys become constants. Raises: Break where one cannot; then nothing has changed."""
        if self.late:
            late, self.late = self.late, {}
            try:
                for key, value in late.values():
                    self.t.subscript_writes.dict_set(self, key, value, is_open=False)
            except BaseException:
                self.late, self.known = late, {}
                raise
        return self.known

    @items.setter
    def items(self, items: dict) -> None:
        self.known = items

    def pairs(self) -> list[tuple[Var, Var]]:
        """All entries in order, keys as they are."""
        return [*(self.late or self.known).values()]

    def row(self, kind: str) -> list[Var]:
        """The keys, values or items."""
        return [{"keys": k, "values": v}.get(kind) or SeqVar([k, v], tuple) for k, v in self.pairs()]

    def entries(self) -> dict[Source, tuple[Var, Var]] | None:
        """All entries by the sources of their keys; None where one has none, or there are too many."""
        if len(self.known) >= MOST_KEYS:
            return None
        if self.late:
            return self.late
        found: dict[Source, tuple[Var, Var]] = {}
        for key, value in self.known.values():
            if (source := source_of(self.t, key)) is None:
                return None
            found[source] = key, value
        return found

    def source_for(self, key: Var) -> Source | None:
        """The source of a key that one of the entries has, or none of them, which is guarded. None: it must be a constant, as a
        number that is a symbol."""
        if isinstance(self.t.values.real(key), SymVar):
            return None
        source, entries = source_of(self.t, key), self.entries()
        if source is None or entries is None or not (self.late or changes(self.t, key)):
            return None
        if source in entries:
            return source
        now = {hint(self.t, key), *(hint(self.t, k) for k, _ in entries.values())}
        if len(now) <= len(entries):  # as a dict tells its keys apart
            return None
        others = [of for of in entries if not (isinstance(of, Constant) and isinstance(source, Constant))]
        if others:
            names = tuple((f"k{i}", of) for i, of in enumerate(others))
            text = f"key not in {{{', '.join(name for name, _ in names)}}}"
            self.t.guard("EXPR", source, SizeCondition(text, (("key", source), *names)))
        return source

    def write(self, key: Var, value: Var) -> bool:
        """self[key] = value where a key is open; False, and nothing is written, where the keys must be known."""
        source, entries = self.source_for(key), self.entries()
        if source is None or entries is None or source not in entries and len(entries) >= MOST_KEYS:
            return False
        old = entries.get(source)
        if old is not None and not isinstance(self.t.values.real(old[1]), (TensorVar, SymVar, Known)):  # may have a finalizer
            return False
        self.t.touch(self)
        self.late = {**entries, source: (key if old is None else old[0], value)}
        self.known = {}
        return True

    def found(self, key: Var) -> Var | None:
        """self[key] of a dict with open keys; None where the keys must be known, or none is this."""
        return self.late[source][1] if self.late and (source := source_of(self.t, key)) in self.late else None

    def lacks(self, key: Var) -> bool:
        """Whether it has no such key, guarded; False where that is not known without making keys constants."""
        source, entries = self.source_for(key), self.entries()
        return source is not None and entries is not None and source not in entries

    def __repr__(self) -> str:
        return f"{self.cls.__name__}<{len(self.pairs())}>"


def state_of(d: MadeDict, kind: str, cls: type) -> dict[str, Any]:
    """The state of an iterator over a dict with open keys."""
    return {"owner": d, "kind": kind, "at": 0, "keys": [k for k, _ in d.pairs()], "cls": cls}
