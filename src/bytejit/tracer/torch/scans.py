"""`associative_scan` of torch's higher-order operators, as Python that is inlined: torch itself runs it under locks,
through function transforms. A combining function that works element by element is called on whole slices, a few times;
another one is called for each pair of rows. The order is torch's own, so that sums are rounded alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bytejit.common import registry
from bytejit.tracer.core.models import models, replaces_named
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, TRUE, SeqVar, TensorVar, Var, expect

MOST_ROWS = 512
# operations on equally shaped tensors that work element by element
ELEMENTWISE = frozenset(
    """add sub mul truediv div neg pow exp exp2 expm1 log log1p log2 logaddexp maximum minimum max min where sigmoid tanh
    relu abs sqrt rsqrt reciprocal clamp sin cos square sign multiply subtract divide negative eq ne lt le gt ge logical_and
    logical_or logical_xor logical_not and_ or_ xor iadd isub imul itruediv to float double lerp addcmul""".split()
)


def flatten(tree: Any) -> list:
    """The tensors of nested tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in flatten(part)]


def unflatten(like: Any, leaves: Iterator) -> Any:
    """A tree like `like` of the next tensors that an iterator gives."""
    if isinstance(like, torch.Tensor):
        return next(leaves)
    if isinstance(like, dict):
        return {k: unflatten(v, leaves) for k, v in like.items()}
    return type(like)([unflatten(v, leaves) for v in like])


def plain(tree: Any) -> bool:
    """Whether a tree is made of what `flatten` knows."""
    if isinstance(tree, torch.Tensor):
        return True
    return type(tree) in (tuple, list, dict) and all([plain(v) for v in (tree.values() if type(tree) is dict else tree)])


def on_slices(combine: Callable, leaves: list) -> list:
    """All prefixes, in 2 log2(n) calls on slices. In the order of torch's own: neighbours first, then what lies between."""
    n = leaves[0].shape[0]
    if n < 2:
        return leaves
    later = on_slices(combine, combine([x[: n - 1 : 2] for x in leaves], [x[1::2] for x in leaves]))
    first = [x[:1] for x in leaves]
    if n > 2:
        between = combine([x[: (n - 1) // 2] for x in later], [x[2::2] for x in leaves])
        first = [torch.cat([x, m]) for x, m in zip(first, between)]
    both = [torch.stack([a[: n // 2], b], 1).flatten(0, 1) for a, b in zip(first, later)]
    return [torch.cat([x, a[n // 2 :]]) for x, a in zip(both, first)] if n % 2 else both


def on_rows(combine: Callable, rows: list) -> list:
    """The same by a call for each pair of rows."""
    if len(rows) < 2:
        return rows
    later = on_rows(combine, [combine(a, b) for a, b in zip(rows[::2], rows[1::2])])
    first = [rows[0], *[combine(a, b) for a, b in zip(later, rows[2::2])]]
    return [(later if i % 2 else first)[i // 2] for i in range(len(rows))]


@replaces_named("torch._higher_order_ops.associative_scan", "associative_scan")
def associative_scan(combine_fn: Callable, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    leaves = flatten(xs) if plain(xs) else []
    if (
        not leaves
        or type(dim) is not int
        or type(reverse) is not bool
        or combine_mode not in ("pointwise", "generic")
        or combine_mode == "pointwise"
        and not all([x.is_cuda for x in leaves])
        or any([not -x.dim() <= dim < x.dim() or x.shape[dim] == 0 or x.shape != leaves[0].shape for x in leaves])
    ):
        registry.graph_break("arguments of associative_scan")
    leaves = [torch.movedim(x, dim, 0) for x in leaves]
    if reverse:
        leaves = [torch.flip(x, [0]) for x in leaves]

    def combine(a: Any, b: Any) -> list:
        return flatten(combine_fn(unflatten(xs, iter(a)), unflatten(xs, iter(b))))

    if leaves[0].shape[0] > 1:
        if works_by_element(combine, leaves):
            leaves = on_slices(combine, leaves)
        else:
            rows = on_rows(combine, [[x[i] for x in leaves] for i in range(leaves[0].shape[0])])
            leaves = [torch.stack([row[k] for row in rows]) for k in range(len(leaves))]
    if reverse:
        leaves = [torch.flip(x, [0]) for x in leaves]
    return unflatten(xs, iter([torch.movedim(x, 0, dim) for x in leaves]))


def works_by_element(combine: Callable, leaves: list) -> bool:
    """Whether combine() gives on slices what it gives on each row. Known to the tracer only."""
    raise NotImplementedError


@models(works_by_element)
def _works_by_element(t: Tracer, args: Any, kwargs: Any) -> Var:
    """Tried on slices that are one row short, and looked at; what the trial left in the graph is taken out again."""
    combine, leaves = args
    shape = tuple(expect(t.values.real(leaves.items[0]), TensorVar).fake.shape)
    before = list(t.graph.nodes)[-1]
    try:
        rows = [
            t.tensors.call_tensor_op(torch.narrow, [x, *map(t.values.constant, (0, 0, shape[0] - 1))], {}) for x in leaves.items
        ]
        last = list(t.graph.nodes)[-1]
        t.calls.call(combine, [SeqVar(list(rows), list), SeqVar(list(rows), list)], {})
        ok = all(_elementwise(n, (shape[0] - 1, *shape[1:])) for n in _after(t.graph, last))
    except (Break, Raised):
        ok = False
    t.sizes.erase(_after(t.graph, before))
    if not ok and shape[0] > MOST_ROWS:
        raise Break(f"associative_scan over {shape[0]} rows with a function that is called for each")
    return TRUE if ok else FALSE


def _after(graph: torch.fx.Graph, node: torch.fx.Node) -> list:
    nodes = list(graph.nodes)
    return nodes[nodes.index(node) + 1 :]


def _elementwise(node: torch.fx.Node, shape: tuple) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    tensors = [node, *node.all_input_nodes]
    return (
        node.op in ("call_function", "call_method")
        and name in ELEMENTWISE
        and all(isinstance(n.meta.get("val"), torch.Tensor) and tuple(n.meta["val"].shape) in (shape, ()) for n in tensors)
    )
