"""Small programs: some calls of an ATen graph as a Python function of its own, with the values that it takes from the others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.graph import OFFSETS, Aten
from bytejit.common.graph_script import NoText, value_text
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.where import Where, with_source

BUILT_IN = ("aten", "prims", "prim")  # namespaces of operators that torch itself has


@light_dataclass(frozen=True)
class Program:
    """Calls in order, and what else they take. nodes: of the ATen graph; values: of every node that is no call here, and of
    others; texts: an expression for an input that need not be the value itself; sizes: numbers in lists of sizes that are others
    now."""

    nodes: tuple[torch.fx.Node, ...]
    values: Mapping[torch.fx.Node, Any] = field(repr=False)
    texts: Mapping[torch.fx.Node, str] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """The nodes whose values are given, in order of use."""
        own = set(self.nodes)
        return list(dict.fromkeys(a for n in self.nodes for a in n.all_input_nodes if a not in own))

    @property
    def outputs(self) -> list[torch.fx.Node]:
        """The nodes whose values no other call takes."""
        used = {a for n in self.nodes for a in n.all_input_nodes}
        return [n for n in self.nodes if n not in used]

    def given(self) -> list[Any]:
        """The inputs' values."""
        torch.manual_seed(0)
        return [eval(self.texts[n], {"torch": torch}) if n in self.texts else self.values[n] for n in self.inputs]

    def text(self, every: bool = False) -> str:
        """The function, with the user's lines as comments. every: it returns the values of all calls."""
        names = {n: f"p{i}" for i, n in enumerate(self.inputs)} | {n: f"v{i}" for i, n in enumerate(self.nodes)}
        lines = [f"def f({', '.join(names[n] for n in self.inputs)}):"]
        for n in self.nodes:
            where = n.meta.get("where")
            place = with_source(where) if isinstance(where, Where) else None
            comment = f"  # {place.short} {place.source.strip()}" if place is not None else ""
            lines.append(f"    {names[n]} = {self.call(n, names)}{comment}")
        outputs = [n for n in self.nodes if _is_tensor(self.values[n])] if every else self.outputs
        return "\n".join([*lines, f"    return ({''.join(f'{names[n]}, ' for n in outputs)})".replace(", )", ",)"), ""])

    def call(self, n: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
        """Prints one call. Raises: NoText."""
        if n.target is operator.getitem:
            return f"{names[n.args[0]]}[{n.args[1]}]"  # type: ignore[index]
        args = [self.value(a, names) for a in n.args]
        at = OFFSETS.get(n.target)  # type: ignore[arg-type]
        if at:  # offsets of a graph count from the first element
            args[at:] = [f"{args[0]}.storage_offset() + {args[at] if len(args) > at else 0}"]
        args += [f"{k}={self.value(v, names)}" for k, v in n.kwargs.items()]
        return f"{operator_text(n.target)}({', '.join(args)})"

    def value(self, x: Any, names: Mapping[torch.fx.Node, str]) -> str:
        """An argument. Raises: NoText."""
        if isinstance(x, torch.fx.Node):
            return names[x]
        if isinstance(x, (list, tuple)):
            changed = [self.sizes.get(v, v) if type(v) is int else v for v in x]
            return "[" + ", ".join(self.value(v, names) for v in changed) + "]"
        return value_text(x)

    def make(self, every: bool = False) -> Callable:
        """The function."""
        space: dict[str, Any] = {"torch": torch}
        exec(compile(self.text(every), "<bytejit minify>", "exec"), space)
        return space["f"]

    def keeping(self, nodes: Sequence[torch.fx.Node]) -> Program:
        """The same with these calls only."""
        kept = set(nodes)
        return replace(self, nodes=tuple(n for n in self.nodes if n in kept))


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def operator_text(target: Any) -> str:
    """`torch.ops.aten.mul.Tensor`. Raises: NoText for what is no operator."""
    if not isinstance(target, torch._ops.OpOverload):
        raise NoText(f"a call of {target}")
    return f"torch.ops.{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}"


def registered_elsewhere(program: Program) -> list[str]:
    """Operators that the program's own code registers."""
    targets = [n.target for n in program.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return sorted({str(t) for t in targets if t.namespace not in BUILT_IN})


def whole_program(aten: Aten, inputs: Sequence[Any]) -> Program:
    """All calls of a graph, with the values that they have for these inputs, in eager. Raises: NoText."""
    nodes = [n for n in aten.graph.nodes if n.op == "call_function"]
    places = [n for n in aten.graph.nodes if n.op == "placeholder"]
    values: dict[torch.fx.Node, Any] = dict(zip(places, [*inputs, *aten.constants]))
    named = Program(tuple(nodes), values)
    for n in nodes:
        names = {a: f"x{i}" for i, a in enumerate(n.all_input_nodes)}
        space = {name: values[a] for a, name in names.items()}
        values[n] = eval(named.call(n, names), {"torch": torch, **space})
    return named


def groups(nodes: Sequence[torch.fx.Node]) -> list[tuple[torch.fx.Node, ...]]:
    """The calls, each with the parts that are taken of what it returns."""
    found: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for n in nodes:
        base = n.args[0] if n.target is operator.getitem else n
        found.setdefault(base if base in found else n, []).append(n)  # type: ignore[arg-type,call-overload]
    return [tuple(g) for g in found.values()]


def leaves(x: Any) -> list[Any]:
    """The tensors of what a program returns, one after another."""
    return [v for v in pytree.tree_leaves(x) if _is_tensor(v)]
