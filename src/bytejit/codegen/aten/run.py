"""A functional ATen graph as one generated Python function that calls torch: the backend `aot_eager`,
and the tests' reference.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, SizeText

from .graph import OFFSETS, Aten, Const, Input, Out, OutputNumber, OutputValue, memory_as


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
        self.names: dict[str, object] = {"as_strided": torch.as_strided}
        self.text: dict[torch.fx.Node, str] = {}
        self.consts: dict[int, str] = {}
        self.sizes = SizeText(self.symbol)
        self.symbols: dict[str, str] = {}
        self.data: dict[int, str] = {}  # lines that make what outputs count their writes in

    def source(self) -> str:
        """The whole function."""
        nodes = list(self.aten.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        given = len(inputs) - len(self.aten.constants)
        for i, node in enumerate(inputs):
            self.text[node] = f"p{i}" if i < given else self.const(self.aten.constants[i - given])
            if isinstance(node.meta.get("spec"), Real):
                self.symbols[node.meta["spec"].symbol] = self.text[node]
            for name, symbol in ix.symbols(node.meta.get("spec")).items():
                if node.meta["spec"] == ix.index(symbol):
                    self.symbols[name] = self.text[node]
        lines = [f"def run({', '.join(f'p{i}' for i in range(given))}):"]
        last = {n: node for node in nodes for n in node.all_input_nodes}
        for i, node in enumerate(nodes):
            if node.op == "call_function":
                self.text[node] = f"v{i}"
                lines.append(f"    v{i} = {self.call(node)}" if node.users else f"    {self.call(node)}")
                dead = [self.text[n] for n in node.all_input_nodes if last[n] is node and n.op == "call_function"]
                if dead:
                    lines.append(f"    del {', '.join(dead)}")
        outputs = [self.arg(a) for a in nodes[-1].args[0]]
        results = [self.out(out, outputs, given) for out in self.aten.outputs]
        lines += self.data.values()
        lines += [f"    {self.input(m.input, given)}.copy_({outputs[m.position]})" for m in self.aten.mutations]
        lines.append(f"    return {results[0] if self.aten.single else '(' + ''.join(r + ', ' for r in results) + ')'}")
        return "\n".join(lines) + "\n"

    def input(self, index: int, given: int) -> str:
        return f"p{index}" if index < given else self.const(self.aten.constants[index - given])

    def const(self, value: object) -> str:
        name = self.consts.get(id(value))
        if name is None:
            name = self.consts[id(value)] = f"c{len(self.consts)}"
            self.names[name] = value
        return name

    def arg(self, value: object) -> str:
        """A value as Python text; what has no literal becomes a name."""
        if isinstance(value, torch.fx.Node):
            return self.text[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(self.arg, value)) + "]"
        if value is None or type(value) in (bool, int, str) or (type(value) is float and value - value == 0):
            return repr(value)
        if isinstance(value, (Index, Real)):
            return self.size(value)
        return self.const(value)

    def size(self, value: object) -> str:
        """A symbolic number as Python text."""
        if "math" not in self.names:
            self.names["math"] = math
        return self.sizes(value)

    def symbol(self, name: str, text: str = "") -> str:
        """What stands for a size symbol: the input that is its value, or how it is computed."""
        return self.sizes.words(text) if text else self.symbols[name]

    def call(self, node: torch.fx.Node) -> str:
        if node.target is operator.getitem:
            return f"{self.text[node.args[0]]}[{node.args[1]}]"
        args = [self.arg(a) for a in node.args]
        at = OFFSETS.get(node.target)
        if at:
            args[at:] = [f"{args[0]}.storage_offset() + {args[at] if len(args) > at else 0}"]
        args += [f"{k}={self.arg(v)}" for k, v in node.kwargs.items()]
        return f"{self.op(node.target)}({', '.join(args)})"

    def op(self, target: Any) -> str:
        name = str(target).replace(".", "_").replace("::", "_")
        self.names[name] = target
        return name

    def out(self, out: Out, outputs: list[str], given: int) -> str:
        if isinstance(out, Const):
            return self.arg(out.value) if not isinstance(out.value, (list, tuple)) else self.const(out.value)
        if isinstance(out, OutputValue):
            return outputs[out.position]
        if isinstance(out, OutputNumber):
            return self.size(out.value)
        if isinstance(out, Input):
            return self.input(out.index, given)
        base = self.out(out.of, outputs, given)
        if out.apart is not None:
            self.data[out.apart], base = f"    d{out.apart} = {base}.data", f"d{out.apart}"
        offset, dims = self.sizes(out.offset), self.sizes.dims
        if out.dtype is not None:
            self.names["memory_as"] = memory_as
            base = f"memory_as({base}, {self.const(out.dtype)})"
        start = f"{base}.storage_offset() + {offset}" if isinstance(out.of, Input) else offset
        view = f"as_strided({base}, {dims(out.size)}, {dims(out.stride)}, {start})"
        return f"{view}.detach()" if out.detached else view
