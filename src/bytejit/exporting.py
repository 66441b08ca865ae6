"""`bytejit.export`: the one graph of a call as a GraphModule that takes and returns what the function does."""
from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bytejit.common.where import where_of_function
from bytejit.guards.sources import TensorSize, TensorStride
from bytejit.inspection import Region, recording

from .errors import Unsupported


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


def export(compiled: Callable, capture: Capture, args: tuple, kwargs: dict, aten_graph: bool):
    """Call a function compiled with `capture` under nopython. Returns (GraphModule, guards as lines of text).

    Raises: Unsupported.
    """
    with recording() as record:
        result = compiled(*args, **kwargs)
    place = where_of_function(inspect.unwrap(getattr(compiled, "__func__", compiled)))
    if len(capture.graphs) > 1:
        raise Unsupported(f"the call came to {len(capture.graphs)} graphs", place, "an export is one graph",
                          "export a function that is compiled as a whole")
    changed = [what for region in record.regions for what in region.trace.effects]
    if changed:
        raise Unsupported(f"the function changes {changed[0]}", place, "a graph holds tensor operations only",
                          "return the new value, and store it outside of the exported function")
    if any(region.trace.sizes_leave for region in record.regions):
        raise Unsupported("the function returns a size that is symbolic", place, "a graph returns tensors and constants",
                          "return tensors only, or export with dynamic=False")
    builder = Builder(args, kwargs, names_of(compiled, args, kwargs))
    region = next((r for r in record.regions if r.graph is not None), None)
    outputs: dict[int, torch.fx.Node] = {}
    if region is not None:
        outputs = builder.graph_of(region, capture, aten_graph)
    builder.result(result, outputs, place)
    guards = [line for r in record.regions for line in r.guards]
    return builder.module(), guards


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


class Builder:
    """Writes a graph with one placeholder for each leaf of the arguments."""

    def __init__(self, args: tuple, kwargs: dict, names: list[str]):
        self.leaves, self.in_spec = pytree.tree_flatten((args, kwargs))
        self.names, self.out_spec = names, None
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.labels: dict[str, torch.fx.Node] = {}
        self.nodes: dict[int, torch.fx.Node] = {}       # id of a tensor -> the node that stands for it
        self.kept: list[object] = []                    # so that the ids stay their own
        per_argument = [len(pytree.tree_leaves(a)) for a in (*args, *kwargs.values())]
        labels = [name if n == 1 else f"{name}_{i}" for name, n in zip(names, per_argument) for i in range(n)]
        for leaf, label in zip(self.leaves, labels):
            node = self.labels[label] = self.graph.placeholder(label)
            if isinstance(leaf, torch.Tensor):
                self.nodes.setdefault(id(leaf), node)

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

    def graph_of(self, region: Region, capture: Capture, aten_graph: bool) -> dict[int, torch.fx.Node]:
        """Copy the traced graph. Returns the nodes of its outputs by the ids of the tensors that the call returned."""
        inputs = self.inputs_of(region, capture)
        made = self.aten(region, inputs) if aten_graph else self.copy(region.graph.graph, inputs)
        self.kept.append(capture.outputs)
        return {id(t): node for t, node in zip(capture.outputs, made)}

    def inputs_of(self, region: Region, capture: Capture) -> list[torch.fx.Node]:
        """The nodes that stand for the traced graph's inputs. A symbol is a tensor's size, or an argument."""
        given = dict(zip(region.trace.inputs, capture.inputs))
        made = []
        for source, value in given.items():
            if isinstance(value, torch.Tensor):
                made.append(self.attribute(value, source.name()))
            elif isinstance(source, (TensorSize, TensorStride)):
                base = self.attribute(given[source.base], source.base.name())
                made.append(self.graph.call_method("size" if type(source) is TensorSize else "stride", (base, source.dim)))
            elif source.name() in self.labels:
                made.append(self.labels[source.name()])
            else:
                raise Unsupported(f"{source.name()} is symbolic and no argument", region.where,
                                  "a graph takes its arguments only", "export with dynamic=False")
        return made

    def copy(self, graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> Sequence[torch.fx.Node]:
        """Append the calls of a graph. Returns the nodes that it outputs."""
        to = dict(zip((n for n in graph.nodes if n.op == "placeholder"), inputs))
        for node in graph.nodes:
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], to.__getitem__)
            if node.op != "placeholder":
                to[node] = self.graph.node_copy(node, to.__getitem__)
        raise AssertionError("a graph without an output node")

    def aten(self, region: Region, inputs: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """Append the graph's functional ATen form, its writes into inputs as copies at the end."""
        from bytejit.codegen.aten.graph import Alias, Const, Input
        from bytejit.codegen.aten.normalise import CannotNormalise, normalise
        fakes = [n.meta["val"] for n in region.graph.graph.nodes if n.op == "placeholder"]
        try:
            aten = normalise(region.graph, fakes)
        except CannotNormalise as e:
            raise Unsupported(f"the graph has no functional ATen form: {e}", region.where, "",
                              "export without aten_graph") from None
        inputs = [*inputs, *(self.attribute(t, "constant") for t in aten.constants)]
        values = self.copy(aten.graph, inputs)
        for m in aten.mutations:
            self.graph.call_function(torch.ops.aten.copy_.default, (inputs[m.input], values[m.position]))

        def out(o):
            if isinstance(o, Const):
                return o.value
            if isinstance(o, Input):
                return inputs[o.index]
            if isinstance(o, Alias):
                return self.graph.call_function(torch.as_strided, (out(o.of), o.size, o.stride, o.offset))
            return values[o.position]
        return [out(o) for o in aten.outputs]

    def result(self, result: object, outputs: dict[int, torch.fx.Node], place) -> None:
        """The output node: what the call returned, leaf by leaf."""
        leaves, self.out_spec = pytree.tree_flatten(result)
        made = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                made.append(outputs[id(leaf)] if id(leaf) in outputs else self.attribute(leaf, "constant"))
            elif leaf is None or isinstance(leaf, (int, float, complex, str, bool, torch.dtype, torch.device)):
                made.append(leaf)
            else:
                raise Unsupported(f"the function returns a {type(leaf).__name__}", place, "a graph returns tensors and constants",
                                  "return tensors, or register the class with torch.utils._pytree")
        self.graph.output(made)

    def module(self) -> torch.fx.GraphModule:
        """The GraphModule, which flattens its arguments and rebuilds the result."""
        self.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(self.names, self.in_spec, self.out_spec)))
        gm = torch.fx.GraphModule(self.root, self.graph)
        gm.graph.lint()
        gm.recompile()
        return gm
