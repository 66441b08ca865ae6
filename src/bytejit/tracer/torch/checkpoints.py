"""torch.utils.checkpoint in a region: its function is traced, and at the end put into a graph of its own, which the node
that stands for the call runs under the same checkpoint: what it computes is not kept, but computed again going backward.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from bytejit.common.graph_calls import GraphCall
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var
from bytejit.tracer.objects.calls import models

from .autograd_functions import has_external_effects

CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint)
OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def begin(*args: object, **options: object) -> None:
    """Marks where a checkpointed function begins in the graph while it is traced; `args`: the tensors given to it."""


def end() -> None:
    """Marks where it ends."""


@models(torch.utils.checkpoint.checkpoint)
def checkpoint(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    function, rest = args[0], args[1:]
    given = {k: v for k, v in kwargs.items() if k in OPTIONS}
    named = {k: v for k, v in kwargs.items() if k not in OPTIONS}
    if "context_fn" in given or "debug" in given:
        raise Break("torch.utils.checkpoint with context_fn or debug")
    options = {k: t.const(v) for k, v in given.items()}
    reentrant = options.pop("use_reentrant", None)
    if (
        reentrant is None
        or reentrant
        and (named or torch.is_grad_enabled() or not any(isinstance(a, TensorVar) and a.fake.requires_grad for a in rest))
    ):
        raise Break("torch.utils.checkpoint, reentrant", "pass use_reentrant=False")
    if not torch.is_grad_enabled():
        return t.calls.call(function, rest, named)
    given = tuple(dict.fromkeys(a.node for a in [*rest, *named.values()] if isinstance(a, TensorVar)))
    return kept_apart(t, lambda: t.values.real(t.calls.call(function, rest, named)), given, options)


def kept_apart(t: Tracer, run: Callable[[], Var], given: tuple, options: dict) -> Var:
    """Trace what a checkpoint runs, between marks. Raises: Break where running it twice would be seen."""
    if has_external_effects(t):
        raise Break("torch.utils.checkpoint after a change that its function may see when it runs again")
    before = {v: v.fake._version for v in t.by_fake.values() if not v.fake.is_inference()}
    deferred = len(t.deferred_calls)
    looked_at = t.backward.looked_at
    first = t.graph.call_function(begin, given, options)
    try:
        result = run()
    except Raised:
        t.graph.erase_node(first)
        raise
    if (
        has_external_effects(t)
        or len(t.deferred_calls) != deferred
        or any(v.fake._version != n for v, n in before.items())
        or looked_at != t.backward.looked_at
    ):
        raise Break("torch.utils.checkpoint of a function that changes more than what it returns")
    t.graph.call_function(end)
    t.checkpoints = True
    return result


def group(t: Tracer, outputs: list) -> list:
    """The traced graph with each checkpointed part as one node; the outputs' nodes, where they are now."""
    opened: list[torch.fx.Node] = []
    for node in list(t.graph.nodes) if t.checkpoints else ():
        if node.target is begin:
            opened.append(node)
        elif node.target is end:
            outputs = _grouped(t.graph, opened.pop(), node, outputs)
    return outputs


def _grouped(graph: torch.fx.Graph, first: torch.fx.Node, last: torch.fx.Node, outputs: list) -> list:
    """One part as a node in front of `last`; the marks go."""
    inside, node = [], first.next
    while node is not last:
        if node.op != "placeholder":
            inside.append(node)
        node = node.next
    if any(isinstance(v, torch.Tensor) and v.requires_grad for n in inside for v in _values(n)):
        held = set(inside)
        taken = dict.fromkeys(i for n in inside for i in n.all_input_nodes if i not in held)
        saved = [n for n in first.args if n in taken]
        taken = [*saved, *(n for n in taken if n not in saved)]
        given = [n for n in inside if n in outputs or not held.issuperset(n.users)]
        moved = _call(graph, last, taken, len(saved), inside, given, dict(first.kwargs))
        outputs = [moved.get(n, n) for n in outputs]
        for n in reversed(inside):
            graph.erase_node(n)
    graph.erase_node(first)
    graph.erase_node(last)
    return outputs


def _values(node: torch.fx.Node) -> tuple:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _call(graph: torch.fx.Graph, last: torch.fx.Node, taken: list, saved: int, inside: list, given: list, options: dict) -> dict:
    """The node that runs a part, and one for each value that is used outside of it: old node -> new node."""
    part = torch.fx.Graph()
    copies = {n: part.placeholder(n.name) for n in taken}
    for n in inside:
        copies[n] = part.node_copy(n, copies.__getitem__)
    part.output(tuple(copies[n] for n in given))
    with graph.inserting_before(last):
        call = graph.call_function(checkpointed(torch.fx.GraphModule(torch.nn.Module(), part), saved, options), tuple(taken))
        call.meta["val"], call.meta["where"] = tuple(n.meta["val"] for n in given), inside[0].meta.get("where")
        moved = {}
        for i, n in enumerate(given):
            moved[n] = graph.call_function(operator.getitem, (call, i))
            moved[n].meta.update(n.meta)
            n.replace_all_uses_with(moved[n], delete_user_cb=lambda user: user not in inside)
    return moved


def checkpointed(part: torch.fx.GraphModule, saved: int, options: dict) -> GraphCall:
    """The node's target: the part under torch's checkpoint, which saves the first inputs; the others are its closure."""

    def checkpoint_part(*inputs: Any):
        return CHECKPOINT(lambda *given: part.forward(*given, *inputs[saved:]), *inputs[:saved], use_reentrant=False, **options)

    return GraphCall(checkpoint_part, opaque="a checkpointed part", parts=(part,))
