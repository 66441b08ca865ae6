"""Rows of matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from bytejit.common.spec import Spec

from .create import filled
from .pointwise import either
from .reductions import zero_of_nothing
from .table import FLOATS, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten


@row(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, dtypes=FLOATS)
def matmul(w: ModelWriter, out: Spec, a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of a and b."""
    return w.op("MatMul", a, b)


def _sum(w: ModelWriter, bias: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * bias + alpha * product; a bias times zero is not read."""
    if alpha != 1:
        product = w.op("Mul", product, alpha)
    if beta == 0:
        return product
    return w.op("Add", product, bias if beta == 1 else w.op("Mul", bias, beta))


@row(aten.addmm.default, dtypes=FLOATS)
def addmm(w: ModelWriter, out: Spec, bias: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * bias + alpha * (a @ b)."""
    if beta == alpha == 1:
        return w.op("Gemm", a, b, bias)
    return _sum(w, bias, w.op("MatMul", a, b), beta, alpha)


@row(aten.baddbmm.default, dtypes=FLOATS)
def baddbmm(w: ModelWriter, out: Spec, bias: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * bias + alpha * (a @ b), for batches of matrices."""
    return _sum(w, bias, w.op("MatMul", a, b), beta, alpha)


@row(aten.linear.default, dtypes=FLOATS)
def linear(w: ModelWriter, out: Spec, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. Gemm takes the weight transposed, so that no transposed copy is needed."""
    if len(weight.shape) != 2:
        raise Cannot("its weight has not 2 dimensions")
    rows = x if len(x.shape) == 2 else w.reshape(x, [-1, weight.shape[1]])
    made = w.op("Gemm", rows, weight, bias, transB=1)
    return made if len(x.shape) == 2 else w.reshape(made, out.shape)


@row(aten.scaled_dot_product_attention.default, dtypes=FLOATS | {torch.bool})
def attention(
    w: ModelWriter,
    out: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * q @ k.T + mask) @ v. A row that is masked entirely is zero."""
    if dropout_p or enable_gqa and q.shape[-3] != k.shape[-3] or is_causal and attn_mask is not None:
        raise Cannot("it has dropout, grouped heads, or both a mask and is_causal")
    if scale is None and not isinstance(q.shape[-1], int):
        raise Cannot("its scale is known only at the call")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    order = list(range(len(k.shape)))
    order[-1], order[-2] = order[-2], order[-1]
    scores = w.op("MatMul", w.op("Mul", q, scale), w.transpose(k, order))
    if is_causal:
        ones = filled(w, Spec((q.shape[-2], k.shape[-2]), (0, 0), torch.bool, out.device), True)
        scores = either(w, w.op("Trilu", ones, w.to(0, torch.int64), upper=0), scores, -math.inf, q.dtype)
    elif attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = either(w, attn_mask, scores, -math.inf, q.dtype)
    elif attn_mask is not None:
        scores = w.op("Add", scores, w.to(attn_mask, q.dtype))
    weights = w.op("Softmax", scores, axis=-1)
    if attn_mask is not None:
        weights = zero_of_nothing(w, scores, weights, -1)
    return w.op("MatMul", weights, v)
