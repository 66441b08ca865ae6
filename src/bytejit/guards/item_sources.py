"""Sources of items of containers, past what a subclass of the program's overrides."""

from __future__ import annotations

from typing import Any

from .references import Ref, SourcePrinter, plain
from .source import Source, source
from .sources import InstanceDict


@source
class DictItem(Source):
    """base[key] of a dict. A key that is no plain value is given as a Ref (`dict_item` does it)."""

    base: Source
    key: Any

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.source(self.base)}[{at.literal(self.key)}]"

    def name(self) -> str:
        if isinstance(self.base, InstanceDict) and type(self.key) is str:
            return f"{self.base.base.name()}.{self.key}"
        return f"{self.base.name()}[{self.key!r}]"


def present(d: dict, key: Any) -> Any:
    """Returns the value of a key of a dict. Raises: KeyError. A class's own `__getitem__` and `__missing__` are not called:
    reading a defaultdict must not add a key."""
    found = dict.get(d, key, _ABSENT)
    if found is _ABSENT:
        raise KeyError(key)
    return found


_ABSENT = object()


@source
class PresentItem(DictItem):
    """base[key] of an instance of a subclass of dict that has a `__getitem__` or a `__missing__`, which are gone round."""

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(present, 'present')}({at.source(self.base)}, {at.literal(self.key)})"


def dict_item(base: Source, key: Any, gone_round: bool = False) -> Source:
    """An item of a dict whose key is kept weakly when it is an object rather than a plain value.

    gone_round: the dict's class has methods of its own that are not to be called."""
    return (PresentItem if gone_round else DictItem)(base, key if plain(key) else Ref(key))


@source
class TupleItem(Source):
    """tuple.__getitem__(base, i) (or list's): for subclasses that override indexing, e.g. named tuples."""

    base: Source
    index: Any
    kind: Any = tuple

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(self.kind.__getitem__, 'get')}({at.source(self.base)}, {at.literal(self.index)})"

    def name(self) -> str:
        return f"{self.base.name()}[{self.index!r}]"
