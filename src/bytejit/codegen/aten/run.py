"""A functional ATen graph as one generated Python function that calls torch: the backend `aot_eager`,
and the tests' reference.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, SizeText

from .graph import OFFSETS, Aten
from .output_text import output_text


def run_aten(aten: Aten) -> Callable:
    """A function of the graph's inputs: runs the graph, applies its mutations, returns what the traced
    graph returned.
    """
    source, names = write_aten(aten)
    exec(compile(source, "<aten graph>", "exec"), names)
    return names["run"]


def write_aten(aten: Aten) -> tuple[str, dict]:
    """The Python source of `run` and the names that it reads."""
    writer = _Writer(aten)
    return writer.source(), writer.names


class _Writer:
    """Prints one graph as Python. Values are dropped right after their last use, so memory peaks as in eager."""

    def __init__(self, aten: Aten) -> None:
        self.aten = aten
        self.names: dict[str, object] = {}
        self.lines: list[str] = []  # of the function
        self.given = len(aten.inputs())
        self.text: dict[torch.fx.Node, str] = {}
        self.consts: dict[int, str] = {}
        self.sizes = SizeText(self.symbol)
        self.symbols: dict[str, str] = {}

    def source(self) -> str:
        """The whole function."""
        nodes = list(self.aten.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        for i, node in enumerate(inputs):
            self.text[node] = self.input_text(i)
            if isinstance(node.meta.get("spec"), Real):
                self.symbols[node.meta["spec"].symbol] = self.text[node]
            for name, symbol in ix.symbols(node.meta.get("spec")).items():
                if node.meta["spec"] == ix.index(symbol):
                    self.symbols[name] = self.text[node]
        lines = self.lines
        last = {n: node for node in nodes for n in node.all_input_nodes}
        for i, node in enumerate(nodes):
            if node.op == "call_function":
                self.text[node] = f"v{i}"
                lines.append(f"v{i} = {self.call(node)}" if node.users else self.call(node))
                dead = [self.text[n] for n in node.all_input_nodes if last[n] is node and n.op == "call_function"]
                if dead:
                    lines.append(f"del {', '.join(dead)}")
        values = [self.value(a) for a in nodes[-1].args[0]]
        results = [output_text(self, out, values) for out in self.aten.outputs]
        lines += [f"{self.input_text(m.input)}.copy_({values[m.position]})" for m in self.aten.mutations]
        lines.append(f"return {results[0] if self.aten.single else '(' + ''.join(r + ', ' for r in results) + ')'}")
        head = f"def run({', '.join(f'p{i}' for i in range(self.given))}):\n"
        return head + "".join(f"    {line}\n" for line in lines)

    def input_text(self, index: int) -> str:
        """The name of an input, or of a constant of the graph."""
        return f"p{index}" if index < self.given else self.constant(self.aten.constants[index - self.given])

    def bind(self, name: str, value: object) -> str:
        """Gives the function a name to read; returns it."""
        self.names.setdefault(name, value)
        return name

    def constant(self, value: object) -> str:
        """The name of a constant."""
        name = self.consts.get(id(value))
        if name is None:
            name = self.consts[id(value)] = f"c{len(self.consts)}"
            self.names[name] = value
        return name

    def value(self, value: object) -> str:
        """A value as Python text; what has no literal becomes a name."""
        if isinstance(value, torch.fx.Node):
            return self.text[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(self.value, value)) + "]"
        if value is None or type(value) in (bool, int, str) or (type(value) is float and value - value == 0):
            return repr(value)
        if isinstance(value, (Index, Real)):
            return self.size(value)
        return self.constant(value)

    def size(self, value: object) -> str:
        """A symbolic number as Python text."""
        self.bind("math", math)
        return self.sizes(value)

    def symbol(self, name: str, text: str = "") -> str:
        """Returns the text of a size symbol: the input that is its value, or how it is computed."""
        return self.sizes.words(text) if text else self.symbols[name]

    def call(self, node: torch.fx.Node) -> str:
        if node.target is operator.getitem:
            return f"{self.text[node.args[0]]}[{node.args[1]}]"
        args = [self.value(a) for a in node.args]
        at = OFFSETS.get(node.target)
        if at:
            args[at:] = [f"{args[0]}.storage_offset() + {args[at] if len(args) > at else 0}"]
        args += [f"{k}={self.value(v)}" for k, v in node.kwargs.items()]
        return f"{self.op(node.target)}({', '.join(args)})"

    def op(self, target: Any) -> str:
        return self.bind(str(target).replace(".", "_").replace("::", "_"), target)

    def window(self, base: str, shape: Sequence[Any], stride: Sequence[Any], offset: Any) -> str:
        """The text of a view of a tensor; offset: in elements, from the tensor's first element."""
        self.bind("as_strided", torch.as_strided)
        dims = self.sizes.dims
        return f"as_strided({base}, {dims(shape)}, {dims(stride)}, {base}.storage_offset() + {self.size(offset)})"
