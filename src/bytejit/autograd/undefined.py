"""The backward graph for calls where some outputs were not used, or not all gradients are asked for. The tangents of outputs
that were not used are undefined, which is not the same as zeros.

A backward pass is linear in what comes from its tangents. A call whose operands of that kind are all undefined is undefined
itself and is left out. A sum with one undefined operand is its other operand. Any other call that mixes both gets zeros, as
torch passes them to a node with several results.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten, Input, Out, OutputValue, base_of, check, positions, renumbered
from bytejit.codegen.aten.rewrite import copy_graph, drop_dead
from bytejit.common.spec import Spec, contiguous_stride

from .nodes import copied
from .partition import Parts

aten = torch.ops.aten


def without(parts: Parts, missing: frozenset[int], unwanted: frozenset[int] = frozenset()) -> tuple[Aten, tuple[int | None, ...]]:
    """The backward graph with neither the tangents `missing` nor the gradients of the inputs `unwanted`. Also returns, for
    each gradient, its place among the outputs of the new graph; None: it is undefined. The graph keeps all its inputs."""
    graph = copy_graph(parts.backward.graph)
    nodes = list(graph.nodes)
    first = len(parts.saved_inputs) + parts.saved
    tangents = nodes[first : first + len(parts.tangents)]
    flat = list(nodes[-1].args[0])
    undefined, summed = _undefined(graph, tangents, {tangents[i] for i in missing})
    dropped = {at for i, at in parts.grads if i in unwanted}
    used = {p for at, out in enumerate(parts.backward.outputs) if at not in dropped for p in positions(out)}
    left = [p for p, n in enumerate(flat) if n not in undefined and p in used]
    with graph.inserting_before(nodes[-1]):
        values = tuple(copied(graph, _other(flat[p], summed)) if flat[p] in summed else flat[p] for p in left)
    nodes[-1].args = (values,)
    for n, other in summed.items():
        n.replace_all_uses_with(_other(other, summed), propagate_meta=False)
    drop_dead(graph)
    moved = {p: i for i, p in enumerate(left)}
    outs: list[Out] = []
    places: list[int | None] = []
    for at, out in enumerate(parts.backward.outputs):
        base = base_of(out)
        gone = (
            at in dropped
            or isinstance(base, OutputValue)
            and base.position not in moved
            or isinstance(base, Input)
            and nodes[base.index] in undefined
        )
        places.append(None if gone else len(outs))
        if not gone:
            outs.append(renumbered(out, moved.__getitem__))
    return check(replace(parts.backward, graph=graph, outputs=tuple(outs))), tuple(places)


def _undefined(graph: fx.Graph, tangents: list[fx.Node], missing: set[fx.Node]) -> tuple[set[fx.Node], dict[fx.Node, fx.Node]]:
    """The nodes without a value, and the sums that are one of their operands. Other calls get zeros."""
    late, undefined, summed = set(tangents), set(missing), {}
    for n in list(graph.nodes):
        given = [i for i in n.all_input_nodes if i in late]
        if n.op != "call_function" or not given:
            continue
        late.add(n)
        gone = [i for i in given if i in undefined]
        if len(gone) == len(given):
            undefined.add(n)
        elif gone and _is_sum(n, gone):
            summed[n] = n.args[1] if n.args[0] in gone else n.args[0]
        else:
            for i in gone:
                n.replace_input_with(i, _zeros(graph, n, i.meta["spec"]))
    return undefined, summed


def _is_sum(n: fx.Node, gone: list[fx.Node]) -> bool:
    """Whether a call adds two tensors, one of which is undefined, while the other has the spec of the result."""
    if n.target is not aten.add.Tensor or n.kwargs or len(n.args) != 2:
        return False
    other = n.args[1] if n.args[0] in gone else n.args[0]
    return isinstance(other, fx.Node) and other.meta["spec"] == n.meta["spec"]


def _other(n: fx.Node, summed: dict[fx.Node, fx.Node]) -> fx.Node:
    """The operand that remains of a sum whose other operands are undefined."""
    while n in summed:
        n = summed[n]
    return n


def _zeros(graph: fx.Graph, before: fx.Node, spec: Spec) -> fx.Node:
    with graph.inserting_before(before):
        made = graph.call_function(aten.full.default, (list(spec.shape), 0), {"dtype": spec.dtype, "device": spec.device})
    made.meta.update(
        spec=Spec(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device), where=before.meta.get("where")
    )
    return made
