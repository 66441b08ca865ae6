"""What is scattered into zeros and then added to another value is scattered into that value.

    e = embedding_dense_backward(g, i, ...); a + e   ->   index_put(a, [i], g, accumulate=True)

A weight that is both an embedding and the last layer has such a gradient: as large as the weight, and zero in nearly all rows.
"""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import torch
from torch import fx

from bytejit.common.dtypes import WIDE_DTYPES

from .rewrite import aten, call_before, contiguous, drop_dead, infer_before, replace, sole_user, spec_of, specs_of

ZEROS = {aten.full.default: 1, aten.zeros.default: None, aten.new_zeros.default: None, aten.zeros_like.default: None}
PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
ADDING = (aten.index_add.default, aten.scatter_add.default)
FLOATS = WIDE_DTYPES  # others are added up in more digits than they have, and rounded once


def scatter_into_addends(graph: fx.Graph, choices: Any = None) -> None:
    """Changes `graph`."""
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for scattered, other in (node.args, node.args[::-1]):
            specs = specs_of(node, scattered, other)
            if specs is None or not specs[0] == specs[1] == specs[2] or specs[0].dtype not in FLOATS:
                continue
            call = _into(graph, node, scattered, other) if sole_user(scattered) is node else None
            if call is not None:
                replace(node, call_before(graph, node, *call, specs[0]))
                graph.erase_node(scattered)  # its places are checked by what is in its stead
                break
    drop_dead(graph)


def _into(graph: fx.Graph, node: fx.Node, scattered: fx.Node, other: fx.Node) -> tuple[Any, tuple] | None:
    """(target, arguments) of a call before `node` that scatters into `other`; None where there is none."""
    if scattered.target is aten.embedding_dense_backward.default:
        g, at, _, padding, by_frequency = scattered.args
        index = spec_of(at)
        if by_frequency or spec_of(g).dtype is not spec_of(node).dtype or padding >= 0 and index != contiguous(index):
            return None
        return aten.index_put.default, (other, [at], _without(graph, node, g, at, padding), True)
    adds = scattered.target in ADDING or scattered.target in PUTS and scattered.args[3:4] == (True,)
    if not adds or scattered.kwargs or not is_zero(scattered.args[0]):
        return None
    return scattered.target, (other, *scattered.args[1:])


def _without(graph: fx.Graph, node: fx.Node, g: fx.Node, at: fx.Node, padding: int) -> fx.Node:
    """Gradients of tokens, zero for those of padding."""
    if padding < 0:
        return g
    spec, tokens = spec_of(g), contiguous(changed(spec_of(at), dtype=torch.bool))
    kept = call_before(graph, node, aten.ne.Scalar, (at, padding), tokens)
    kept = call_before(graph, node, aten.unsqueeze.default, (kept, -1), contiguous(changed(tokens, shape=(*tokens.shape, 1))))
    zero = infer_before(graph, node, aten.full.default, [], 0.0, dtype=spec.dtype, device=spec.device)
    return call_before(graph, node, aten.where.self, (kept, g, zero), spec)


def is_zero(node: object) -> bool:
    """Whether a node is a tensor of zeros."""
    if not isinstance(node, fx.Node) or node.target not in ZEROS:
        return False
    at = ZEROS[node.target]
    return at is None or node.args[at] == 0
