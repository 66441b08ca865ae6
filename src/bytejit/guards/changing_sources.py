"""Sources of values that a call computes from other values of the same call: a number from other numbers, an item under a key
that changes between calls. They are fetched before the graph runs. A fetch that raises is a failed guard."""

from __future__ import annotations

from typing import Any

from .conditions import SizeCondition, expression_text
from .item_sources import present
from .references import Ref, SourcePrinter
from .source import Source, source
from .sources import Computed


@source
class Expression(Source):
    """A number computed from other sources, written as in a guard of kind EXPR."""

    value: SizeCondition

    def bases(self) -> tuple[Source, ...]:
        return tuple(of for _, of in self.value.names)

    def expr(self, at: SourcePrinter) -> str:
        return f"({expression_text(at, self.value)})"

    def name(self) -> str:
        names = ", ".join(f"{n} = {s.name()}" for n, s in self.value.names)
        return f"({self.value.text} where {names})"


@source
class Looked(Source):
    """kind.__getitem__(base, key): the item of a container under a key from outside."""

    base: Source
    key: Source
    kind: Any

    def expr(self, at: SourcePrinter) -> str:
        get = present if issubclass(self.kind, dict) else self.kind.__getitem__
        return f"{at.bind(get, 'get')}({at.source(self.base)}, {at.source(self.key)})"

    def name(self) -> str:
        return f"{self.base.name()}[{self.key.name()}]"


def length_of(base: Source) -> Computed:
    """The source of a container's length."""
    return Computed(_LEN, (base,))


_LEN = Ref.strong(len, "len")
