"""A Triton function being written: its lines, parameters and what is computed already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.cuda.tiles import Tile

from .source import Arg, Config


class PyText:
    """Lines with an indent, and beside each the user's line, kept apart: equal code may come from different lines."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.depth = 1

    def add(self, line: str, comment: str = "") -> None:
        self.rows.append(("    " * self.depth + line, comment))

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1

    def plain(self) -> str:
        """The code alone: what decides whether two kernels are one."""
        return "\n".join(line for line, _ in self.rows)

    def full(self) -> str:
        """The code with the user's lines."""
        return "\n".join(f"{line}  # {note}" if note else line for line, note in self.rows)


@dataclass
class Function:
    """One Triton function being written. params: what it is passed (name in the function -> Arg); names: what is
    computed already, by (expression, inner axes or None); refs: results of reductions, alike; laid: what holds the inner
    axes that were laid out already."""

    text: PyText = field(default_factory=PyText)
    params: dict[str, Arg] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    refs: dict[Any, str] = field(default_factory=dict)
    laid: dict[Any, Any] = field(default_factory=dict)
    tiles: tuple[Tile, ...] = ()
    configs: tuple[Config, ...] = ()
