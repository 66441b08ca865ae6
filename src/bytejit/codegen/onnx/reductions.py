"""Rows of operators that reduce dimensions, or run along one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.codegen.loops.index import Index
from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.reduction_ops import REDUCTIONS, ReductionOp
from bytejit.common.spec import Spec, reduced_dims

from .pointwise import either, numeric
from .table import COMPUTED, FLOATS, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten


def axes_of(x: Tensor, dim: Any) -> list[int]:
    """The dimensions that a reduction takes: all of them for None and for no dimension."""
    return list(reduced_dims(dim, len(x.shape)))


def reduced(w: ModelWriter, kind: str, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    """A reduction of `x` over some axes; without axes `x` itself."""
    return w.op(kind, x, w.ints(axes), keepdims=int(keepdim)) if axes else x


@row(aten.sum.default, aten.sum.dim_IntList)
def sum(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The sum over some dimensions."""
    return reduced(w, "ReduceSum", w.to(x, out.dtype), axes_of(x, dim), keepdim)


@row(aten.mean.default, aten.mean.dim)
def mean(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The mean over some dimensions."""
    return reduced(w, "ReduceMean", w.to(x, out.dtype), axes_of(x, dim), keepdim)


@row(aten.prod.default)
def prod(w: ModelWriter, out: Spec, x: Tensor, dtype: Any = None) -> Tensor:
    """The product of all elements."""
    return reduced(w, "ReduceProd", w.to(x, out.dtype), axes_of(x, None), False)


@row(aten.prod.dim_int)
def prod_dim(w: ModelWriter, out: Spec, x: Tensor, dim: int, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The product along one dimension."""
    return reduced(w, "ReduceProd", w.to(x, out.dtype), axes_of(x, dim), keepdim)


def extreme(w: ModelWriter, kind: str, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The largest or smallest element; nan if one is nan. Engines treat nan differently, so the row writes this out."""
    axes = axes_of(x, dim)
    made = reduced(w, kind, x, axes, keepdim)
    if not x.dtype.is_floating_point or not axes:
        return made
    is_nan = w.to(w.op("IsNaN", x, dtype=torch.bool), torch.int32)
    return either(w, reduced(w, "ReduceMax", is_nan, axes, keepdim), math.nan, made, x.dtype)


NUMBERS = COMPUTED - {torch.bool}


@row(aten.amax.default, dtypes=NUMBERS)
def amax(w: ModelWriter, out: Spec, x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """The largest element along some dimensions."""
    return extreme(w, "ReduceMax", x, dim, keepdim)


@row(aten.amin.default, dtypes=NUMBERS)
def amin(w: ModelWriter, out: Spec, x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """The smallest element along some dimensions."""
    return extreme(w, "ReduceMin", x, dim, keepdim)


@row(aten.max.default, dtypes=NUMBERS)
def max_all(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """The largest of all elements."""
    return extreme(w, "ReduceMax", x, None, False)


@row(aten.min.default, dtypes=NUMBERS)
def min_all(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """The smallest of all elements."""
    return extreme(w, "ReduceMin", x, None, False)


def _position(kind: str) -> Callable:
    def write(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if not x.shape or dim is None and keepdim:
            raise Cannot("it has no dim")
        x, dim = (w.reshape(x, [-1]), 0) if dim is None else (x, dim % len(x.shape))
        return w.op(kind, x, axis=dim, keepdims=int(keepdim), dtype=torch.int64)

    return write


# of floats nan is the largest and the smallest in torch
row(aten.argmax.default, dtypes=INDEX_DTYPES)(_position("ArgMax"))
row(aten.argmin.default, dtypes=INDEX_DTYPES)(_position("ArgMin"))


def _truth(kind: str, op: ReductionOp) -> Callable:
    def write(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        held = w.to(w.to(x, torch.bool), torch.int32)
        return w.to(reduced(w, kind, held, list(op.dims(dim, len(x.shape))), keepdim), torch.bool)

    return write


row(aten.any.default, aten.any.dim, aten.any.dims)(_truth("ReduceMax", REDUCTIONS["any"]))
row(aten.all.default, aten.all.dim, aten.all.dims)(_truth("ReduceMin", REDUCTIONS["all"]))


# ---- spread --------------------------------------------------------------------------------------------------------
def spread(w: ModelWriter, x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The variance and the mean over some dimensions."""
    axes = axes_of(x, dim)
    count = math.prod((x.shape[d] for d in axes), start=1)
    correction = 1 if correction is None else correction
    if isinstance(count, Index) or not axes or count - correction <= 0:
        raise Cannot("the number of elements is known only at the call, or too small for the correction")
    wide = reduced(w, "ReduceMean", x, axes, True)
    off = w.op("Sub", x, wide)
    made = w.op("Div", reduced(w, "ReduceSum", w.op("Mul", off, off), axes, keepdim), count - correction)
    return made, wide if keepdim else reduced(w, "ReduceMean", x, axes, False)


@row(aten.var.correction, dtypes=FLOATS)
def var(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The variance over some dimensions."""
    return spread(w, x, dim, correction, keepdim)[0]


@row(aten.std.correction, dtypes=FLOATS)
def std(w: ModelWriter, out: Spec, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The standard deviation over some dimensions."""
    return w.op("Sqrt", spread(w, x, dim, correction, keepdim)[0])


@row(aten.var_mean.correction, dtypes=FLOATS)
def var_mean(w: ModelWriter, out: Any, x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple:
    """The variance and the mean over some dimensions."""
    return spread(w, x, dim, correction, keepdim)


@row(aten.linalg_vector_norm.default, dtypes=FLOATS)
def vector_norm(
    w: ModelWriter, out: Spec, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The norm of order 1 or 2 over some dimensions."""
    axes, x = axes_of(x, dim), w.to(x, out.dtype)
    if ord == 2:
        return w.op("Sqrt", reduced(w, "ReduceSum", w.op("Mul", x, x), axes, keepdim))
    if ord == 1:
        return reduced(w, "ReduceSum", w.op("Abs", x), axes, keepdim)
    raise Cannot(f"a norm of order {ord}")


# ---- along one dimension -------------------------------------------------------------------------------------------
@row(aten._softmax.default, dtypes=FLOATS)
def softmax(w: ModelWriter, out: Spec, x: Tensor, dim: int, *rest: Any) -> Tensor:
    """exp(x) over the sum of exp(x) along a dimension."""
    return _along(w, "Softmax", x, dim)


@row(aten._log_softmax.default, dtypes=FLOATS)
def log_softmax(w: ModelWriter, out: Spec, x: Tensor, dim: int, *rest: Any) -> Tensor:
    """The logarithm of the softmax."""
    return _along(w, "LogSoftmax", x, dim)


@row(aten._safe_softmax.default, dtypes=FLOATS)
def safe_softmax(w: ModelWriter, out: Spec, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The softmax; zero where all elements are -inf."""
    return zero_of_nothing(w, x, _along(w, "Softmax", x, dim), dim % len(x.shape))


def zero_of_nothing(w: ModelWriter, scores: Tensor, weights: Tensor, axis: int) -> Tensor:
    """A softmax; zero where all scores are -inf. Engines that start a maximum from the lowest finite float return that for
    them."""
    top = w.op("ReduceMax", scores, w.ints([axis]), keepdims=1)
    nothing = w.op("LessOrEqual", top, torch.finfo(scores.dtype).min, dtype=torch.bool)
    return either(w, nothing, 0, weights, scores.dtype)


def _along(w: ModelWriter, kind: str, x: Tensor, dim: int) -> Tensor:
    if not x.shape:
        raise Cannot("its tensor has no dimensions")
    return w.op(kind, x, axis=dim % len(x.shape))


@row(aten.logsumexp.default, dtypes=FLOATS)
def logsumexp(w: ModelWriter, out: Spec, x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))). The largest element is subtracted first, so that exp does not overflow."""
    axes = axes_of(x, dim)
    top = reduced(w, "ReduceMax", x, axes, True)
    top = either(w, w.op("IsInf", top, dtype=torch.bool), 0, top, x.dtype)
    total = reduced(w, "ReduceSum", w.op("Exp", w.op("Sub", x, top)), axes, keepdim)
    top = top if keepdim or not axes else w.op("Squeeze", top, w.ints(axes))
    return w.op("Add", w.op("Log", total), top)


@row(aten.cumsum.default, dtypes=COMPUTED)
def cumsum(w: ModelWriter, out: Spec, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The sums of the elements up to each."""
    if not x.shape:
        raise Cannot("its tensor has no dimensions")
    return w.op("CumSum", w.to(x, numeric(out.dtype)), w.to(dim % len(x.shape), torch.int64))
