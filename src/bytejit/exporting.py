"""`bytejit.export`: the one graph of a call as a GraphModule that takes and returns what the function does."""

from __future__ import annotations

import inspect
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bytejit.codegen.aten.graph import OFFSETS, Alias, Aten, Const, Input, Out, OutputNumber
from bytejit.codegen.loops import index
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, SizeText
from bytejit.common.graph_script import stack_trace
from bytejit.common.quiet_reads import function_of
from bytejit.common.where import Where, where_of_function
from bytejit.guards.conditions import SizeCondition
from bytejit.guards.sources import Drawn, Source, TensorSize, TensorStride
from bytejit.tools.inspection import Region, recording
from bytejit.tracer.torch.control_flow import Branches

from .common.errors import Unsupported


@dataclass(frozen=True)
class ExportForm:
    """What an export's graph consists of: torch calls, or ATen operators with some taken apart by the caller's functions."""

    aten: bool = False
    decompositions: Mapping[Callable, Callable] = field(default_factory=dict)


@dataclass(eq=False)
class Capture:
    """A backend that keeps the graphs that it is given, and what they last returned."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: tuple = ()

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        """Runs the graph as it is."""
        self.graphs.append(gm)
        self.inputs = list(example_inputs)

        def run(*inputs: torch.Tensor) -> tuple:
            self.outputs = gm.forward(*inputs)
            return self.outputs

        return run


def export(
    compiled: Callable, capture: Capture, args: tuple, kwargs: dict, form: ExportForm
) -> tuple[torch.fx.GraphModule, list[str]]:
    """Call a function compiled with `capture` under nopython. Returns (GraphModule, guards as lines of text).

    Warns where the function changes Python objects, which the graph does not do again. Raises: Unsupported.
    """
    with recording() as record:
        result = compiled(*args, **kwargs)
    place = where_of_function(inspect.unwrap(function_of(compiled)))
    if len(capture.graphs) > 1:
        raise Unsupported(
            f"the call was compiled to {len(capture.graphs)} graphs",
            place,
            "an export is one graph",
            "export a function that is compiled as a whole",
        )
    changed = dict.fromkeys(what for region in record.regions for what in region.trace.effects)
    if changed:
        warnings.warn(
            f"bytejit: the exported graph will not change {', '.join(changed)}, as the function does ({place.short})",
            RuntimeWarning,
            stacklevel=3,
        )
    builder = ExportBuilder(args, kwargs, names_of(compiled, args, kwargs))
    region = next((r for r in record.regions if r.graph is not None), None)
    outputs: dict[int, torch.fx.Node] = {}
    if region is not None:
        outputs = builder.graph_of(region, capture, form)
    builder.result(result, outputs, sizes_of(record.regions, place), place)
    guards = [line for r in record.regions for line in r.guards]
    return builder.module(), guards


def sizes_of(regions: Sequence[Region], place: Where) -> dict[tuple, SizeCondition]:
    """The symbolic numbers in what a call returned, by their paths. Raises: Unsupported."""
    found: dict[tuple, SizeCondition] = {}
    for trace in (r.trace for r in regions if r.trace.sizes_leave):
        if trace.exit_point is not None or trace.returned_sizes is None:
            raise Unsupported(
                "the function returns a size that is known only when the graph runs",
                place,
                "a graph's result is computed of its inputs' sizes",
                "return tensors only, or export with dynamic=False",
            )
        found.update(trace.returned_sizes)
    return found


def names_of(compiled: Callable, args: tuple, kwargs: dict) -> list[str]:
    """A name for each positional and each keyword argument of a call, as the function calls them."""
    target = compiled.forward if isinstance(compiled, torch.nn.Module) else compiled
    names: list[str] = []
    for p in inspect.signature(target).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}_{i}" for i in range(len(args) - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and len(names) < len(args):
            names.append(p.name)
    return names[: len(args)] + list(kwargs)


class AtenCopy:
    """Appends a functional ATen graph to another. Sizes of codegen become nodes that compute them."""

    def __init__(self, graph: torch.fx.Graph, aten: Aten, inputs: list[torch.fx.Node]):
        self.graph, self.aten, self.inputs = graph, aten, inputs
        self.symbols: dict[str, torch.fx.Node] = {}
        self.text = SizeText(self.symbol)
        self.names: dict[str, torch.fx.Proxy] = {}
        self.to: dict[torch.fx.Node, torch.fx.Node] = {}

    def outputs(self) -> list:
        """The nodes and constants that the graph returns, after its writes into inputs as copies."""
        given = [n for n in self.aten.graph.nodes if n.op == "placeholder"]
        for node, at in zip(given, self.inputs):
            self.to[node], spec = at, node.meta.get("spec")
            if isinstance(spec, Real):
                self.symbols[spec.symbol] = at
            self.symbols.update((name, at) for name, symbol in index.symbols(spec).items() if spec == index.index(symbol))
        for node in self.aten.graph.nodes:
            if node.op == "call_function":
                self.call(node)
        values = [self.to[n] for n in next(n for n in self.aten.graph.nodes if n.op == "output").args[0]]
        for m in self.aten.mutations:
            self.graph.call_function(torch.ops.aten.copy_.default, (self.inputs[m.input], values[m.position]))
        return [self.output(o, values) for o in self.aten.outputs]

    def call(self, node: torch.fx.Node) -> None:
        """Append one call."""
        args = [self.value(a) for a in node.args]
        at = OFFSETS.get(node.target)
        if at and self.begins_later(args[0]):
            args[at:] = [self.from_start(args[0], args[at] if len(args) > at else 0)]
        made = self.to[node] = self.graph.call_function(node.target, tuple(args), self.value(dict(node.kwargs)))
        made.meta.update(node.meta)
        made.stack_trace = stack_trace(node)

    def begins_later(self, node: torch.fx.Node) -> bool:
        """Whether a tensor may begin past its storage's first element."""
        return node in self.inputs

    def from_start(self, base: torch.fx.Node, offset: object) -> torch.fx.Node:
        """An offset from a tensor's first element as one from its storage's."""
        return self.graph.call_function(operator.add, (self.graph.call_method("storage_offset", (base,)), offset))

    def value(self, x: object) -> object:
        """An argument: nodes and sizes of the graph as nodes of the other."""
        if isinstance(x, torch.fx.Node):
            return self.to[x]
        if isinstance(x, (list, tuple)):
            return type(x)(map(self.value, x))
        if isinstance(x, dict):
            return {k: self.value(v) for k, v in x.items()}
        return self.number(x) if isinstance(x, (Index, Real)) else x

    def number(self, x: Index | Real) -> object:
        """The node that computes a size or a float."""
        found = eval(self.text(x), {"math": math}, self.names)
        return found.node if isinstance(found, torch.fx.Proxy) else found

    def symbol(self, name: str, text: str = "") -> str:
        """The name of a symbol in what `number` evaluates."""
        if text:
            return self.text.words(text)
        self.names[name] = torch.fx.Proxy(self.symbols[name])
        return name

    def output(self, o: Out, values: list[torch.fx.Node]) -> object:
        """One output of the graph."""
        if isinstance(o, Const):
            return o.value
        if isinstance(o, OutputNumber):
            return self.value(o.value)
        if isinstance(o, Input):
            return self.inputs[o.index]
        if isinstance(o, Alias):
            base, size, stride, offset = self.output(o.of, values), *map(self.value, (o.size, o.stride, o.offset))
            offset = self.from_start(base, offset) if isinstance(o.of, Input) else offset
            return self.graph.call_function(torch.as_strided, (base, size, stride, offset))
        return values[o.position]


