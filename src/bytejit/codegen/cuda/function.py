"""A Triton function being written: its lines, its parameters, and the values computed so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.cuda.tiles import Tile
from bytejit.codegen.emit.text import Text

from .source import Arg, LaunchConfig


class PyText(Text):
    """A function's body in Triton."""

    mark, start = "#", 1

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1


@dataclass
class TritonFunction:
    """One Triton function being written. params: its arguments (name in the function -> Arg); names: values computed so far, by
    (expression, inner axes or None); refs: results of reductions, likewise; laid: variables of the inner axes that are defined
    so far."""

    text: PyText = field(default_factory=PyText)
    params: dict[str, Arg] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    refs: dict[Any, str] = field(default_factory=dict)
    laid: dict[Any, Any] = field(default_factory=dict)
    tiles: tuple[Tile, ...] = ()
    configs: tuple[LaunchConfig, ...] = ()
