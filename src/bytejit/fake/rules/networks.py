"""Shape rules of norms, pools, losses and dropout. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.dtypes import NARROW_DTYPES
from bytejit.common.spec import channels_last_stride

from .core import HasMeta, Meta, NeedsMeta, Operand, Size, alike, new, row
from .elementwise import like_stride
from .products import per_dim, suggests_channels_last
from .rearranged import like_last

_BOOL = torch.bool


@row("native_layer_norm", beside="results")
def _layer_norm(x: HasMeta, shape: Sequence[Size], weight: HasMeta, bias: Operand, eps: float) -> tuple:
    m = x.m
    kept = len(m.shape) - len(shape)
    if not shape:
        raise RuntimeError("Expected normalized_shape to be at least 1-dimensional")
    if kept < 0 or tuple(shape) != m.shape[kept:] or not m.dtype.is_floating_point:
        raise NeedsMeta
    if weight is not None and weight.m.dtype is not m.dtype:
        raise NeedsMeta
    if any(t is not None and tuple(t.m.shape) != tuple(shape) for t in (weight, bias)):
        raise NeedsMeta
    stats = m.shape[:kept] + (1,) * len(shape)
    if m.device.type != "cpu" and m.dtype in NARROW_DTYPES:
        stat_dtype = torch.float32
    else:
        stat_dtype = m.dtype
    out = new(m.shape, None, m.dtype, m.device)
    return out, new(stats, None, stat_dtype, m.device), new(stats, None, stat_dtype, m.device)


@row("cudnn_batch_norm", "miopen_batch_norm", beside="results")
def _batch_norm(
    x: HasMeta, weight: HasMeta, bias: Operand, mean: Operand, var: Operand, training: bool, momentum: float, eps: float
) -> tuple:
    m = x.m
    for written in (mean, var) if training else ():  # the schemas say nothing of it
        if written is not None:
            written.m.store.written += 1
    if m.device.type != "cpu" or len(m.shape) < 2 or (weight is not None and weight.m.dtype is not m.dtype):
        raise NeedsMeta
    if training and 0 in m.shape:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(m.shape)}")
    stats = (m.shape[1],) if training else (0,)
    out = new(m.shape, channels_last_stride(m.shape) if suggests_channels_last(m) else None, m.dtype, m.device)
    return out, new(stats, None, m.dtype, m.device), new(stats, None, m.dtype, m.device)


@row("native_batch_norm", "_native_batch_norm_legit", beside="results")
def _native_batch_norm(
    x: HasMeta, weight: HasMeta, bias: Operand, mean: Operand, var: Operand, training: bool, momentum: float, eps: float
) -> tuple:
    """torch's own kernels of a GPU give the result their input's strides."""
    m = x.m
    mixed = any(t is not None and t.m.dtype is not m.dtype for t in (weight, bias, mean, var))
    if m.device.type == "cpu" or mixed or len(m.shape) < 2 or m.dtype in NARROW_DTYPES or 0 in m.shape:
        return _batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    for written in (mean, var) if training else ():
        if written is not None:
            written.m.store.written += 1
    stats = m.shape[1:2] if training else (0,)
    out = new(m.shape, like_stride(m), m.dtype, m.device)
    return out, new(stats, None, m.dtype, m.device), new(stats, None, m.dtype, m.device)


@row("_native_batch_norm_legit_no_training", beside="results")
def _batch_norm_eval(
    x: HasMeta, weight: HasMeta, bias: Operand, mean: Operand, var: Operand, momentum: float, eps: float
) -> tuple:
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)


@row("_batch_norm_with_update")
def _batch_norm_with_update(
    x: HasMeta, weight: HasMeta, bias: Operand, mean: Operand, var: Operand, momentum: float, eps: float
) -> tuple:
    """Infers batch norm, with an empty fourth result: a reserve for cuDNN's backward pass."""
    made = _batch_norm(x, weight, bias, mean, var, True, momentum, eps)
    return *made, new((0,), None, torch.uint8, x.m.device)


