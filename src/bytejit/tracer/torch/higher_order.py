"""torch's higher-order operators as Python that is inlined: while_loop, scan, map, flex_attention, nested_compile_region.

torch's own functions around them are followed; the operator that they call in the end is replaced by a function of this module.
A loop that a tensor decides becomes one node, which runs the graphs of its condition and its body.
"""

from __future__ import annotations

import contextlib
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import traceback
from torch.utils._pytree import tree_map

from bytejit.common import attention_marks, registry
from bytejit.common.graph_calls import GraphCall
from bytejit.tracer.core.models import models, replaces, replaces_named, replaces_operator
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, SeqVar, TensorVar, Var, expect

from .control_flow import part_of, traced_part
from .transforms import entered

MOST_ROWS = 128  # rows of a scan or a map, each of which is traced


@replaces_named("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder")
def nested_region(func: Callable, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def rows_of(xs: Any) -> int:
    """The number of rows."""
    if len(xs) == 0 or xs[0].shape[0] > MOST_ROWS:
        registry.graph_break("more rows of torch's scan or map than are traced")
    return xs[0].shape[0]


@replaces_operator("scan")
def scan(combine_fn: Callable, init: Any, xs: Any, additional_inputs: Any) -> list:
    carry, made = list(init), []
    for i in range(rows_of(xs)):
        given = combine_fn(*carry, *[x[i] for x in xs], *additional_inputs)
        carry = list(given[: len(init)])
        made.append(list(given[len(init) :]))
    return [*carry, *[torch.stack([row[k] for row in made]) for k in range(len(made[0]))]]


@replaces_operator("map_impl")
def map_impl(f: Callable, xs: Any, pos_args: Any) -> Any:
    made = [f(*[x[i] for x in xs], *pos_args) for i in range(rows_of(xs))]
    return tree_map(lambda *row: torch.stack(row), made[0], *made[1:])


@replaces_named("torch", "switch")  # torch._higher_order_ops.switch of 2.14+
def switch(index: Any, branches: Any, operands: Any = ()) -> Any:
    if not branches or isinstance(index, torch.Tensor) and (index.numel() != 1 or index.is_floating_point()):
        registry.graph_break("torch.switch without branches, or whose index is not one integer")
    if isinstance(index, torch.Tensor):
        return branch_of(index, list(branches), operands)
    return branches[min(max(index, 0), len(branches) - 1)](*operands)


def branch_of(index: Any, branches: list, operands: Any) -> Any:
    """Calls the branch at an index, and returns its result; the first one's below 0, the last one's past the end."""
    if len(branches) == 1:
        return branches[0](*operands)
    return torch.cond(index <= 0, branches[0], lambda *given: branch_of(index - 1, branches[1:], given), operands)


# ---- while_loop -------------------------------------------------------------------------------------------------------------
@replaces_operator("while_loop")
def while_loop(cond_fn: Callable, body_fn: Callable, carried_inputs: Any, additional_inputs: Any) -> tuple:
    carried = tuple(carried_inputs)
    more = cond_fn(*carried, *additional_inputs)
    if isinstance(more, torch.Tensor):
        return loop(cond_fn, body_fn, carried, additional_inputs)
    if not more:
        return tuple([x.clone() if isinstance(x, torch.Tensor) else x for x in carried])
    while more:
        carried = body_fn(*carried, *additional_inputs)
        more = cond_fn(*carried, *additional_inputs)
        if isinstance(more, torch.Tensor):
            registry.graph_break("a while_loop that a number decides first and a tensor later")
    return carried


def loop(cond_fn: Callable, body_fn: Callable, carried: Any, additional: Any) -> tuple:
    """A loop that a tensor decides. Known to the tracer only."""
    raise NotImplementedError


class WhileLoop(GraphCall):
    """Runs a loop: the second graph computes new carried values from the old ones as long as the first graph, the
    condition, returns True. Both graphs take the `count` carried values first."""

    def __init__(self, parts: tuple[torch.fx.GraphModule, torch.fx.GraphModule], count: int) -> None:
        holds, body = parts

        def run(*inputs: Any) -> tuple:
            carried, closed = inputs[:count], inputs[count:]
            if not holds.forward(*carried, *closed)[0]:
                return tuple(x.clone() for x in carried)
            while holds.forward(*carried, *closed)[0]:
                carried = body.forward(*carried, *closed)
            return carried

        super().__init__(run, "while_loop", "torch.while_loop", parts)
        self.__module__ = "bytejit"


@models(loop)
def loop_node(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The node of a loop. Raises: Break if shapes or dtypes of the carried values change, or if the loop's functions have
    side effects."""
    given = t.iteration.iterate(args[2])
    carried = [v for v in map(t.values.real, given) if isinstance(v, TensorVar)]
    if len(carried) != len(given):
        raise Break("a while_loop that a tensor decides and that carries numbers")
    inner = [entered(t, v, None, "while_loop") for v in carried]
    operands = [*inner, *t.iteration.iterate(args[3])]
    traced = [traced_part(t, f, operands, "torch.while_loop of functions") for f in args[:2]]
    predicate, returned = t.values.real(traced[0][1]), [t.values.real(v) for v in t.iteration.iterate(traced[1][1])]
    if not isinstance(predicate, TensorVar) or predicate.fake.shape != () or predicate.fake.dtype is not torch.bool:
        raise Break("a while_loop whose condition is no bool")
    outside = {x.fake.m.store for x in t.by_fake.values() if x.node not in traced[1][0]}
    results = [as_carried(before, after, outside) for before, after in zip(inner, returned, strict=True)]
    marks = [v.node for v in inner]
    nodes = [[n for n in made if n not in marks] for made, _ in traced]
    held = {*marks, *nodes[0], *nodes[1]}
    taken = list(dict.fromkeys(i for n in (*nodes[0], *nodes[1]) for i in n.all_input_nodes if i not in held))
    parts = tuple(
        part_of([*marks, *taken], ns, outputs) for ns, outputs in zip(nodes, ([predicate.node], [v.node for v in results]))
    )
    t.sizes.erase([*marks, *nodes[0], *nodes[1]])
    call = t.tensors.add_node(WhileLoop(parts, len(inner)), None, (*(v.node for v in carried), *taken), {})
    items = []
    for i, v in enumerate(results):
        node = t.tensors.add_node(operator.getitem, None, (call, i), {})
        with t.fake_mode:
            node.meta["val"] = v.fake.clone(memory_format=torch.preserve_format)
        items.append(expect(t.tensors.wrap_result(node, node.meta["val"]), TensorVar))
    call.meta["val"] = tuple(v.fake for v in items)
    return SeqVar(items, tuple)


def as_carried(before: TensorVar, after: Var, outside: set) -> TensorVar:
    """A tensor as the loop's body returns it. Raises: Break unless it looks as it did before, and is a new one."""
    if not isinstance(after, TensorVar):
        raise Break("a while_loop that returns a value that is not a tensor")
    x, y = before.fake, after.fake
    if (x.shape, x.stride(), x.dtype, x.device) != (y.shape, y.stride(), y.dtype, y.device):
        raise Break("a while_loop that carries tensors of changing shape, strides, type or device")
    if x.requires_grad != y.requires_grad:
        raise Break("a while_loop in which a tensor comes to require gradients")
    if y.m.store in outside:
        raise Break("a while_loop that returns what it was given")
    return after


# ---- flex_attention -----------------------------------------------------------------------------------------------------------
def items_by_tensors(more: int) -> None:
    """Begin (1) or end (-1) a part where a subscript by tensors picks an element, as under vmap. Known to the tracer only."""
    raise NotImplementedError


@models(items_by_tensors)
def _items_by_tensors(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.indexing.by_tensors += t.const(args[0])
    return NONE


def for_each_score(f: Callable, lead: tuple, rest: tuple) -> Callable:
    """A function of one score's places as one of all places. lead: how arguments before them are mapped; rest: those behind."""
    for places in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        f = torch.vmap(f, in_dims=(*lead, *places, *rest))
    return f


@replaces_named("torch.nn.attention.flex_attention", "create_mask")
def create_mask(mod_fn: Callable, B: Any, H: Any, Q_LEN: int, KV_LEN: int, device: Any = None) -> Any:
    if device is None or type(mod_fn) is not types.FunctionType or mod_fn.__code__.co_argcount != 4:
        registry.graph_break("create_mask without a device, or of what is no function of four places")
    places = [torch.arange(1 if n is None else n, device=device) for n in (B, H, Q_LEN, KV_LEN)]
    items_by_tensors(1)
    try:
        return for_each_score(mod_fn, (), ())(*places)
    finally:
        items_by_tensors(-1)


@replaces(traceback.annotate)
def annotate(annotation_dict: dict) -> Any:
    """Annotations of nodes for other compilers: no effect."""
    return contextlib.nullcontext()


def laid_out_as(made: Any, strides: tuple) -> Any:
    """The tensor with its dims in memory in the order of the given strides; the last dim stays innermost."""
    order = sorted(range(3), key=lambda d: strides[d], reverse=True)
    if order == [0, 1, 2]:
        return made
    ordered = made.permute(*order, 3).clone(memory_format=torch.contiguous_format)  # `contiguous` keeps strides of sizes of 1
    return ordered.permute(*[order.index(d) for d in range(3)], 3)


@replaces_operator("flex_attention")
def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable,
    block_mask: tuple,
    scale: float,
    kernel_options: dict,
    score_mod_other_buffers: tuple = (),
    mask_mod_other_buffers: tuple = (),
) -> tuple:
    """The output, and of the scores of each row the logarithm of the sum and the largest, in powers of two."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype is not torch.float64:
        query, key, value = [x.to(torch.get_autocast_dtype(kind)) for x in (query, key, value)]
    groups, given = query.shape[1] // key.shape[1], (key, value)
    key, value = [x.repeat_interleave(groups, dim=1).expand(query.shape[0], -1, -1, -1) for x in (key, value)]
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    items_by_tensors(1)
    try:
        seen = for_each_score(block_mask[-1], (), (None,) * len(mask_mod_other_buffers))(*places, *mask_mod_other_buffers)
        changed = for_each_score(score_mod, (0,), (None,) * len(score_mod_other_buffers))(
            scores, *places, *score_mod_other_buffers
        )
    finally:
        items_by_tensors(-1)
    masked = torch.where(seen, changed, -math.inf)
    total = torch.where((masked == -math.inf).all(-1), -math.inf, masked.logsumexp(-1))
    made = torch.ops.aten._safe_softmax.default(masked, -1).to(query.dtype) @ value
    made, sums, tops = laid_out_as(made, query.stride()), total / math.log(2), masked.max(-1)[0] / math.log(2)
    if not attention_marks.wanted(query, changed, value):
        return made, sums, tops
    blocks = (*block_mask[2:6], *block_mask[-3:-1])
    return torch.ops.bytejit.flex_mark.default(query, *given, scores, changed, seen, made, sums, tops, *blocks, scale)
