"""Biases that whoever reads a product adds. MKL writes the bias into the whole result before it multiplies, and reads it back
while it does. A kernel of ours that reads the result anyway adds the bias on the way, for next to nothing."""

from __future__ import annotations

import math

from torch import fx

from bytejit.codegen.aten.rewrite import VIEWS, aten, call_before, contiguous, is_static, replace, sole_user, spec_of
from bytejit.codegen.ops.calls import kind_of
from bytejit.common.spec import Spec

from .products import Product

SHOWN = VIEWS | {aten.permute.default, aten.transpose.int, aten.t.default}
KERNELS = frozenset({"pointwise", "composite", "reduce"})  # kinds of rows that become kernels of ours


def is_loose(found: Product) -> bool:
    """Whether the bias of a product can be added by its only reader, a kernel of ours."""
    if found.b is None or not is_static(spec_of(found.node)):
        return False
    last, user = found.node, sole_user(found.node)
    while user is not None and user.target in SHOWN:
        last, user = user, sole_user(user)
    if user is None:
        return False
    if user.target is aten.clone.default:  # a copy in another order
        return spec_of(user).stride != spec_of(last).stride
    return kind_of(user) in KERNELS


def loosen(graph: fx.Graph, found: Product) -> None:
    """Replace a product by one without its bias, and an addition. Changes `graph`."""
    node, made, weight = found.node, contiguous(spec_of(found.node)), found.weight
    x, spec, m = found.x, spec_of(found.x), found.m
    step = row_step(spec)
    if step is None:  # torch brings such an operand in order itself
        w = m if found.transposed else call_before(graph, node, aten.t.default, (m,), weight)
        bare = call_before(graph, node, aten.linear.default, (x, w), made)
    else:
        if found.transposed:
            m = call_before(graph, node, aten.t.default, (m,), replaced(weight, weight.shape[::-1], weight.stride[::-1]))
        rows, (n, k) = math.prod(spec.shape[:-1]), weight.shape
        if len(spec.shape) != 2:
            x = call_before(graph, node, aten.view.default, (x, [rows, k]), replaced(spec, (rows, k), (step, spec.stride[-1])))
        bare = call_before(graph, node, aten.mm.default, (x, m), replaced(made, (rows, n), (n, 1)))
        if len(made.shape) != 2:
            bare = call_before(graph, node, aten.view.default, (bare, list(made.shape)), made)
    replace(node, call_before(graph, node, aten.add.Tensor, (bare, found.b), made))


def replaced(spec: Spec, shape: tuple, stride: tuple) -> Spec:
    """A spec of another shape."""
    return Spec(shape, stride, spec.dtype, spec.device)


def row_step(spec: Spec) -> int | None:
    """Elements from one row to the next, all dims but the last taken as one; None where they cannot be."""
    step, rows = None, 1
    for n, s in list(zip(spec.shape[:-1], spec.stride[:-1]))[::-1]:
        if n != 1 and step is not None and s != step * rows:
            return None
        if n != 1:
            step, rows = s if step is None else step, rows * n
    return spec.shape[-1] if step is None else step
