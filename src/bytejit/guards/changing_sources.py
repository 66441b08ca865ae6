"""Sources of what a call computes from other values of the same call: a number over others, an item under a key that is
another one in each call. They are fetched before the graph runs; where that raises, a guard failed."""

from __future__ import annotations

from typing import Any

from .kinds import SizeCondition, expression_text
from .references import Ref, SourcePrinter
from .source import Source, source
from .sources import Computed


@source
class Expression(Source):
    """A number over those of other sources, as a guard of kind EXPR has it."""

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
        return f"{at.bind(self.kind.__getitem__, 'get')}({at.source(self.base)}, {at.source(self.key)})"

    def name(self) -> str:
        return f"{self.base.name()}[{self.key.name()}]"


def length_of(base: Source) -> Computed:
    """The source of a container's length."""
    return Computed(_LEN, (base,))


_LEN = Ref.strong(len)
