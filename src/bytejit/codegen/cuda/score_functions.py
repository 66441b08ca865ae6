"""FlexAttention's score and mask functions in Triton, as functions of one place: `score(s, b, h, i, j, captured)`.

The ATen graph computes it for all places at once; lowered and put into one expression it says what happens at each.
"""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from bytejit.codegen.aten.graph import OutputValue
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import Kernel, Loops
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.inline import inline_into, pointwise_store
from bytejit.codegen.ops.table import table
from bytejit.common.light_dataclass import light_dataclass

from .expressions import IndexText, constant, operation
from .schedule import fits_i32

PLACES = "b", "h", "i", "j"
CHECKS = "bound", "inside"  # of indices: a score function cannot report that one failed
NARROW = {"add", "sub", "mul", "neg", "floordiv", "remainder"}  # of integers: computed in 32 bits where all values fit
COMPARE = {"eq", "ne", "lt", "le", "gt", "ge"}
MOST = 2**31 - 1


@light_dataclass(frozen=True)
class Lowered:
    """aten.graph, outputs and mutations, as `lower` reads them."""

    graph: fx.Graph
    outputs: tuple = (OutputValue(0),)
    mutations: tuple = ()


def whole_expression(graph: fx.Graph) -> tuple[Loops, Expr, dict[str, str], dict[str, int]] | None:
    """The one value of a graph [B, H, Q, K] at a place: with the letter and the size of each axis. None where it takes more
    than one kernel, or has symbolic sizes."""
    loops = lower(Lowered(graph))
    inlined: dict[str, Any] = {}
    made = None
    sizes = {a.name: a.size for k in loops.steps if isinstance(k, Kernel) for a in k.axes}
    if loops.symbols or not all(isinstance(n, int) for n in sizes.values()):
        return None
    for step in loops.steps:
        store = pointwise_store(step)
        if store is None or not isinstance(step, Kernel):
            return None
        new = inline_into(step, inlined, loops.cons, sizes)
        made = pointwise_store(new)
        if made is None:
            return None
        inlined[made.buffer] = new, made
    last = loops.outputs[0].view
    if made is None or last is None or last.buffer != made.buffer:
        return None
    letters = {c.terms[0][0].parts[0]: letter for c, letter in zip(made.coords, PLACES) if c.terms}
    return loops, made.value, letters, sizes


