"""Calls that take the place of a library call, written once: into the graph, and for timing run on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import aten, call_before, contiguous, spec_of
from bytejit.common.spec import Spec, contiguous_stride


class CallWriter:
    """Writes calls before a node; all have its dtype and device."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self.graph, self.node, self.spec = graph, node, spec_of(node)

    def call(self, target: object, args: tuple, shape: tuple, stride: tuple = (), kwargs: dict | None = None) -> fx.Node:
        spec = Spec(shape, stride or contiguous_stride(shape), self.spec.dtype, self.spec.device)
        return call_before(self.graph, self.node, target, args, spec, kwargs)

    def dense(self, value: fx.Node) -> fx.Node:
        own = spec_of(value)
        if own == contiguous(own):
            return value
        return self.call(aten.clone.default, (value,), own.shape, kwargs={"memory_format": torch.contiguous_format})

    def view(self, value: fx.Node, *shape: int) -> fx.Node:
        """A dense value with other sizes."""
        return self.call(aten.view.default, (self.dense(value), list(shape)), shape)

    def permute(self, value: fx.Node, order: tuple[int, ...]) -> fx.Node:
        own = spec_of(value)
        shape, stride = (tuple(of[i] for i in order) for of in (own.shape, own.stride))
        return self.call(aten.permute.default, (value, list(order)), shape, stride)


Write = Callable[..., tuple[fx.Node, ...]]


def on_tensors(write: Write) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that computes on tensors what `write(to: CallWriter, *nodes)` writes for nodes of their shapes."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        graph = fx.Graph()
        nodes = [graph.placeholder(f"x{i}") for i in range(len(tensors))]
        for node, x in zip(nodes, tensors):
            node.meta["spec"] = Spec.of(x)
        end = graph.output(())
        end.meta["spec"] = Spec.of(tensors[0])
        end.args = (write(CallWriter(graph, end), *nodes),)
        return _AsWritten(fx.GraphModule({}, graph)).run(*tensors)

    return run


class _AsWritten(fx.Interpreter):
    """Each value has the strides of its spec, as a kernel of ours would write it: torch's operators choose others."""

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if n.op == "call_function" and made.stride() != spec_of(n).stride:
            return torch.empty_strided(spec_of(n).shape, spec_of(n).stride, dtype=made.dtype, device=made.device).copy_(made)
        return made
