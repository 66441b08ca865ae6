"""Sizes and numbers that are said, by name, to change between calls: in the option `dynamic_sources` and in
`torch.compiler.config.dynamic_sources` (`TORCH_COMPILE_DYNAMIC_SOURCES`).

Entries are patterns of torch's names, `L['x']` for a local and `G['x']` for a global, with `:1` behind where only that
dimension is meant. What lies below one is named as in Python: `L['batch'].mask`, `L['sizes'][0]`. The arguments of a module
are called as its forward calls them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable

from bytejit.common.light_dataclass import light_dataclass
from bytejit.guards.sources import Global, Local, Source

CONFIG = "torch.compiler.config"
FIELDS = ("dynamic_sources", "unbacked_sources")
IDENTIFIER = re.compile(r"\w+")
IN_DICT = re.compile(r"\.__dict__\['(\w+)'\]")  # of an object's attributes


@light_dataclass(frozen=True)
class NamedSources:
    """What is named. option: entries; reworded: the text of a value with the names that a module's forward has."""

    option: tuple[str, ...] = ()
    reworded: Callable[[str], str] = str

    def dims(self, source: Source, rank: int) -> frozenset[int]:
        """The dimensions of a tensor with so many that are said to change."""
        found = self._dims(source)
        return frozenset(range(rank)) if None in found else frozenset(d for d in found if d is not None and d < rank)

    def holds(self, source: Source) -> bool:
        """Whether a number is said to change."""
        return bool(self._dims(source))

    def _dims(self, source: Source) -> set[int | None]:
        """Returns the entries that name a value; None: all."""
        config = sys.modules.get(CONFIG)
        entries = [e for text in self.option for e in _entry(text)]
        entries += [e for field in FIELDS for e in _entries(getattr(config, field, ""))]
        if not entries or (name := _name(source)) is None:
            return set()
        names = {name, self._by_parameter(source) or name}
        return {
            dim
            for text, pattern, dim in entries
            if text in names or pattern is not None and any(pattern.match(name) for name in names)
        }

    def _by_parameter(self, source: Source) -> str:
        """Torch's name of what is below an argument of a module's forward, as the forward calls it; "" of all else."""
        text = source.name()
        if (new := self.reworded(text)) == text or (first := IDENTIFIER.match(new)) is None:
            return ""
        return f"L[{first[0]!r}]" + IN_DICT.sub(r".\1", new[first.end() :])


def _entries(text: str) -> list[tuple[str, re.Pattern[str] | None, int | None]]:
    return [found for entry in text.replace(" ", "").split(",") for found in _entry(entry)]


@functools.lru_cache(64)
def _entry(entry: str) -> tuple[tuple[str, re.Pattern[str] | None, int | None], ...]:
    if not entry:
        return ()
    name, colon, dim = entry.rpartition(":")
    name, only = (name, int(dim)) if colon and dim.isdigit() else (entry, None)
    try:
        return ((name, re.compile(name), only),)
    except re.error:  # a name in full, whose brackets are no pattern
        return ((name, None, only),)


def _name(source: Source) -> str | None:
    """Torch's name of a value; None for one that is reached in another way (a cell, the stack)."""
    root = source
    while bases := root.bases():
        if len(bases) != 1 or isinstance(root, Global):
            break
        (root,) = bases
    if not isinstance(root, (Local, Global)):
        return None
    own = root.name()
    below = IN_DICT.sub(r".\1", source.name().removeprefix(own))
    return f"{'L' if isinstance(root, Local) else 'G'}[{own!r}]{below}"
