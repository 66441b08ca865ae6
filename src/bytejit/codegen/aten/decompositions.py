"""Decompositions: ops written in terms of simpler ones, as eager computes them. A rule gets the recorder and the
op's arguments.

A rule returns fakes bound to the values, or NotImplemented to keep the op whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch

from bytejit.codegen.aten.graph_writer import GraphWriter
from bytejit.codegen.aten.mutation import CannotNormalise
from bytejit.codegen.ops.rows.recurrent import KEEPING
from bytejit.common.dtypes import NARROW_DTYPES
from bytejit.fake.tensor import Fake, infer

aten = torch.ops.aten
RULES: dict[object, Callable] = {}


def rule(*ops: Any) -> Callable:
    """Register the decomposition of ATen overloads."""

    def register(fn: Callable) -> Callable:
        for op in ops:
            RULES[op] = fn
        return fn

    return register


def _copied(view: Any) -> Callable:
    def copied(rec: GraphWriter, *args: Any, **kwargs: Any) -> Any:
        return rec.call(aten.clone.default, rec.call(view, *args, **kwargs), memory_format=torch.contiguous_format)

    return copied


for _view in (
    "permute",
    "expand",
    "slice.Tensor",
    "select.int",
    "unsqueeze",
    "transpose.int",
    "t",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "diagonal",
    "alias",
    "detach",
    "unfold",
    "view.dtype",
    "narrow",
    "as_strided",
):  # a view's value in memory of its own, contiguous
    _name, _, _overload = _view.partition(".")
    _of = getattr(aten, _name)
    _made = getattr(getattr(aten, f"{_name}_copy"), _overload or "default")
    RULES[_made] = _copied(getattr(_of, _overload or "default"))


def _per_channel(rec: GraphWriter, t: Fake, rank: int) -> Fake:
    return rec.call(aten.view.default, t, [1, t.m.shape[0]] + [1] * (rank - 2))


def _suggested(rec: GraphWriter, t: Fake) -> Fake:
    """`t` in the layout that eager's kernels give their results: as it is where its channels are innermost, else
    row-major."""
    formats = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}.get(len(t.m.shape), ())
    if any(t.is_contiguous(memory_format=f) for f in (torch.contiguous_format, *formats)):
        return t
    return rec.call(aten.clone.default, t, memory_format=torch.contiguous_format)


@overload
def _as(rec: GraphWriter, t: Fake, dtype: torch.dtype) -> Fake: ...
@overload
def _as(rec: GraphWriter, t: None, dtype: torch.dtype) -> None: ...
def _as(rec: GraphWriter, t: Fake | None, dtype: torch.dtype) -> Fake | None:
    return t if t is None or t.m.dtype is dtype else rec.call(aten._to_copy.default, t, dtype=dtype)


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(
    rec: GraphWriter,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    suggested: bool = False,
) -> tuple:
    """With alpha = weight / sqrt(var + eps): x * alpha + (bias - mean * alpha) in evaluation, as eager's kernel has it, so that
    both are known beside the weights; (x - mean) * alpha + bias in training, or a mean far from zero would cost digits.
    """
    m = x.m
    rank = len(m.shape)
    work = torch.float32 if m.dtype in NARROW_DTYPES else m.dtype
    wide = _as(rec, x, work)
    if training:
        dims = [d for d in range(rank) if d != 1]
        now_mean = rec.call(aten.mean.dim, wide, dims)  # by itself: var_mean's is not the same beside infinite numbers
        now_var = rec.call(aten.var.correction, wide, dims, correction=0)
        count = 1
        for d in dims:
            count = count * m.shape[d]
        if mean is not None:
            _running(rec, mean, now_mean, momentum, 1)
            _running(rec, var, now_var, momentum, count / max(count - 1, 1))
    else:
        now_mean, now_var = _as(rec, mean, work), _as(rec, var, work)
    scale = rec.call(aten.rsqrt.default, rec.call(aten.add.Tensor, now_var, eps))
    alpha = scale if weight is None else rec.call(aten.mul.Tensor, scale, _as(rec, weight, work))
    beta = _as(rec, bias, work)
    if training:
        wide = rec.call(aten.sub.Tensor, wide, _per_channel(rec, now_mean, rank))
    else:
        shift = rec.call(aten.mul.Tensor, now_mean, alpha)
        beta = rec.call(aten.neg.default, shift) if bias is None else rec.call(aten.sub.Tensor, beta, shift)
    out = rec.call(aten.mul.Tensor, wide, _per_channel(rec, alpha, rank))
    out = out if beta is None else rec.call(aten.add.Tensor, out, _per_channel(rec, beta, rank))
    out = _as(rec, out, m.dtype)
    if suggested or m.device.type == "cpu":  # a GPU's kernel gives the result its input's strides
        out = _suggested(rec, out)
    if training:
        mixed = any(t is not None and t.m.dtype is not m.dtype for t in (weight, bias, mean, var))
        kept = work if mixed or m.device.type != "cpu" else m.dtype  # as the CPU's kernel does
        return out, _as(rec, now_mean, kept), _as(rec, scale, kept)
    empty = infer(aten.new_empty.default, (x, [0]), {"dtype": work})
    return (
        out,
        rec.new(aten.new_empty.default, (x, [0]), {"dtype": work}, empty),
        rec.call(aten.new_empty.default, x, [0], dtype=work),
    )


def _running(rec: GraphWriter, kept: Fake, now: Fake, momentum: float, factor: float) -> None:
    """kept = (1 - momentum) * kept + momentum * factor * now, in place."""
    now = _as(rec, now, kept.m.dtype)
    old = rec.call(aten.mul.Tensor, kept, 1 - momentum)
    rec.call(aten.copy_.default, kept, rec.call(aten.add.Tensor, old, rec.call(aten.mul.Tensor, now, momentum * factor)))


@rule(aten.cudnn_batch_norm.default)
def batch_norm_cudnn(
    rec: GraphWriter, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple:
    """The same with cuDNN's fourth result, memory for its backward pass: none."""
    made = batch_norm(rec, x, weight, bias, mean, var, training, momentum, eps, suggested=True)
    return *made, rec.call(aten.new_empty.default, x, [0], dtype=torch.uint8)


@rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(rec: GraphWriter, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> tuple:
    """Batch norm by the batch's own statistics."""
    return batch_norm(rec, x, weight, bias, None, None, training, momentum, eps)


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_eval(rec: GraphWriter, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> tuple:
    """Batch norm by the running statistics."""
    return batch_norm(rec, x, weight, bias, mean, var, False, momentum, eps)


def _reduced(rec: GraphWriter, x: Fake, reduction: int) -> Fake:
    if reduction == 0:
        return x
    return rec.call(aten.mean.default if reduction == 1 else aten.sum.default, x)


@rule(aten.mse_loss.default)
def mse_loss(rec: GraphWriter, x: Any, target: Any, reduction: int = 1) -> Any:
    """The mean, sum or all of (x - target)^2."""
    d = rec.call(aten.sub.Tensor, x, target)
    return _reduced(rec, rec.call(aten.mul.Tensor, d, d), reduction)


@rule(aten.smooth_l1_loss.default)
def smooth_l1_loss(rec: GraphWriter, x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    """|d| - beta/2 beyond beta, d^2 / (2 beta) within."""
    if beta == 0:
        return NotImplemented
    d = rec.call(aten.abs.default, rec.call(aten.sub.Tensor, x, target))
    inner = rec.call(aten.div.Tensor, rec.call(aten.mul.Tensor, rec.call(aten.mul.Tensor, d, d), 0.5), beta)
    outer = rec.call(aten.sub.Tensor, d, 0.5 * beta)
    return _reduced(rec, rec.call(aten.where.self, rec.call(aten.lt.Scalar, d, beta), inner, outer), reduction)


@rule(aten.addcmul.default)
def addcmul(rec: GraphWriter, x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """x + value * a * b."""
    if not x.m.dtype.is_floating_point or not x.m.dtype == a.m.dtype == b.m.dtype:
        return NotImplemented
    product = rec.call(aten.mul.Tensor, a if value == 1 else rec.call(aten.mul.Tensor, a, value), b)
    return rec.call(aten.add.Tensor, x, product)


@rule(aten.addcdiv.default)
def addcdiv(rec: GraphWriter, x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """x + value * a / b."""
    if not x.m.dtype.is_floating_point or not x.m.dtype == a.m.dtype == b.m.dtype:
        return NotImplemented
    quotient = rec.call(aten.div.Tensor, a if value == 1 else rec.call(aten.mul.Tensor, a, value), b)
    return rec.call(aten.add.Tensor, x, quotient)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(rec: GraphWriter, x: Any, other: Any, alpha: Any = 1) -> Any:
    """other - alpha * x. Integers are not rewritten: they would be negated before they have the result's dtype."""
    if not x.m.dtype.is_floating_point:
        return NotImplemented
    if alpha != 1:
        x = rec.call(aten.mul.Tensor, x, alpha)
    if isinstance(other, Fake):
        return rec.call(aten.sub.Tensor, other, x)
    return rec.call(aten.add.Tensor, rec.call(aten.neg.default, x), other)


@rule(aten._euclidean_dist.default)
def euclidean_dist(rec: GraphWriter, x: Any, y: Any) -> Any:
    """sqrt(|x|^2 - 2 x y + |y|^2) as one product, as eager computes it: [-2 x, |x|^2, 1] times [y, 1, |y|^2]."""

    def beside(t: Fake, first: Fake, norm_last: bool) -> Fake:
        norm = rec.call(aten.sum.dim_IntList, rec.call(aten.mul.Tensor, t, t), [-1], True)
        ends = [norm, rec.call(aten.ones_like.default, norm)]
        return rec.call(aten.cat.default, [first, *(ends[::-1] if norm_last else ends)], -1)

    left, right = beside(x, rec.call(aten.mul.Tensor, x, -2), False), beside(y, y, True)
    squared = rec.call(aten.matmul.default, left, rec.call(aten.transpose.int, right, -2, -1))
    return rec.call(aten.sqrt.default, rec.call(aten.clamp_min.default, squared, 0))


@rule(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def count_nonzero(rec: GraphWriter, x: Any, dim: Any = None) -> Any:
    """The sum of what is not zero."""
    some = rec.call(aten.ne.Scalar, x, 0)
    if dim is None:
        return rec.call(aten.sum.default, some)
    return rec.call(aten.sum.dim_IntList, some, [dim] if type(dim) is int else dim)


@rule(aten.nansum.default)
def nansum(rec: GraphWriter, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The sum with nan as zero."""
    if not x.m.dtype.is_floating_point:
        return NotImplemented
    kept = rec.call(aten.where.ScalarSelf, rec.call(aten.isnan.default, x), 0.0, x)
    return rec.call(aten.sum.dim_IntList, kept, dim, keepdim, dtype=dtype)


@rule(aten.aminmax.default)
def aminmax(rec: GraphWriter, x: Any, *, dim: Any = None, keepdim: bool = False) -> tuple:
    """Both ends."""
    dims = [] if dim is None else [dim]
    return rec.call(aten.amin.default, x, dims, keepdim), rec.call(aten.amax.default, x, dims, keepdim)


@rule(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(rec: GraphWriter, x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    """(1 - target) * x - (1 + (pos_weight - 1) * target) * log_sigmoid(x), as eager computes it. Of mixed dtypes eager writes
    each step into the first's memory: that stays one op."""
    if any(t is not None and t.m.dtype is not x.m.dtype for t in (target, weight, pos_weight)):
        return NotImplemented
    log = rec.call(aten.log_sigmoid_forward.default, x)[0]
    if pos_weight is not None:
        more = rec.call(aten.mul.Tensor, rec.call(aten.sub.Tensor, pos_weight, 1), target)
        log = rec.call(aten.mul.Tensor, log, rec.call(aten.add.Tensor, more, 1))
    loss = rec.call(aten.sub.Tensor, rec.call(aten.mul.Tensor, rec.call(aten.rsub.Scalar, target, 1), x), log)
    return _reduced(rec, loss if weight is None else rec.call(aten.mul.Tensor, loss, weight), reduction)


def _all_but(rec: GraphWriter, x: Fake, dim: int) -> Fake:
    """The sums over all dimensions but one, which keep their places."""
    dims = [d for d in range(len(x.m.shape)) if d != dim]
    return rec.call(aten.sum.dim_IntList, x, dims, True) if dims else x


@rule(aten._weight_norm_interface.default)
def weight_norm(rec: GraphWriter, v: Any, g: Any, dim: int = 0) -> Any:
    """v * (g / |v|), and the norms."""
    if dim not in (0, len(v.m.shape) - 1) or not v.m.dtype.is_floating_point:
        return NotImplemented
    work = torch.float32 if v.m.dtype in NARROW_DTYPES else v.m.dtype
    wide = _as(rec, v, work)
    norms = rec.call(aten.sqrt.default, _all_but(rec, rec.call(aten.mul.Tensor, wide, wide), dim))
    out = rec.call(aten.mul.Tensor, wide, rec.call(aten.div.Tensor, _as(rec, g, work), norms))
    return _as(rec, out, v.m.dtype), norms


@rule(aten._weight_norm_interface_backward.default)
def weight_norm_backward(rec: GraphWriter, grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """With s = sum(grad * v): (g / norm) * (grad - v * s / norm^2), and s / norm."""
    if dim not in (0, len(v.m.shape) - 1) or not v.m.dtype.is_floating_point:
        return NotImplemented
    work = torch.float32 if v.m.dtype in NARROW_DTYPES else v.m.dtype
    grad, wide, scale, norms = (_as(rec, t, work) for t in (grad, v, g, norms))
    along = _all_but(rec, rec.call(aten.mul.Tensor, grad, wide), dim)
    part = rec.call(aten.div.Tensor, along, rec.call(aten.mul.Tensor, norms, norms))
    rest = rec.call(aten.sub.Tensor, grad, rec.call(aten.mul.Tensor, wide, part))
    of_v = rec.call(aten.mul.Tensor, rec.call(aten.div.Tensor, scale, norms), rest)
    return _as(rec, of_v, v.m.dtype), _as(rec, rec.call(aten.div.Tensor, along, norms), g.m.dtype)


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(rec: GraphWriter, g: Any, x: Any, buffer: Any) -> Any:
    """g * sigmoid(-x); without the buffer that eager keeps for it."""
    return rec.call(aten.mul.Tensor, g, rec.call(aten.sigmoid.default, rec.call(aten.neg.default, x)))


@rule(aten.as_strided_scatter.default)
def as_strided_scatter(rec: GraphWriter, x: Any, src: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    """Counts from the start of the storage, where a graph's values have none but their own elements."""
    if x.m.offset != 0:
        raise CannotNormalise("as_strided_scatter: into a tensor that does not begin where its storage does")
    return NotImplemented


@rule(aten.mkldnn_rnn_layer.default)
def recurrent_layer(rec: GraphWriter, *args: Any) -> Any:
    """Where autograd follows it: the form that keeps what its backward pass reads."""
    if not torch.is_grad_enabled() or not any(isinstance(a, Fake) and a.requires_grad for a in args):
        return NotImplemented
    return rec.new(KEEPING, args, {}, infer(aten.mkldnn_rnn_layer.default, args, {}))


@rule(aten.view_copy.default)
def view_copy(rec: GraphWriter, x: Any, size: Any) -> Any:
    """Takes any layout, unlike the view."""
    made = rec.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return rec.call(aten.view.default, made, size)


@rule(aten.rrelu_with_noise_functional.default)
def rrelu(
    rec: GraphWriter, x: Any, noise: Any, lower: Any = 1 / 8, upper: Any = 1 / 3, training: bool = False, **more: Any
) -> Any:
    """Row-major as what eager calls, where this op is laid out as x. It draws nothing in evaluation."""
    if training:
        out, noise = rec.new(aten.rrelu_with_noise_functional.default, (x, noise, lower, upper, True), more)
    else:
        out = rec.call(aten.leaky_relu.default, x, (lower + upper) / 2)
    return (out if out.is_contiguous() else rec.call(aten.clone.default, out, memory_format=torch.contiguous_format)), noise
