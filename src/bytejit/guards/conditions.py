"""Conditions that a guard holds and that are more than a plain value: over sizes, over several objects, over computed tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from bytejit.common.light_dataclass import light_dataclass

from .references import SourcePrinter
from .source import Source


@light_dataclass(frozen=True)
class SizeCondition:
    """A Python condition over named ints: `SizeCondition("s0 + 1 < s1", (("s0", source), ("s1", source)))`."""

    text: str
    names: tuple[tuple[str, Source], ...]

    def __repr__(self) -> str:
        return self.text + " where " + ", ".join(f"{n} = {s.name()}" for n, s in self.names)


@light_dataclass(frozen=True)
class Distinct:
    """Objects of one type: `changed` by the region, and `others` that it reads. Each of the changed is another object than all
    others and than the other changed ones. One guard: as pairs, those of a model's parameters would be its square."""

    changed: tuple[Source, ...]
    others: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*self.changed, *self.others)

    def __repr__(self) -> str:
        return f"{len(self.changed)} changed, {len(self.others)} read"


def distinct(changed: tuple, others: tuple) -> bool:
    """Whether what `Distinct` says holds for some objects."""
    seen = set(map(id, changed))
    return len(seen) == len(changed) and seen.isdisjoint(map(id, others))


@light_dataclass(frozen=True, eq=False)
class ComputedItems:
    """A value that a pure function of some tensors gave: `run(*sources)` is a tensor, `want` its items."""

    run: Callable[..., Any]
    sources: tuple[Source, ...]
    want: Any

    def __repr__(self) -> str:
        return f"{str(self.want)[:60]} from {', '.join(s.name() for s in self.sources)}"


def expression_text(at: SourcePrinter, value: SizeCondition) -> str:
    """Its text with each name replaced by that source's."""
    namespace = {name: at.source(source) for name, source in value.names}
    names = "|".join(map(re.escape, namespace))
    text = re.sub(rf"\b(?:{names})\b", lambda found: namespace[found.group()], value.text) if names else value.text
    at.env.setdefault("math", math)
    return text
