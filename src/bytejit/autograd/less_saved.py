"""What a backward pass reads of the forward pass, in less memory than as eager keeps it.

Operators give positions as int64. Those within an image of 112 x 112 points fit 16 bits: kept so, they take a quarter of the
memory. The minimum cut then keeps the short ones and computes the others from them. And gradients of pools and pads take the
operand of the forward pass for its shape alone: they are given memory that nobody fills.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import call_before, is_static, spec_or_none

from .joint import Joint

aten = torch.ops.aten
KEPT_DTYPES = (torch.int16, torch.int32)


def points(dims: int) -> Callable[[tuple], int]:
    """How many positions the last dims of an operand have."""
    return lambda shape: math.prod(shape[-dims:])


def longest(shape: tuple) -> int:
    """At least as many positions as any one dim has."""
    return max(shape, default=1)


#: operator whose second result is positions -> how many there are in an operand of some shape
POSITIONS: dict[object, Callable[[tuple], int]] = {
    aten.max_pool2d_with_indices.default: points(2),
    aten.max_pool3d_with_indices.default: points(3),
    aten.adaptive_max_pool2d.default: points(2),
    aten.adaptive_max_pool3d.default: points(3),
    aten.fractional_max_pool2d.default: points(2),
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.sort.default, aten.sort.stable, aten.topk.default), longest),
    **dict.fromkeys((aten.cummax.default, aten.cummin.default, aten.kthvalue.default, aten.median.dim), longest),
}


def narrow_dtype(n: fx.Node) -> torch.dtype | None:
    """The narrowest dtype that surely holds all elements of a result that is positions; None for others."""
    if n.target is not operator.getitem or n.args[1] != 1 or n.args[0].target not in POSITIONS:
        return None
    spec = spec_or_none(n.args[0].args[0])
    if spec is None or not all(isinstance(size, int) for size in spec.shape):
        return None
    last = POSITIONS[n.args[0].target](spec.shape) - 1
    return next((d for d in KEPT_DTYPES if last <= torch.iinfo(d).max), None)


POOLS = ("avg_pool", "_adaptive_avg_pool", "adaptive_max_pool")
#: gradients that read the shape and the layout of their second operand, not the elements
OF_SHAPES = frozenset(
    [
        *(getattr(aten, f"{kind}{n}d_backward").default for kind in POOLS for n in (2, 3)),
        *(getattr(aten, f"{kind}_pad{n}d_backward").default for kind in ("reflection", "replication") for n in (1, 2, 3)),
        *(getattr(aten, f"max_pool{n}d_with_indices_backward").default for n in (2, 3)),
    ]
)


def with_less_saved(joint: Joint) -> Joint:
    """The joint graph, in which calls of the backward pass read less of the forward pass."""
    graph, made = joint.aten.graph, set()
    for n in [n for n in graph.nodes if n in joint.forward]:
        readers = [u for u in n.users if u not in joint.forward and u.op == "call_function"]
        dtype = narrow_dtype(n) if readers else None
        if dtype is not None:
            wide = n.meta["spec"]
            short = call_before(graph, n.next, aten._to_copy.default, (n,), replace(wide, dtype=dtype), {"dtype": dtype})
            back = call_before(graph, short.next, aten._to_copy.default, (short,), wide, {"dtype": wide.dtype})
            made |= {short, back}
            for u in readers:
                u.replace_input_with(n, back)
    for u in [u for u in graph.nodes if u.target in OF_SHAPES and u not in joint.forward]:
        n, spec = u.args[1], spec_or_none(u.args[1])
        if n in joint.forward and is_static(spec):
            options = {"dtype": spec.dtype, "device": spec.device}
            empty = call_before(graph, u, aten.empty_strided.default, (list(spec.shape), list(spec.stride)), spec, options)
            u.update_arg(1, empty)
    return replace(joint, forward=joint.forward | made)
