"""Rows of fake tensors for gradients: frequent ones, and those whose layout torch's meta kernels do not know. See `core.py`."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.spec import channels_last_stride

from .core import HasMeta, Meta, NeedsMeta, Operand, new, row
from .pointwise import as_operands
from .products import convolution_stride, matched, per_dim, spatial_dims, suggests_channels_last
from .rearranged import like_last, reflection_pad, replication_pad


@row("rrelu_with_noise_backward", beside="layout")
def _rrelu_backward(
    grad: Operand, x: HasMeta, noise: HasMeta, lower: float, upper: float, training: bool, is_result: bool
) -> Meta:
    return as_operands(noise if training and upper - lower > 1e-6 else x, grad)


@row("_dirichlet_grad", "_standard_gamma_grad")
def _of_drawn(*operands: HasMeta) -> Meta:
    """Row-major, whatever the operands are. Of tensors of one shape and dtype: torch has no meta kernel."""
    m = as_operands(*operands)
    return new(m.shape, None, m.dtype, m.device)


@row("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def _fractional_pool_backward(grad: HasMeta, x: HasMeta, kernel: Any, size: Any, indices: HasMeta) -> Meta:
    """Row-major, whatever the operands are."""
    if grad.m.dtype != x.m.dtype or grad.m.shape != (*x.m.shape[: -len(size)], *size) or indices.m.shape != grad.m.shape:
        raise NeedsMeta
    return new(x.m.shape, None, x.m.dtype, x.m.device)


@row("upsample_linear1d_backward", "upsample_bicubic2d_backward", beside="layout")
@row("_upsample_bicubic2d_aa_backward")
def _resized_smoothly_backward(grad: HasMeta, size: Any, input_size: Any, *rest: Any) -> Meta:
    """Row-major, whatever the layout of the gradient."""
    if grad.m.shape != (*input_size[:2], *size):
        raise NeedsMeta
    return new(tuple(input_size), None, grad.m.dtype, grad.m.device)


@row("upsample_bilinear2d_backward", "upsample_trilinear3d_backward", beside="layout")
@row("_upsample_bilinear2d_aa_backward")
def _resized_backward(grad: HasMeta, size: Any, input_size: Any, *rest: Any) -> Meta:
    """Laid out as the gradient."""
    m = _resized_smoothly_backward(grad, size, input_size)
    return new(m.shape, channels_last_stride(m.shape) if suggests_channels_last(grad.m) else None, m.dtype, m.device)


@row("_log_softmax_backward_data", beside="layout")
def _log_softmax_backward(grad: Operand, y: HasMeta, dim: int, dtype: torch.dtype) -> Meta:
    """Row-major, whatever the operands are."""
    m = y.m
    if not m.dtype.is_floating_point or not grad.m.dtype == m.dtype == dtype or grad.m.device != m.device:
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)


def _pad_backward(grad: HasMeta, x: HasMeta, made: Meta) -> Meta:
    """Laid out as the operand, of which `made` is the padded result."""
    if grad.m.dtype != x.m.dtype or grad.m.shape != made.shape:
        raise NeedsMeta
    return like_last(x.m, x.m.shape)


@row("reflection_pad2d_backward", "reflection_pad3d_backward", beside="layout")
def _reflection_pad_backward(grad: Operand, x: HasMeta, padding: Any) -> Meta:
    return _pad_backward(grad, x, reflection_pad(x, padding))


@row("replication_pad2d_backward", "replication_pad3d_backward", beside="layout")
def _replication_pad_backward(grad: Operand, x: HasMeta, padding: Any) -> Meta:
    return _pad_backward(grad, x, replication_pad(x, padding))


@row("native_group_norm_backward", beside="results")
def _group_norm_backward(
    grad: HasMeta, x: HasMeta, mean: HasMeta, rstd: HasMeta, weight: Any, n: Any, c: Any, hw: Any, group: int, mask: Any
) -> tuple:
    """The gradient of the input is laid out as the input."""
    m = x.m
    if grad.m.dtype != m.dtype or grad.m.shape != m.shape or weight is not None and weight.m.dtype != m.dtype:
        raise NeedsMeta
    if 0 not in m.shape and (m.device.type != "cpu" or weight is None):  # torch's own rule divides by the elements of a group
        raise NeedsMeta
    first = new(m.shape, channels_last_stride(m.shape) if suggests_channels_last(m) else None, m.dtype, m.device)
    made = (first, *_two(m.shape[1:2], m.dtype, m))
    return tuple(t if wanted else None for t, wanted in zip(made, mask))


@row("convolution_backward")
def _convolution_backward(
    grad: HasMeta,
    x: HasMeta,
    weight: HasMeta,
    bias_shape: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> tuple:
    """Infers the gradients. Those of input and weight are laid out as the result, whatever the layout of its gradient."""
    m, w, spatial = x.m, weight.m, spatial_dims(x, weight)
    matched(grad, x, weight)
    stride, padding, dilation, output_padding = (per_dim(v, spatial) for v in (stride, padding, dilation, output_padding))
    how = stride, padding, dilation, transposed, output_padding, groups
    shapes = m.shape, w.shape
    made = [new(s, convolution_stride(x, weight, s, how), m.dtype, m.device) if ok else None for s, ok in zip(shapes, mask)]
    return (*made, new(tuple(bias_shape), None, m.dtype, m.device) if mask[2] else None)


@row("glu_backward", beside="sizes")
def _glu_backward(grad: Operand, x: HasMeta, dim: int) -> Meta:
    """Row-major on the CPU, whatever the operands are."""
    m = x.m
    if m.device.type != "cpu" or grad.m.dtype != m.dtype or not m.dtype.is_floating_point:
        raise NeedsMeta
    if not -len(m.shape) <= dim < len(m.shape):
        raise NeedsMeta
    half = tuple(s // 2 if i == dim % len(m.shape) else s for i, s in enumerate(m.shape))
    if grad.m.shape != half or m.shape[dim] % 2:
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)


@row("native_batch_norm_backward", beside="results")
def _batch_norm_backward(
    grad: HasMeta,
    x: HasMeta,
    weight: HasMeta | None,
    running_mean: HasMeta | None,
    running_var: HasMeta | None,
    mean: HasMeta | None,
    rstd: HasMeta | None,
    train: bool,
    eps: float,
    mask: list[bool],
) -> tuple:
    """None for what the mask leaves out, which torch's meta kernel gives a tensor. In evaluation CUDA's kernel makes the gradient
    row-major, whatever the input is."""
    m = x.m
    known = m.device.type == "cpu" or m.device.type == "cuda" and not train and weight is not None and weight.m.dtype == m.dtype
    if not known or len(m.shape) < 2 or grad.m.dtype != m.dtype:
        raise NeedsMeta
    kept = next((t.m.dtype for t in (weight, mean if train else running_mean) if t is not None), m.dtype)
    last = m.device.type == "cpu" and suggests_channels_last(m)
    inner = new(m.shape, channels_last_stride(m.shape) if last else None, m.dtype, m.device)
    return tuple(made if wanted else None for made, wanted in zip((inner, *_two((m.shape[1],), kept, m)), mask))


def _two(shape: tuple, dtype: torch.dtype, m: Meta) -> tuple[Meta, Meta]:
    return new(shape, None, dtype, m.device), new(shape, None, dtype, m.device)


@row("native_layer_norm_backward", beside="results")
def _layer_norm_backward(
    grad: HasMeta,
    x: HasMeta,
    shape: list,
    mean: HasMeta,
    rstd: HasMeta,
    weight: HasMeta | None,
    bias: HasMeta | None,
    mask: list[bool],
) -> tuple:
    m = x.m
    if m.device.type != "cpu" or grad.m.dtype != m.dtype or any(t is not None and t.m.dtype != m.dtype for t in (weight, bias)):
        raise NeedsMeta
    made = (new(m.shape, None, m.dtype, m.device), *_two(tuple(shape), m.dtype, m))
    there = (True, weight is not None, bias is not None)
    return tuple(t if wanted and has else None for t, wanted, has in zip(made, mask, there))


@row("cudnn_grid_sampler_backward")
def _cudnn_grid_sampler_backward(x: HasMeta, grid: HasMeta, grad: HasMeta) -> tuple:
    """Both row-major. torch has no meta kernel."""
    return new(x.m.shape, None, x.m.dtype, x.m.device), new(grid.m.shape, None, grid.m.dtype, grid.m.device)


@row("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad: HasMeta, workspace: HasMeta, has_bias: bool) -> tuple:
    """Gradients of both sums of gates, of the state and of both biases. torch has no meta kernel."""
    m, (batch, width) = workspace.m, grad.m.shape
    gates = [new((batch, 3 * width), None, m.dtype, m.device) for _ in range(2)]
    biases = [new((3 * width,), None, m.dtype, m.device) if has_bias else None for _ in range(2)]
    return *gates, new(grad.m.shape, None, grad.m.dtype, grad.m.device), *biases


@row("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def _margin_loss_backward(grad: Operand, x: HasMeta, *rest: Any, **options: Any) -> Meta:
    """Row-major on the CPU, whatever the input is. torch has no meta kernels of these."""
    m = x.m
    if m.device.type != "cpu" or grad.m.dtype is not m.dtype or len(m.shape) not in (1, 2):
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)
