"""Splits an ATen graph into parts for another compiler, and calls between them, which torch runs.

`split` asks a predicate about each operation. A part is a graph of its own (`Aten`): its inputs are values of the whole graph,
its results are tensors in memory of their own. torch makes views that are read outside of a part again from their base, so that
no part returns an alias. `run_aten` runs the whole graph, in which a part is one call; it handles written inputs, aliases and
outputs that are inputs.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import fx

from bytejit.codegen.aten.graph import Aten, OutputValue
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.ops.calls import acts, is_view, stays
from bytejit.common import registry
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

Refuses = Callable[[fx.Node], str]  # why torch runs a call; "" where a part may contain it
Compile = Callable[[Aten], Callable]  # a part -> callable of its inputs that returns the tuple of its values


@light_dataclass(frozen=True)
class Split:
    """How a graph is split. stages: the nodes of each stage in order; stages at even positions are torch's, those at odd
    positions are parts; refused: "operator: reason" of calls that torch runs -> their number."""

    stages: tuple[tuple[fx.Node, ...], ...]
    refused: Counter[str]

    @property
    def parts(self) -> tuple[tuple[fx.Node, ...], ...]:
        """The nodes of each part."""
        return self.stages[1::2]


def split(aten: Aten, refuses: Refuses, least: int = 1) -> Split:
    """Split a graph. least: a part with fewer operations that compute something is left to torch."""
    taken: set[fx.Node] = set()
    refused: Counter[str] = Counter()
    for node in aten.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            if node.args[0] in taken:
                taken.add(node)
        elif acts(node) or not node.users and stays(node):
            refused[f"{name_of(node)}: it has a side effect"] += 1
        elif reason := refuses(node):
            refused[f"{name_of(node)}: {reason}"] += 1
        else:
            taken.add(node)
    while True:
        stages = in_stages(aten.graph, taken)
        small = [part for part in stages[1::2] if sum(not is_shared(n) for n in part) < least]
        if not small:
            return Split(stages, refused)
        taken -= {n for part in small for n in part}


def in_stages(graph: fx.Graph, taken: set[fx.Node]) -> tuple[tuple[fx.Node, ...], ...]:
    """The calls of a graph in stages, each of which needs results of earlier stages only. Stages of torch and parts alternate.
    Operations with side effects keep their order."""
    at: dict[fx.Node, int] = {}
    last = 0  # the stage of the last operation with a side effect
    for node in graph.nodes:
        if node.op != "call_function":
            at[node] = 0
            continue
        mine = node in taken
        stage = max((at[n] + ((at[n] % 2 == 1) is not mine) for n in node.all_input_nodes), default=0)
        stage += (stage % 2 == 1) is not mine
        if not mine and acts(node):
            last = stage = max(stage, last)
        at[node] = stage
    count = max((s for n, s in at.items() if n.op == "call_function"), default=0) + 1
    return tuple(tuple(n for n in graph.nodes if n.op == "call_function" and at[n] == s) for s in range(count))


def joined(aten: Aten, found: Split, compile: Compile) -> Callable:
    """The callable of a graph that was split. compile: makes the callable of each part, in order."""
    return run_aten(_Joined(aten, found).graph(compile))


def part_names(found: Split) -> str:
    """The stages in lines, for the debug folder."""
    lines = []
    for i, stage in enumerate(found.stages):
        counts = Counter(map(name_of, stage))
        who = f"part {i // 2}" if i % 2 else "torch"
        lines.append(f"{who}: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return "\n".join(lines + [f"stays with torch: {n} {what}" for what, n in sorted(found.refused.items())]) + "\n"


def count_refused(found: Split, backend: str) -> None:
    """Count the calls that torch runs."""
    for what, n in sorted(found.refused.items()):
        registry.count("externs", f"{backend}: {what}: run by torch", n)


def name_of(node: fx.Node) -> str:
    """The name of an operator in messages."""
    return getattr(node.target, "__name__", str(node.target))


def is_shared(node: fx.Node) -> bool:
    """Whether a node makes no new tensor: a view, or an item of several results."""
    return node.target is operator.getitem or is_view(node.target)


def numbers_of(aten: Aten) -> list[fx.Node]:
    """The inputs of a graph that are sizes or floats: every part takes them."""
    return [n for n in aten.graph.nodes if n.op == "placeholder" and not isinstance(n.meta.get("spec"), Spec)]


def shown(node: fx.Node) -> fx.Node:
    """The base of a view, through views of views and items of several views; a node that is not a view is its own base."""
    while node.op == "call_function" and is_shared(node):
        of = node.all_input_nodes[0]
        if node.target is operator.getitem and not is_view(of.target):
            return node
        node = of
    return node


class Part:
    """The call of one part in the whole graph; name: in the graph's text."""

    def __init__(self, call: Callable, name: str) -> None:
        self.call, self.__name__ = call, name

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *inputs: object) -> object:
        return self.call(*inputs)


