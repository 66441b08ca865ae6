"""How the outputs of a graph are made, as Python text: the same for every function that is generated of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bytejit.common.gradients import CREATION, made_as

from .graph import Alias, Const, Input, Out, OutputNumber, OutputValue, memory_as


class OutputPrinter(Protocol):
    """What prints a function. lines: of the function, to which `output_text` adds."""

    lines: list[str]

    def bind(self, name: str, value: Any) -> str:
        """Gives the function a name to read; returns it."""

    def constant(self, value: Any) -> str:
        """The name of a constant."""

    def value(self, x: Any) -> str:
        """The text of a constant, which may be a literal."""

    def size(self, x: Any) -> str:
        """The text of a symbolic number."""

    def input_text(self, index: int) -> str:
        """The name of an input, or of a constant of the graph."""

    def window(self, base: str, shape: Sequence[Any], stride: Sequence[Any], offset: Any) -> str:
        """The text of a view of a tensor; offset: in elements, from the tensor's first element."""


def output_text(printer: OutputPrinter, out: Out, values: Sequence[str]) -> str:
    """The text of an output that the user gets. values: the texts of the graph's values."""
    if isinstance(out, Const):
        return printer.constant(out.value) if isinstance(out.value, (tuple, list)) else printer.value(out.value)
    if isinstance(out, OutputNumber):
        return printer.size(out.value)
    if isinstance(out, OutputValue):
        return values[out.position]
    if isinstance(out, Input):
        return printer.input_text(out.index)
    text = view_text(printer, out, values)
    if out.kind is not None:
        text = f"{printer.bind('made_as', made_as)}({text}, {printer.bind(out.kind, getattr(CREATION, out.kind))})"
    if out.detached:
        text += ".detach()"
    if out.number is None:
        return text
    if (line := f"detached{out.number} = {text}") not in printer.lines:
        printer.lines.append(line)
    return f"detached{out.number}"


def view_text(printer: OutputPrinter, out: Alias, values: Sequence[str]) -> str:
    """The text of the view that an output is, or that it is detached from."""
    if out.behind is not None:
        return printer.window(output_text(printer, out.behind, values), out.size, out.stride, out.inside)
    base = output_text(printer, out.of, values)
    if out.apart is not None:
        if (line := f"d{out.apart} = {base}.data") not in printer.lines:
            printer.lines.append(line)
        base = f"d{out.apart}"
    if out.dtype is not None:
        base = f"{printer.bind('memory_as', memory_as)}({base}, {printer.value(out.dtype)})"
    return printer.window(base, out.size, out.stride, out.offset)