class PlaceText:
    """Prints an expression over places as statements. pointers: of each buffer, "s" for the scores."""

    def __init__(self, loops: Loops, letters: dict[str, str], sizes: dict[str, int], pointers: dict[str, str]) -> None:
        self.buffers, self.letters, self.sizes, self.pointers = loops.buffers, letters, sizes, pointers
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.ranges: dict[Expr, tuple[float, float] | None] = {}
        self.checks = self.far = False  # an index may be out of range, or no number of 32 bits
        self.index = IndexText(sizes, letters.__getitem__, self.value)

    def value(self, e: Expr) -> str:
        """The name of a value. Writes the statements that compute it and its operands, if they are not written yet."""
        for node in walk((e,)):
            if node not in self.names:
                self.ranges[node] = self.range_of(node)
                if node.kind == "op" and node.name in CHECKS:
                    self.names[node] = self.checked(node)
                    continue
                text = self.statement(node)
                name = f"t{len(self.lines)}"
                self.lines.append(f"    {name} = {text}")
                self.names[node] = name
        return self.names[e]

    def range_of(self, e: Expr) -> tuple[float, float] | None:
        """The least and the greatest value of a 64-bit integer that is known to fit 32 bits; else None."""
        if e.dtype != "i64":
            return None
        if e.kind == "const":
            found = e.attr, e.attr
        elif e.kind == "index" and next(ix.values_in((e.attr,)), None) is None and fits_i32(ix.index(e.attr), self.sizes):
            found = ix.bounds(ix.index(e.attr), self.sizes)
        elif e.kind == "op" and e.name in CHECKS:
            found = self.ranges[e.args[0]] or (-MOST, MOST)
        elif e.kind == "op" and e.name in NARROW and all(self.ranges.get(a) for a in e.args):
            found = _combined(e.name, [self.ranges[a] for a in e.args])  # type: ignore[misc]
        else:
            return None
        return found if all(math.isfinite(n) and abs(n) < MOST for n in found) else None

    def checked(self, e: Expr) -> str:
        """An index that is known to be in range, as it is."""
        low, high = self.ranges[e.args[0]] or (-MOST, MOST)
        size = self.ranges[e.args[1]] or (0, 0)
        self.checks = self.checks or low < 0 or high >= size[0]
        return self.names[e.args[0]]

    def statement(self, e: Expr) -> str:
        """Prints one value whose operands are printed already."""
        short = self.ranges[e] is not None
        if e.kind == "const":
            return constant(e.attr, "i32" if short else e.dtype)
        if e.kind == "index":
            text = self.index(e.attr)
            if text.lstrip("-").isdigit():
                return constant(int(text), "i32" if short else "i64")
            return text if short else f"({text}).to(tl.int64)"
        if e.kind == "load":
            return self.load(e)
        args = [self.names[a] for a in e.args]
        together = e.name in COMPARE and all(self.ranges.get(a) for a in e.args)
        if not (short or together or e.name == "to"):  # other rows expect operands as wide as the program has them
            args = [f"{n}.to(tl.int64)" if self.ranges.get(a) else n for n, a in zip(args, e.args)]
        return operation(e, args, table(), "0")

    def load(self, e: Expr) -> str:
        pointer = self.pointers[e.name]
        if pointer == "s":
            return "s"
        b = self.buffers[e.name]
        at = ix.linear(e.attr, b.stride)
        self.far = self.far or sum((n - 1) * s for n, s in zip(b.shape, b.stride)) > MOST
        text = f"tl.load({pointer} + ({self.index(ix.size_of(at))})"
        return f"{text}, {self.names[e.mask]}, other=0)" if e.mask is not None else f"{text})"


def _combined(op: str, of: list) -> tuple[float, float]:
    inf = math.inf, math.inf
    if op == "neg":
        return -of[0][1], -of[0][0]
    (a, b), (c, d) = of
    if op == "floordiv":
        return (a // c, b // c) if a >= 0 and c == d and c > 0 else inf
    if op == "remainder":
        return (0, c - 1) if a >= 0 and c == d and c > 0 else inf
    if op == "add":
        return a + c, b + d
    if op == "sub":
        return a - d, b - c
    found = a * c, a * d, b * c, b * d
    return min(found), max(found)


def function_of_places(graph: fx.Graph, name: str, parameters: list[str]) -> str | None:
    """The function in Triton that a graph computes at a place; None where there is none. parameters: for each placeholder the
    pointer's name, "s" for the scores. "" where all places hold True."""
    found = whole_expression(graph)
    if found is None:
        return None
    loops, value, letters, sizes = found
    pointers = {buffer: name for buffer, name in zip(loops.inputs, parameters) if buffer is not None}
    for e in walk((value,)):
        if e.kind == "load" and (e.name not in pointers or pointers[e.name] == "s" and not _at_place(e, letters)):
            return None
    if value.kind == "const" and value.attr is True:
        return ""
    printer = PlaceText(loops, letters, sizes, pointers)
    result = printer.value(value)
    if printer.checks or printer.far:
        return None
    first = ["s"] if "s" in parameters else []
    body = "\n".join(printer.lines)
    return f"@triton.jit\ndef {name}({', '.join([*first, *PLACES, 'captured'])}):\n{body}\n    return {result}\n"


def _at_place(e: Expr, letters: dict[str, str]) -> bool:
    """Whether the scores are read at the place itself."""
    own = {letter: name for name, letter in letters.items()}
    return e.mask is None and all(
        c == ix.index(ix.var(own[p])) if p in own else ix.index(c).value == 0 for c, p in zip(e.attr, PLACES)
    )
