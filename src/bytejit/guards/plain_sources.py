"""Sources that read the built-in part of an instance of a program's subclass, without running the methods of that subclass."""

from __future__ import annotations

from typing import Any

from .references import SourcePrinter
from .source import Source, source


@source
class PlainLength(Source):
    """The length of an instance of a list's or a tuple's subclass. kind: list or tuple."""

    base: Source
    kind: Any

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(self.kind.__len__, 'length')}({at.source(self.base)})"

    def name(self) -> str:
        return f"len({self.base.name()})"


@source
class PlainKeys(Source):
    """The keys of an instance of a dict's subclass, as a view. kind: dict, OrderedDict or defaultdict."""

    base: Source
    kind: Any

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(self.kind.keys, 'keys')}({at.source(self.base)})"

    def name(self) -> str:
        return self.base.name()
