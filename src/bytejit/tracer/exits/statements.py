"""The statements written so far, and what the writer of each kind of value needs for its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bytejit.guards.sources import SourcePrinter
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import CellVar, Var


class Statements:
    """Lines of an exit. `names`: the local of a Var (by id); `outputs`: the nodes that the graph returns, o0, o1, ..."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.outputs: list[torch.fx.Node] = []
        self.output_at: dict[torch.fx.Node, int] = {}
        self.spent_at: set[int] = set()  # of these, those that are given without their history
        self.read_at: set[int] = set()  # of these, those that the exit reads numbers out of, and those that are used otherwise
        self.used_at: set[int] = set()
        self.returns = False  # whether the region ends by returning from the function
        self.start(SourcePrinter())

    def start(self, printer: SourcePrinter) -> None:
        """Start with no lines."""
        self.at = printer
        self.lines: list[str] = []
        self.fills: list[tuple[str, CellVar]] = []  # cells that get their contents once all functions are made
        self.names: dict[int, str] = {}
        self.named: list[Var] = []  # kept alive: `names` knows them by their id
        self.classes: dict[type, str] = {}
        self.count = 0
        self.kept_cells: set[int] = set()
        self.arrays: list[ArrayVar] = []

    def new_name(self, v: Var) -> str:
        """A new local for a Var."""
        self.count += 1
        return self.name_as(v, f"n{self.count - 1}")

    def name_as(self, v: Var, text: str) -> str:
        """What a Var is from now on."""
        self.named.append(v)
        self.names[id(v)] = text
        return text

    def without_history_at(self) -> set[int]:
        """The outputs that are given without their history: no code of the program sees more of them than their values."""
        read = {i for i in self.read_at - self.used_at if self.outputs[i].meta["val"].requires_grad}
        return self.spent_at | read

    def bind(self, obj: object) -> str:
        """An expression for a real object."""
        raise NotImplementedError

    def value(self, v: Var) -> str:
        """An expression for a Var; statements that it needs go to `lines` first."""
        raise NotImplementedError

    def many(self, items: Iterable[Var]) -> str:
        """Expressions, each with a comma behind it."""
        return "".join(self.value(i) + ", " for i in items)

    def output(self, node: torch.fx.Node) -> str:
        """Makes the value of a node an output of the graph; returns its text."""
        if node not in self.output_at:
            self.output_at[node] = len(self.outputs)
            self.outputs.append(node)
        return f"o{self.output_at[node]}"
