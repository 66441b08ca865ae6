"""One row times a matrix on a GPU, as a token of a language model is: sums in kernels of our own.

x [K], w [N, K]   ->   sum over k of x[k] * w[n, k], in float32

Such a product takes as long as its weight takes to be read. A sum reads it as fast as the memory allows, and is fused as any
other: a norm or an activation before it, what follows it, a weight that is made of int8 numbers, products of the same row.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import GPU_FLOATS, aten, infer_before, is_static, replace, spec_of, specs_of

from .choices import Choices, choose_each
from .products import Product, match_product

LEAST = 1 << 18  # elements of a weight that is worth it


def take_row_products(graph: fx.Graph, choices: Choices) -> None:
    """Changes `graph`."""
    choose_each(graph, match_row, lambda found: True, lambda found, _: _as_sum(graph, found))


def match_row(node: fx.Node) -> Product | None:
    """A product of one row with a large matrix whose rows lie one after another; None for other nodes."""
    found = match_product(node)
    found = found and found.through_transpose()
    if found is None or found.batched or not all(isinstance(a, fx.Node) for a in (found.x, found.m)):
        return None
    specs = specs_of(node, found.x, found.m, *([] if found.b is None else [found.b]))
    if specs is None or not all(map(is_static, specs)) or len({s.dtype for s in specs}) != 1 or specs[0].dtype not in GPU_FLOATS:
        return None
    rows, n, k = found.shape
    right = found.transposed and spec_of(found.m).stride == (k, 1)
    return found if rows == 1 and right and n * k >= LEAST else None


def _as_sum(graph: fx.Graph, found: Product) -> None:
    node, call = found.node, partial(infer_before, graph, found.node)
    spec, k = spec_of(node), found.shape[2]
    x, w = call(aten.view.default, found.x, [k]), found.m
    if spec.dtype is not torch.float32:
        x, w = (call(aten._to_copy.default, t, dtype=torch.float32) for t in (x, w))
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, w, x), [1])
    if found.b is not None:
        total = call(aten.add.Tensor, total, found.b)
    if spec.dtype is not torch.float32:
        total = call(aten._to_copy.default, total, dtype=spec.dtype)
    replace(node, call(aten.view.default, total, list(spec.shape)))