def _window(size: Size, kernel: int, stride: Size, padding: int, dilation: int, ceil_mode: bool) -> Size:
    span = dilation * (kernel - 1) + 1
    count = (size + 2 * padding - span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count = count - 1
    if count < 1 or padding * 2 > kernel:
        raise NeedsMeta
    return count


def _pooled(
    x: HasMeta, kernel: Sequence[int], stride: Sequence[Size], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> Meta:
    m = x.m
    if len(m.shape) != 4 or 0 in m.shape or not m.dtype.is_floating_point:
        raise NeedsMeta
    kernel, padding, dilation = (per_dim(v, 2) for v in (kernel, padding, dilation))
    stride = per_dim(stride, 2) if stride else kernel
    shape = (
        *m.shape[:2],
        *(_window(m.shape[2 + i], kernel[i], stride[i], padding[i], dilation[i], ceil_mode) for i in range(2)),
    )
    return new(shape, channels_last_stride(shape) if suggests_channels_last(m) else None, m.dtype, m.device)


@row("max_pool2d_with_indices", beside="sizes")
def _max_pool2d(
    x: HasMeta,
    kernel: Sequence[int],
    stride: Sequence[Size] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple:
    out = _pooled(x, kernel, stride, padding, dilation, ceil_mode)
    return out, new(out.shape, out.stride, torch.int64, out.device)


@row("avg_pool2d", beside="sizes")
def _avg_pool2d(
    x: HasMeta,
    kernel: Sequence[int],
    stride: Sequence[Size] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Meta:
    return _pooled(x, kernel, stride, padding, (1,), ceil_mode)


@row("max_unpool2d")
def _max_unpool2d(x: HasMeta, indices: Operand, output_size: Sequence[Size]) -> Meta:
    """The CPU keeps the channels innermost where the input has them so."""
    m = x.m
    if (
        m.device.type != "cpu"
        or len(m.shape) != 4
        or 0 in m.shape
        or indices.m.dtype != torch.int64
        or len(output_size) != 2
        or not alike(m.shape, indices.m.shape)
    ):
        raise NeedsMeta
    return like_last(m, (*m.shape[:2], *output_size))


@row("nll_loss2d_forward", beside="sizes")
def _nll_loss2d(x: HasMeta, target: Operand, weight: HasMeta, reduction: int, ignore_index: int) -> tuple:
    """A loss a pixel is contiguous whatever the input's layout."""
    m = x.m
    if len(m.shape) != 4 or len(target.m.shape) != 3 or not alike((m.shape[0], *m.shape[2:]), target.m.shape):
        raise NeedsMeta
    return new(target.m.shape if reduction == 0 else (), None, m.dtype, m.device), new((), None, m.dtype, m.device)


@row("binary_cross_entropy_with_logits")
def _bce_with_logits(
    x: HasMeta, target: Operand, weight: HasMeta | None = None, pos_weight: Operand | None = None, reduction: int = 1
) -> Meta:
    """Eager computes in the memory of 1 - target: its dtype and layout are the loss's."""
    m = target.m
    if not m.dtype.is_floating_point or not alike(m.shape, x.m.shape) or m.device != x.m.device:
        raise NeedsMeta
    return new(m.shape, like_stride(m), m.dtype, m.device) if reduction == 0 else new((), None, m.dtype, m.device)


_SUM, _MAX = 0, 2  # modes of embedding bags


def _bags(
    training: bool,
    weight: HasMeta,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: HasMeta | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple:
    """The bag of each index is left out where the CPU's sum is one call of a library: of dense rows, without a padding index."""
    m, i, o = weight.m, indices.m, offsets.m
    if m.device.type != "cpu" or (len(m.shape), len(i.shape), len(o.shape)) != (2, 1, 1) or i.dtype is not o.dtype:
        raise NeedsMeta
    if per_sample_weights is not None and (mode != _SUM or per_sample_weights.m.dtype is not m.dtype):
        raise NeedsMeta
    count = o.shape[0] - 1 if include_last_offset else o.shape[0]
    dense = m.stride[1] == 1 and (per_sample_weights is None or per_sample_weights.m.stride[0] == 1)
    library = mode == _SUM and padding_idx < 0 and m.dtype is not torch.float64 and dense
    sizes = (count,) if training or mode != _SUM else o.shape
    return (
        new((count, m.shape[1]), None, m.dtype, m.device),
        new((0,) if library else i.shape, None, i.dtype, m.device),
        new(sizes, None, i.dtype, m.device),
        new((count, m.shape[1]) if mode == _MAX else sizes, None, i.dtype, m.device),
    )


@row("_embedding_bag")
def _embedding_bag(*args: Any, **options: Any) -> tuple:
    return _bags(True, *args, **options)


@row("_embedding_bag_forward_only")
def _embedding_bag_forward_only(*args: Any, **options: Any) -> tuple:
    return _bags(False, *args, **options)


@row("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(log_probs: HasMeta, targets: HasMeta, lengths: Any, target_lengths: Any, *rest: Any, **options: Any) -> tuple:
    """The losses, and what the backward pass reads: its size is of the longest target, which only the library knows."""
    m = log_probs.m
    operands = [x for x in (targets, lengths, target_lengths) if isinstance(x, torch.Tensor)]
    if any(x.m.device.type != "cpu" or x.m.dtype.is_floating_point for x in operands) or m.device.type != "cpu":
        raise NeedsMeta
    if len(m.shape) != 3 or m.dtype not in (torch.float32, torch.float64):
        raise NeedsMeta
    return new((m.shape[1],), None, m.dtype, m.device), new((0,), None, m.dtype, m.device)


@row("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(grad: HasMeta, log_probs: HasMeta, *rest: Any, **options: Any) -> Meta:
    m = log_probs.m
    return new(m.shape, None, m.dtype, m.device)


@row("native_dropout")
def _native_dropout(x: HasMeta, p: float, train: bool | None) -> tuple:
    m = x.m
    stride = like_stride(m)
    return new(m.shape, stride, m.dtype, m.device), new(m.shape, stride, _BOOL, m.device)


@row("_transformer_encoder_layer_fwd")
def _encoder_layer(src: HasMeta, *rest: Any) -> Meta:
    if len(src.m.shape) != 3:
        raise NeedsMeta
    return new(src.m.shape, None, src.m.dtype, src.m.device)


@row("_native_multi_head_attention")
def _attention_layer(
    query: HasMeta,
    key: HasMeta,
    value: HasMeta,
    embed_dim: int,
    heads: int,
    qkv_weight: HasMeta,
    qkv_bias: HasMeta,
    proj_weight: HasMeta,
    proj_bias: HasMeta,
    mask: Operand = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple:
    """The second result is the weights, where the caller asks for them."""
    m = query.m
    if len(m.shape) != 3 or len(key.m.shape) != 3:
        raise NeedsMeta
    batch, length, _ = m.shape
    weights = (batch, length, key.m.shape[1]) if average else (batch, heads, length, key.m.shape[1])
    return new(m.shape, None, m.dtype, m.device), new(weights, None, m.dtype, m.device) if need_weights else None


@row("_thnn_fused_gru_cell")
def _gru_cell(gates: HasMeta, hidden_gates: HasMeta, state: HasMeta, bias: Operand = None, hidden_bias: Operand = None) -> tuple:
    """The new state, and what the backward pass needs: five numbers for each of its. torch has no meta kernel."""
    m = state.m
    batch, width = m.shape
    return new(m.shape, None, m.dtype, m.device), new((batch, 5 * width), None, m.dtype, m.device)


@row("multi_margin_loss")
def _multi_margin(
    x: HasMeta,
    target: HasMeta,
    p: float = 1,
    margin: float = 1,
    weight: Operand = None,
    reduction: int = 1,
) -> Meta:
    """Infers the loss of one sample whose class has no dim: it has none. torch's meta kernel gives it one."""
    if reduction or target.m.shape or not (len(x.m.shape) < 2 or x.m.shape[0] == 1) or 0 in x.m.shape:
        raise NeedsMeta
    return new((), None, x.m.dtype, x.m.device)


@row("multilabel_margin_loss_forward")
def _multilabel_margin(x: HasMeta, target: HasMeta, reduction: int) -> tuple:
    """Infers the loss of one sample without a dim for it: it has none. torch's meta kernel gives it one."""
    if reduction or len(x.m.shape) > 1 or target.m.shape != x.m.shape or 0 in x.m.shape:
        raise NeedsMeta
    return new((), None, x.m.dtype, x.m.device), new(target.m.shape, None, x.m.dtype, x.m.device)


@row("huber_loss")
def _huber(x: HasMeta, target: HasMeta, reduction: int = 1, delta: float = 1.0) -> Meta:
    """Infers the loss of operands of two dtypes: the input's. torch's meta kernel promotes them."""
    m, t = x.m, target.m
    if m.dtype is t.dtype or not (m.dtype.is_floating_point and t.dtype.is_floating_point) or m.device != t.device:
        raise NeedsMeta
    if reduction:
        return new((), None, m.dtype, m.device)
    if not alike(m.shape, t.shape):
        raise NeedsMeta
    return new(m.shape, like_stride(m), m.dtype, m.device)


@row("rrelu_with_noise")
def _rrelu(x: HasMeta, noise: HasMeta, *rest: Any, **options: Any) -> Meta:
    """Row-major on the CPU, also where it draws nothing: torch's meta kernel says then what `leaky_relu` returns."""
    m = x.m
    if m.device.type != "cpu" or not m.dtype.is_floating_point or not alike(noise.m.shape, m.shape):
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)
