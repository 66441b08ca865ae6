"""torch.cond in a region: both branches are traced into graphs of their own, and one node picks between them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from bytejit.common.graph_calls import GraphCall
from bytejit.common.graph_modules import module_of
from bytejit.fake.tensor import with_history
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Known, SeqVar, TensorVar, Var, expect

from .autograd_functions import has_external_effects

PARAMETERS = ("pred", "true_fn", "false_fn", "operands")
WHAT = "torch.cond of branches"


class OfBoth(torch.autograd.Function):
    """The results of a branch as results of both: each input gets a gradient, of zeros where only the other branch reads it."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple:
        ctx.rest = [(x.shape, x.dtype, x.device) for x in tensors[count:]]
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return None, *grads, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.rest)


class Branches(GraphCall):
    """Runs the first of two graphs of the same inputs where a tensor holds, else the second. Their results are tuples."""

    def __init__(self, parts: tuple[torch.fx.GraphModule, torch.fx.GraphModule]) -> None:
        first, second = parts

        def run(predicate: torch.Tensor, *inputs: Any) -> tuple:
            found = (first if predicate else second).forward(*inputs)
            tracked = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
            return OfBoth.apply(len(found), *found, *tracked) if tracked and torch.is_grad_enabled() else found

        super().__init__(run, "cond", "torch.cond", parts)
        self.__module__ = "bytejit"


@models(torch.cond)
def cond(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """torch.cond: one node for both branches where a tensor decides, else a call of the branch. Raises: Break."""
    given = {**dict(zip(PARAMETERS, args)), **kwargs}
    predicate, operands = t.values.real(given["pred"]), t.iteration.iterate(given["operands"]) if "operands" in given else []
    if not isinstance(predicate, TensorVar):
        return t.calls.call(given["true_fn" if t.comparisons.truth(predicate) else "false_fn"], operands, {})
    if predicate.fake.numel() != 1:
        raise Break("torch.cond by a tensor of more than one element")
    branches = [traced_part(t, given[name], operands, WHAT) for name in ("true_fn", "false_fn")]
    return _joined(t, predicate, *branches)


def traced_part(t: Tracer, function: Var, operands: list[Var], what: str) -> tuple[list[torch.fx.Node], Var]:
    """The nodes of a function's call, still in the graph, and its result. Raises: Break where it does more than return."""
    before = {v: v.fake._version for v in t.by_fake.values() if not v.fake.is_inference()}
    known, deferred = set(t.graph.nodes), t.deferred.count
    if has_external_effects(t):
        raise Break(f"{what} after a change that they may see")
    looked_at = t.backward.looked_at
    try:
        with t.deferred.part():
            result = t.values.real(t.calls.call(function, operands, {}))
    except Raised:
        raise Break(f"{what} that raise") from None
    written = any(v.fake._version != n for v, n in before.items())
    if has_external_effects(t) or t.deferred.count != deferred or written or looked_at != t.backward.looked_at:
        raise Break(f"{what} that have side effects")
    made = [n for n in t.graph.nodes if n not in known and n.op != "placeholder"]
    t.sizes.forget_numbers(set(made))
    return made, result


def _leaves(t: Tracer, v: Var) -> list[Var]:
    """The values within a result, in order."""
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return [leaf for item in v.items for leaf in _leaves(t, item)]
    if isinstance(v, DictVar):
        return [leaf for _, item in v.items.values() for leaf in _leaves(t, item)]
    return [v]


def _like(t: Tracer, v: Var, leaves: Any) -> Var:
    """The same containers around other leaves."""
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return SeqVar([_like(t, item, leaves) for item in v.items], v.cls)
    if isinstance(v, DictVar):
        return DictVar({k: (key, _like(t, item, leaves)) for k, (key, item) in v.items.items()})
    return next(leaves)


def _shape_of(t: Tracer, v: Var) -> object:
    """A result's containers, for comparison."""
    v = t.values.real(v)
    if isinstance(v, SeqVar):
        return v.cls, [_shape_of(t, item) for item in v.items]
    return (DictVar, [(k, _shape_of(t, item)) for k, (_, item) in v.items.items()]) if isinstance(v, DictVar) else None


def _joined(t: Tracer, predicate: TensorVar, yes: tuple[list, Var], no: tuple[list, Var]) -> Var:
    """The node that stands for both branches, and the result."""
    first, second = _leaves(t, yes[1]), _leaves(t, no[1])
    if _shape_of(t, yes[1]) != _shape_of(t, no[1]):
        raise Break(f"{WHAT} that return different containers")
    given = {v.fake.m.store for v in t.inputs if isinstance(v, TensorVar)}
    for a, b in zip(first, second):
        if isinstance(a, Known) and isinstance(b, Known) and type(a.obj) is type(b.obj) and a.obj == b.obj:
            continue
        if not isinstance(a, TensorVar) or not isinstance(b, TensorVar):
            raise Break(f"{WHAT} that return different values that are no tensors")
        x, y = a.fake, b.fake
        if (x.shape, x.stride(), x.dtype, x.device) != (y.shape, y.stride(), y.dtype, y.device):
            raise Break(f"{WHAT} that return tensors of different shapes, types or devices")
        if x.m.store in given or y.m.store in given:
            raise Break(f"{WHAT} that return their inputs")
    pairs = [(a, expect(b, TensorVar)) for a, b in zip(first, second) if isinstance(a, TensorVar)]
    held = {*yes[0], *no[0]}
    taken = list(dict.fromkeys(i for n in (*yes[0], *no[0]) for i in n.all_input_nodes if i not in held))
    parts = tuple(part_of(taken, nodes, [pair[k].node for pair in pairs]) for k, (nodes, _) in enumerate((yes, no)))
    t.sizes.erase([*yes[0], *no[0]])
    call = t.tensors.add_node(Branches(parts), None, (predicate.node, *taken), {})
    made, follows = [], torch.is_grad_enabled() and any(gradients_of(n) for n in taken)
    for i, (a, _) in enumerate(pairs):
        node = t.tensors.add_node(operator.getitem, None, (call, i), {})
        with t.fake_mode:
            fake = a.fake.detach().clone(memory_format=torch.preserve_format)
        if follows and (fake.is_floating_point() or fake.is_complex()):
            fake = with_history(fake.requires_grad_())
        node.meta["val"] = fake
        made.append(expect(t.tensors.wrap_result(node, fake), TensorVar))
    call.meta["val"] = tuple(v.fake for v in made)
    tensors = iter(made)
    return _like(t, yes[1], iter([next(tensors) if isinstance(a, TensorVar) else a for a in first]))


def gradients_of(n: torch.fx.Node) -> bool:
    """Whether a node's value is a tensor that gradients are followed to."""
    value = n.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad


def part_of(taken: list[torch.fx.Node], nodes: list[torch.fx.Node], outputs: list[torch.fx.Node]) -> torch.fx.GraphModule:
    """Nodes as a graph of their own. taken: the nodes whose values it is given."""
    part = torch.fx.Graph()
    copies = {n: part.placeholder(n.name) for n in taken}
    for n in nodes:
        copies[n] = part.node_copy(n, copies.__getitem__)
    part.output(tuple(copies[n] for n in outputs))
    return module_of(part)
