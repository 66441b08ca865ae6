"""Shape rules of products of matrices and of convolutions. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.spec import channels_last_stride

from .core import HasMeta, Meta, NeedsMeta, Number, Operand, Size, new, row


def matched(*tensors: HasMeta) -> None:
    first = tensors[0].m
    for t in tensors[1:]:
        if t.m.dtype is not first.dtype or t.m.device != first.device:
            raise NeedsMeta


@row("mm")
def _mm(a: Operand, b: Operand) -> Meta:
    x, y = a.m, b.m
    if len(x.shape) != 2 or len(y.shape) != 2:
        raise NeedsMeta
    if x.shape[1] != y.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and {y.shape[0]}x{y.shape[1]})")
    matched(a, b)
    return new((x.shape[0], y.shape[1]), None, x.dtype, x.device)


@row("addmm")
def _addmm(bias: Operand, a: Operand, b: Operand, *, beta: Number = 1, alpha: Number = 1) -> Meta:
    matched(bias, a, b)
    out = _mm(a, b)
    shape = bias.m.shape
    pad = 2 - len(shape)
    if pad < 0 or any(n != 1 and n != out.shape[pad + i] for i, n in enumerate(shape)):
        raise NeedsMeta
    return out


@row("bmm")
def _bmm(a: Operand, b: Operand) -> Meta:
    x, y = a.m, b.m
    matched(a, b)
    if len(x.shape) != 3 or len(y.shape) != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise NeedsMeta
    return new((x.shape[0], x.shape[1], y.shape[2]), None, x.dtype, x.device)


@row("baddbmm")
def _baddbmm(bias: Operand, a: Operand, b: Operand, *, beta: Number = 1, alpha: Number = 1) -> Meta:
    matched(bias, a, b)
    return _bmm(a, b)


@row("mv")
def _mv(a: Operand, b: Operand) -> Meta:
    matched(a, b)
    if len(a.m.shape) != 2 or len(b.m.shape) != 1 or a.m.shape[1] != b.m.shape[0]:
        raise NeedsMeta
    return new((a.m.shape[0],), None, a.m.dtype, a.m.device)


@row("dot", "vdot")
def _dot(a: Operand, b: Operand) -> Meta:
    matched(a, b)
    if len(a.m.shape) != 1 or a.m.shape != b.m.shape:
        raise NeedsMeta
    return new((), None, a.m.dtype, a.m.device)


def suggests_channels_last(m: Meta) -> bool:
    """torch's `suggest_memory_format`: channels_last strides, where an ambiguous 1x1 image counts as contiguous."""
    if len(m.shape) not in (4, 5) or m.stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(m.shape) - 1, 1, -1), 0):
        if m.shape[dim] == 0 or m.stride[dim] < least or (dim == 0 and least == m.stride[1]):
            return False
        least = m.stride[dim] * m.shape[dim] if m.shape[dim] > 1 else m.stride[dim]
    return True


def per_dim(values: Any, count: int) -> list:
    return list(values) * count if len(values) == 1 and count > 1 else list(values)


@row("convolution")
def _convolution(
    x: HasMeta,
    weight: HasMeta,
    bias: Operand,
    stride: Sequence[Size],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Meta:
    m, w, spatial = x.m, weight.m, spatial_dims(x, weight)
    matched(x, weight) if bias is None else matched(x, weight, bias)
    if transposed and m.shape[1] != w.shape[0]:  # torch's meta kernel does not look
        raise RuntimeError(f"a transposed convolution with {w.shape[0]} channels got {m.shape[1]}")
    if not transposed and m.shape[1] != w.shape[1] * groups:
        raise NeedsMeta
    stride, padding, dilation = (per_dim(v, spatial) for v in (stride, padding, dilation))
    output_padding = per_dim(output_padding, spatial)
    sizes = []
    for i in range(spatial):
        span = dilation[i] * (w.shape[2 + i] - 1) + 1
        n = m.shape[2 + i]
        size = (
            (n - 1) * stride[i] - 2 * padding[i] + span + output_padding[i]
            if transposed
            else (n + 2 * padding[i] - span) // stride[i] + 1
        )
        if size <= 0 or n + 2 * padding[i] < span and not transposed:
            raise NeedsMeta
        sizes.append(size)
    shape = (m.shape[0], w.shape[1] * groups if transposed else w.shape[0], *sizes)
    how = stride, padding, dilation, transposed, output_padding, groups
    return new(shape, convolution_stride(x, weight, shape, how), m.dtype, m.device)


def spatial_dims(x: HasMeta, weight: HasMeta) -> int:
    """Returns how many dimensions a convolution goes over. Raises: NeedsMeta where the operands are none of one, or have no
    elements."""
    m, w = x.m, weight.m
    if len(w.shape) != len(m.shape) or len(m.shape) < 3 or 0 in m.shape or 0 in w.shape:
        raise NeedsMeta
    return len(m.shape) - 2


def convolution_stride(x: HasMeta, weight: HasMeta, shape: tuple, how: tuple) -> tuple | None:
    """Strides of a convolution's result, and of its gradients: the library that torch chooses makes all of them alike. Those over
    a line are eager's over an image of one row whose input was made contiguous."""
    m, w = x.m, weight.m
    if len(shape) == 3:
        steps = *w.stride[:2], w.shape[2] * w.stride[2], w.stride[2]
        image = Meta((*w.shape[:2], 1, w.shape[2]), steps, 0, w.dtype, w.device, w.store)
        if m.device.type != "cpu" or not suggests_channels_last(image):
            return None
        n, c, _, width = channels_last_stride((*shape[:2], 1, shape[2]))
        return n, c, width
    if not (suggests_channels_last(m) or suggests_channels_last(w)):
        return None
    if len(shape) == 5 and m.device.type == "cpu" and all(type(n) is int for n in (*m.shape, *w.shape)):
        library = torch._C._select_conv_backend(x, weight, None, *how, None)
        if torch._C._conv_determine_backend_memory_format(x, weight, library) is torch.contiguous_format:
            return None
    return channels_last_stride(shape)


@row("cudnn_grid_sampler", beside="sizes")
def _cudnn_grid_sampler(x: HasMeta, grid: HasMeta) -> Meta:
    m, g = x.m, grid.m
    if len(m.shape) != 4 or len(g.shape) != 4 or g.shape[3] != 2:
        raise NeedsMeta
    matched(x, grid)
    return new((m.shape[0], m.shape[1], g.shape[1], g.shape[2]), None, m.dtype, m.device)


@row("_trilinear")
def _trilinear(
    a: Operand,
    b: Operand,
    c: Operand,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Meta:
    matched(a, b, c)
    sizes: dict[int, Size] = {}
    for x, expanded in ((a, expand1), (b, expand2), (c, expand3)):
        dims = [d for d in range(len(x.m.shape) + len(expanded)) if d not in expanded]
        for d, n in zip(dims, x.m.shape):
            if sizes.setdefault(d, n) != n:
                raise NeedsMeta
    return new(tuple(sizes[d] for d in sorted(sizes) if d not in sumdim), None, a.m.dtype, a.m.device)
