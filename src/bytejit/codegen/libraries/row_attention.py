"""Attention of one query on a GPU (one token of a language model) as sums and a softmax in our own kernels.

Libraries give a block of queries and all keys of a head to a program: with one query a few programs walk through the cache. Sums
run over it with all of the GPU, in float32. Heads of keys that serve several queries are read where they lie: no kernel repeats
them in memory.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import (
    GPU_FLOATS,
    aten,
    call_before,
    infer_before,
    is_static,
    replace,
    spec_of,
    spec_or_none,
    specs_of,
)
from bytejit.codegen.ops.calls import named
from bytejit.common.light_dataclass import light_dataclass

from .choices import Choices, choose_each

SCALED = aten.scaled_dot_product_attention.default


@light_dataclass(frozen=True)
class RowAttention:
    """softmax(q k^T scale + mask) v. q [B, H, 1, D], k [B, G, S, D], v [B, G, S, E], mask [..., 1, S] of bools or floats."""

    node: fx.Node
    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: fx.Node | None
    scale: float


def take_row_attentions(graph: fx.Graph, choices: Choices) -> None:
    """Changes `graph`."""
    choose_each(graph, match_row, lambda found: True, lambda found, _: _as_sums(graph, found))


def match_row(node: fx.Node) -> RowAttention | None:
    """An attention of one query a head, of known sizes, without dropout; None for other nodes."""
    if node.op != "call_function" or node.target is not SCALED:
        return None
    given = named(SCALED, node.args, node.kwargs)
    q, k, v, mask = (given.get(n) for n in ("query", "key", "value", "attn_mask"))
    specs = specs_of(q, k, v, node)
    if specs is None or given.get("dropout_p", 0.0) or given.get("is_causal", False):
        return None
    of_q, of_k, of_v, _ = specs
    if not all(len(s.shape) == 4 and is_static(s) and s.dtype is of_q.dtype and 0 not in s.shape for s in specs):
        return None
    heads, groups = of_q.shape[1], of_k.shape[1]
    if of_q.dtype not in GPU_FLOATS or of_q.shape[2] != 1 or of_k.shape[:3] != of_v.shape[:3] or of_q.shape[0] != of_k.shape[0]:
        return None
    if heads != groups and (not given.get("enable_gqa", False) or heads % groups):
        return None
    if mask is not None and not _mask_fits(mask, of_q.dtype):
        return None
    scale = given.get("scale")
    scale = of_q.shape[3] ** -0.5 if scale is None else scale
    return RowAttention(node, q, k, v, mask, float(scale)) if isinstance(scale, (int, float)) else None


def _mask_fits(mask: object, dtype: torch.dtype) -> bool:
    spec = spec_or_none(mask)
    if not is_static(spec) or len(spec.shape) < 2 or spec.shape[-2] != 1:
        return False
    return spec.dtype in (torch.bool, dtype)


def _as_sums(graph: fx.Graph, found: RowAttention) -> None:
    node, call = found.node, partial(infer_before, graph, found.node)
    (batch, heads, *_), (_, groups, keys, _) = spec_of(found.q).shape, spec_of(found.k).shape

    def wide(t: fx.Node) -> fx.Node:
        return t if spec_of(t).dtype is torch.float32 else call(aten._to_copy.default, t, dtype=torch.float32)

    def repeated(t: fx.Node) -> fx.Node:
        """[B, G, S, D] for each of the queries' heads."""
        if heads == groups:
            return wide(t)
        shape = [batch, groups, heads // groups, keys, spec_of(t).shape[3]]
        t = wide(call(aten.expand.default, call(aten.unsqueeze.default, t, 2), shape))
        t = call(aten.clone.default, t, memory_format=torch.contiguous_format)
        return call(aten.view.default, t, [batch, heads, *shape[3:]])

    q = call(aten.mul.Tensor, wide(found.q), found.scale)
    scores = call(aten.sum.dim_IntList, call(aten.mul.Tensor, repeated(found.k), q), [3])
    if found.mask is not None:
        mask = call(aten.squeeze.dim, found.mask, -2)
        if spec_of(mask).dtype is torch.bool:
            low = call(aten.full.default, [], float("-inf"), dtype=torch.float32, device=spec_of(scores).device)
            scores = call(aten.where.self, mask, scores, low)
        else:
            scores = call(aten.add.Tensor, scores, mask)
    part = call(aten.unsqueeze.default, call(aten._safe_softmax.default, scores, -1), 3)
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, repeated(found.v), part), [2], True)
    spec = spec_of(node)
    how = {"dtype": spec.dtype}
    replace(node, call_before(graph, node, aten._to_copy.default, (total,), spec, how))
