"""Index expressions as text: what all languages share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr


class IndexPrinter(ABC):
    """Prints index expressions. sizes: of the axes, for bounds; axis(name), value(expr): the text of an axis, of a value."""

    def __init__(self, sizes: Mapping[str, Any], axis: Callable[[str], str], value: Callable[[Expr], str]) -> None:
        self.sizes, self.axis, self.value = sizes, axis, value

    def __call__(self, index: Any) -> str:
        """The index as a sum of terms, in their order."""
        if isinstance(index, int):
            return self.number(index)
        parts = []
        for atom, c in index.terms:
            text = self.atom(atom)
            parts.append(text if c == 1 else f"-{text}" if c == -1 else f"{self.factor(c)} * {text}")
        if index.const or not parts:
            parts.append(self.number(index.const))
        return " + ".join(parts).replace("+ -", "- ")

    def number(self, n: int) -> str:
        """A number by itself."""
        return str(n)

    def factor(self, n: int) -> str:
        """A number that is a factor."""
        return str(n)

    def atom(self, atom: ix.Atom) -> str:
        """One atom."""
        kind = type(atom)
        if kind is ix.AxisVar:
            return self.axis(atom.parts[0])
        if kind is ix.Sym:
            return f"s_{atom.parts[0]}"
        if kind is ix.Val:
            return self.value(atom.parts[0])
        if kind is ix.Prod:
            return "(" + " * ".join(self.atom(p) for p in atom.parts) + ")"
        return self.division(kind is ix.Div, *atom.parts)

    @abstractmethod
    def division(self, div: bool, x: ix.Index, d: Any) -> str:
        """A floor division, else a remainder."""