class _Joined:
    """Writes the graph whose calls are torch's operators and the parts."""

    def __init__(self, aten: Aten, found: Split) -> None:
        self.aten, self.found = aten, found
        self.new = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.numbers = numbers_of(aten)

    def graph(self, compile: Compile) -> Aten:
        """The whole, where each part is one call."""
        nodes = list(self.aten.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.env[node] = self.new.node_copy(node)
        for i, stage in enumerate(self.found.stages):
            if i % 2:
                self.part(stage, compile, f"part{i // 2}")
            else:
                for node in stage:
                    self.value(node)
        self.new.output(tuple(map(self.value, nodes[-1].args[0])))
        return replace(self.aten, graph=self.new)

    def value(self, node: fx.Node) -> fx.Node:
        """A value in the whole graph. A view inside a part is made again from its base."""
        if node not in self.env:
            needed = {n: self.value(n) for n in node.all_input_nodes}
            self.env[node] = self.new.node_copy(node, needed.__getitem__)
        return self.env[node]

    def part(self, stage: tuple[fx.Node, ...], compile: Compile, name: str) -> None:
        """The call of a part, and its values."""
        ends = exported(stage)
        if not ends:
            return
        part = part_of(stage, ends, self.numbers)
        taken = [self.value(n.meta["origin"]) for n in part.graph.nodes if n.op == "placeholder"]
        call = self.new.call_function(Part(compile(part), name), tuple(taken))
        for i, n in enumerate(ends):
            self.env[n] = self.new.call_function(operator.getitem, (call, i))
            self.env[n].meta.update(n.meta)


def part_of(stage: Iterable[fx.Node], ends: Sequence[fx.Node], numbers: Sequence[fx.Node]) -> Aten:
    """Some calls of a graph as a graph of their own. ends: the values that it returns; numbers: inputs of the whole graph that it
    takes after those that it reads. `meta["origin"]` of each node is the corresponding node of the whole graph."""
    inside = set(stage)
    needed = {n: None for node in stage for n in node.all_input_nodes if n not in inside and n not in numbers}
    own, env = fx.Graph(), {}
    for n in (*needed, *numbers):
        env[n] = own.placeholder(n.name)
        env[n].meta.update(n.meta)
    for n in stage:
        env[n] = own.node_copy(n, env.__getitem__)
    for n, new in env.items():
        new.meta["origin"] = n
    own.output(tuple(env[n] for n in ends))
    return Aten(own, tuple(map(OutputValue, range(len(ends)))))


def exported(part: Iterable[fx.Node]) -> list[fx.Node]:
    """The values of a part that are read outside of it, directly or through views."""
    inside = set(part)
    found: dict[fx.Node, None] = {}
    for node in part:
        if any(user not in inside for user in node.users):
            of = shown(node)
            if of in inside:
                found[of] = None
    return list(found)
