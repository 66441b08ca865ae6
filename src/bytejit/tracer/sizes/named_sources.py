"""Sizes and numbers that `torch.compiler.config.dynamic_sources` (`TORCH_COMPILE_DYNAMIC_SOURCES`) says change between calls.

Entries are patterns of torch's names, `L['x']` for a local and `G['x']` for a global, with `:1` behind where only that
dimension is meant. What lies below one is named as in Python: `L['batch'].mask`, `L['sizes'][0]`.
"""

from __future__ import annotations

import functools
import re
import sys

from bytejit.guards.sources import Global, Local, Source

CONFIG = "torch.compiler.config"
FIELDS = ("dynamic_sources", "unbacked_sources")


def named_dims(source: Source, rank: int) -> frozenset[int]:
    """The dimensions of a tensor with so many that are said to change."""
    found = _dims(source)
    return frozenset(range(rank)) if None in found else frozenset(d for d in found if d is not None and d < rank)


def is_named(source: Source) -> bool:
    """Whether a number is said to change."""
    return bool(_dims(source))


def _dims(source: Source) -> set[int | None]:
    """Returns the entries that name a value; None: all."""
    entries = [e for field in FIELDS for e in _entries(getattr(sys.modules.get(CONFIG), field, ""))]
    if not entries or (name := _name(source)) is None:
        return set()
    return {dim for text, pattern, dim in entries if text == name or pattern is not None and pattern.match(name)}


@functools.lru_cache(8)
def _entries(text: str) -> tuple[tuple[str, re.Pattern[str] | None, int | None], ...]:
    found: list[tuple[str, re.Pattern[str] | None, int | None]] = []
    for entry in filter(None, text.replace(" ", "").split(",")):
        name, colon, dim = entry.rpartition(":")
        name, only = (name, int(dim)) if colon and dim.isdigit() else (entry, None)
        try:
            found.append((name, re.compile(name), only))
        except re.error:  # a name in full, whose brackets are no pattern
            found.append((name, None, only))
    return tuple(found)


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
    return f"{'L' if isinstance(root, Local) else 'G'}[{own!r}]{source.name().removeprefix(own)}"
