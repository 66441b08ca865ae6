"""Products of few terms and many results, on a GPU: distances of points in space, outer products.

x @ y with K terms   ->   x[:, 0] * y[0] + ... + x[:, K - 1] * y[K - 1]

A library writes the result, which is much larger than both operands, and whatever follows reads it again. The terms are
pointwise: they are computed where they are read, and a minimum over the distances of all pairs stores no distances.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import fx

from bytejit.common.dtypes import WIDE_DTYPES

from .rewrite import aten, contiguous, infer_before, is_static, replace, spec_of, spec_or_none, specs_of

MOST_TERMS = 8
LEAST = 1 << 16  # results
LARGER = 16  # times as many results as elements of the operands
PRODUCTS = (aten.mm.default, aten.bmm.default)
FLOATS = WIDE_DTYPES  # whose products need no wider sum


def expand_thin_products(graph: fx.Graph, choices: Any = None) -> None:
    """Changes `graph`."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in PRODUCTS and _is_thin(node):
            _expand(graph, node)


def _is_thin(node: fx.Node) -> bool:
    specs = specs_of(node, *node.args)
    if specs is None or not all(map(is_static, specs)) or specs[0].dtype not in FLOATS or specs[0] != contiguous(specs[0]):
        return False
    made, *operands = (math.prod(s.shape) for s in specs)
    return 0 < specs[1].shape[-1] <= MOST_TERMS and made >= LEAST and made >= LARGER * sum(operands)


def _expand(graph: fx.Graph, node: fx.Node) -> None:
    call, (x, y) = partial(infer_before, graph, node), node.args
    last = len(spec_of(node).shape) - 1
    total = None
    for k in range(spec_of(x).shape[-1]):
        term = call(aten.mul.Tensor, call(aten.slice.Tensor, x, last, k, k + 1), call(aten.slice.Tensor, y, last - 1, k, k + 1))
        total = term if total is None else call(aten.add.Tensor, total, term)
    if spec_or_none(total) != spec_of(node):
        total = call(aten.clone.default, total, memory_format=torch.contiguous_format)
    replace(node, total)