def _graph(region: Region) -> torch.fx.GraphModule:
    assert region.graph is not None, "a region without operations is copied by its returned sizes"
    return region.graph


class ExportBuilder:
    """Writes a graph with one placeholder for each leaf of the arguments."""

    def __init__(self, args: tuple, kwargs: dict, names: list[str]):
        self.leaves, self.in_spec = pytree.tree_flatten((args, kwargs))
        self.names, self.out_spec = names, None
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.labels: dict[str, torch.fx.Node] = {}
        self.tensors: dict[str, torch.fx.Node] = {}  # name of a source -> the node of the tensor there
        self.nodes: dict[int, torch.fx.Node] = {}  # id of a tensor -> the node that stands for it
        self.kept: list[object] = []  # so that the ids stay their own
        per_argument = [pytree.tree_flatten_with_path(a)[0] for a in (*args, *kwargs.values())]
        for name, parts in zip(names, per_argument):
            for i, (keys, leaf) in enumerate(parts):
                label = name if len(parts) == 1 else f"{name}_{i}"
                node = self.labels[label] = self.graph.placeholder(label)
                if isinstance(leaf, torch.Tensor):
                    self.nodes.setdefault(id(leaf), node)
                    self.tensors[name + pytree.keystr(keys)] = node

    def attribute(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        """The node of a tensor that is no argument: a parameter or buffer of the module that is made."""
        known = self.nodes.get(id(tensor))
        if known is not None:
            return known
        name = base = re.sub(r"\W", "_", name).strip("_") or "constant"
        for i in range(1, len(self.kept) + 2):
            if not hasattr(self.root, name):
                break
            name = f"{base}_{i}"
        if isinstance(tensor, torch.nn.Parameter):
            self.root.register_parameter(name, tensor)
        else:
            self.root.register_buffer(name, tensor)
        self.kept.append(tensor)
        node = self.nodes[id(tensor)] = self.graph.get_attr(name)
        return node

    def graph_of(self, region: Region, capture: Capture, form: ExportForm) -> dict[int, torch.fx.Node]:
        """Copy the traced graph. Returns the nodes of its outputs by the ids of the tensors that the call returned."""
        inputs = self.inputs_of(region, capture)
        made = self.aten(region, inputs, form) if form.aten else self.copy(_graph(region).graph, inputs)
        self.kept.append(capture.outputs)
        return {id(t): node for t, node in zip(capture.outputs, made)}

    def number(self, source: Source) -> torch.fx.Node:
        """The node of a number that a symbol stands for: a tensor's size or stride, or an argument. Raises: Unsupported."""
        if isinstance(source, (TensorSize, TensorStride)):
            base = source.base.name()
            if base in self.tensors:
                ask = "size" if type(source) is TensorSize else "stride"
                return self.graph.call_method(ask, (self.tensors[base], source.dim))
        elif source.name() in self.labels:
            return self.labels[source.name()]
        raise Unsupported(
            f"{source.name()} is symbolic and no argument", None, "a graph takes its arguments only", "export with dynamic=False"
        )

    def size(self, expr: SizeCondition) -> torch.fx.Node:
        """The node of a number that the function returns."""
        names = {name: torch.fx.Proxy(self.number(source)) for name, source in expr.names}
        return eval(expr.text, {"math": math, **names}).node

    def inputs_of(self, region: Region, capture: Capture) -> list[torch.fx.Node]:
        """The nodes that stand for the traced graph's inputs. A symbol is a tensor's size, or an argument."""
        given = dict(zip(region.trace.inputs, capture.inputs))
        made = []
        for source, value in given.items():
            if type(source) is Drawn and isinstance(value, torch.Tensor):
                raise Unsupported(
                    "random numbers that are drawn before the graph",
                    None,
                    "a graph takes its arguments only",
                    "pass them as an argument",
                )
            if isinstance(value, torch.Tensor):
                node = self.tensors[source.name()] = self.attribute(value, source.name())
                made.append(node)
        return self.with_numbers(given, made)

    def with_numbers(self, given: dict, tensors: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """The inputs in their order: the tensors' nodes, and those of the numbers between them."""
        left, made = iter(tensors), []
        for source, value in given.items():
            made.append(next(left) if isinstance(value, torch.Tensor) else self.number(source))
        return made

    def copy(self, graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> Sequence[torch.fx.Node]:
        """Append the calls of a graph. Returns the nodes that it outputs."""
        to = dict(zip((n for n in graph.nodes if n.op == "placeholder"), inputs))
        for node in graph.nodes:
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], to.__getitem__)
            if isinstance(node.target, Branches):
                to[node] = self.branches(node, to)
            elif node.op != "placeholder":
                made = to[node] = self.graph.node_copy(node, to.__getitem__)
                made.stack_trace = stack_trace(node)
        raise AssertionError("a graph without an output node")

    def branches(self, node: torch.fx.Node, to: Mapping[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
        """torch.cond as torch's own operator has it, its branches as modules of the graph's."""
        predicate, *inputs = (to[n] for n in node.args)
        parts = []
        for kind, part in zip(("true", "false"), node.target.parts):
            name = f"{kind}_graph_{sum(n.startswith(kind) for n, _ in self.root.named_children())}"
            self.root.add_module(name, part)
            parts.append(self.graph.get_attr(name))
        made = self.graph.call_function(torch.ops.higher_order.cond, (predicate, *parts, tuple(inputs)))
        made.meta.update(node.meta)
        made.stack_trace = stack_trace(node)
        return made

    def aten(self, region: Region, inputs: list[torch.fx.Node], form: ExportForm) -> list[torch.fx.Node]:
        """Append the graph's functional ATen form, its writes into inputs as copies at the end."""
        from bytejit.codegen.aten.normalise import CannotNormalise, normalise

        fakes = [n.meta["val"] for n in _graph(region).graph.nodes if n.op == "placeholder"]
        try:
            aten = normalise(_graph(region), fakes, form.decompositions)
            if any(isinstance(o, Alias) and o.dtype is not None for o in aten.outputs):
                raise CannotNormalise("an output views a storage of another dtype")
        except CannotNormalise as e:
            raise Unsupported(
                f"the graph has no functional ATen form: {e}", region.where, "", "export without aten_graph"
            ) from None
        return AtenCopy(self.graph, aten, [*inputs, *(self.attribute(t, "constant") for t in aten.constants)]).outputs()

    def result(self, result: object, outputs: dict[int, torch.fx.Node], sizes: dict[tuple, SizeCondition], place: Where) -> None:
        """The output node: what the call returned, leaf by leaf. sizes: symbolic numbers by their paths."""
        leaves, self.out_spec = pytree.tree_flatten_with_path(result, is_leaf=lambda x: type(x) is torch.Size)
        made, left = [], set(sizes)
        for keys, leaf in leaves:
            path = tuple(getattr(key, "idx", getattr(key, "key", None)) for key in keys)
            if isinstance(leaf, torch.Size):
                inner = [(*path, i) for i in range(len(leaf))]
                left.difference_update(inner)
                parts = [self.size(sizes[p]) if p in sizes else n for p, n in zip(inner, leaf)]
                made.append(self.graph.call_function(torch.Size, (parts,)))
            elif path in sizes:
                left.discard(path)
                made.append(self.size(sizes[path]))
            elif isinstance(leaf, torch.Tensor):
                made.append(outputs[id(leaf)] if id(leaf) in outputs else self.attribute(leaf, "constant"))
            elif leaf is None or isinstance(leaf, (int, float, complex, str, bool, torch.dtype, torch.device)):
                made.append(leaf)
            else:
                raise Unsupported(
                    f"the function returns a {type(leaf).__name__}",
                    place,
                    "a graph returns tensors and constants",
                    "return tensors, or register the class with torch.utils._pytree",
                )
        if left:
            raise Unsupported(
                "the function returns a size that is symbolic in an object",
                place,
                "a graph returns tensors and numbers in lists, tuples and dicts",
                "return these only, or export with dynamic=False",
            )
        self.graph.output(made)

    def module(self) -> torch.fx.GraphModule:
        """The GraphModule, which flattens its arguments and rebuilds the result."""
        self.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(self.names, self.in_spec, self.out_spec)))
        gm = torch.fx.GraphModule(self.root, self.graph)
        gm.graph.lint()
        gm.recompile()
        return gm
