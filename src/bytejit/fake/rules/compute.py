"""Rows of fake tensors for reductions, matmul, convolution and norms. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

import torch

from .core import (
    ROWS,
    Meta,
    NeedsMeta,
    alike,
    channels_last_stride,
    is_contiguous,
    memory_order,
    new,
    numel,
    row,
    wrap_dim,
)
from .views import like_stride, needs_meta

_BOOL = torch.bool


def reduced_shape(shape: tuple, dims, keepdim: bool) -> tuple:
    """The shape left after reducing `dims` (None or empty: all of them)."""
    rank = len(shape)
    gone = (
        range(rank)
        if dims is None or (not isinstance(dims, int) and len(dims) == 0)
        else {wrap_dim(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)}
    )
    if keepdim:
        return tuple(1 if i in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def _distinct(dims, rank: int) -> None:
    if dims is not None and not isinstance(dims, int) and len({wrap_dim(d, rank) for d in dims}) != len(dims):
        raise NeedsMeta


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


@row("sum", "prod")
def _sum(x, *, dtype=None) -> Meta:
    m = x.m
    return new((), None, dtype or _sum_dtype(m.dtype), m.device)


@row("sum.dim_IntList")
def _sum_dim(x, dim=None, keepdim=False, *, dtype=None) -> Meta:
    m = x.m
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, dtype or _sum_dtype(m.dtype), m.device)


@row("mean")
def _mean(x, *, dtype=None) -> Meta:
    return _mean_dim(x, None, dtype=dtype)


@row("mean.dim")
def _mean_dim(x, dim, keepdim=False, *, dtype=None) -> Meta:
    m = x.m
    dtype = dtype or m.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise NeedsMeta
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, dtype, m.device)


@row("amax", "amin")
def _amax(x, dim=(), keepdim=False) -> Meta:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, m.dtype, m.device)


@row("max", "min")
def _max(x) -> Meta:
    if 0 in x.m.shape:
        raise NeedsMeta
    return new((), None, x.m.dtype, x.m.device)


@row("max.dim", "min.dim")
def _max_dim(x, dim, keepdim=False) -> tuple:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    shape = reduced_shape(m.shape, dim, keepdim)
    return new(shape, None, m.dtype, m.device), new(shape, None, torch.int64, m.device)


@row("argmax", "argmin")
def _argmax(x, dim=None, keepdim=False) -> Meta:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    return new(reduced_shape(m.shape, dim, keepdim), None, torch.int64, m.device)


@row("any", "all")
def _any(x) -> Meta:
    return new((), None, torch.uint8 if x.m.dtype is torch.uint8 else _BOOL, x.m.device)


@row("any.dim", "all.dim", "any.dims", "all.dims")
def _any_dim(x, dim=None, keepdim=False) -> Meta:
    m = x.m
    return new(reduced_shape(m.shape, dim, keepdim), None, torch.uint8 if m.dtype is torch.uint8 else _BOOL, m.device)


@row("log_sigmoid_forward")
def _log_sigmoid(x) -> tuple:
    """The CPU's kernel reads a contiguous copy, and is followed in that."""
    m = x.m
    if m.device.type != "cpu" or not m.dtype.is_floating_point:
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device), new(m.shape, None, m.dtype, m.device)


@row("var.correction", "std.correction")
def _var(x, dim=None, *, correction=None, keepdim=False) -> Meta:
    m = x.m
    if not m.dtype.is_floating_point:
        raise NeedsMeta
    return new(reduced_shape(m.shape, dim, keepdim), None, m.dtype, m.device)


@row("var_mean.correction", "std_mean.correction")
def _var_mean(x, dim=None, *, correction=None, keepdim=False) -> tuple:
    return _var(x, dim, keepdim=keepdim), _var(x, dim, keepdim=keepdim)


@row("_softmax", "_log_softmax")
def _softmax(x, dim, half_to_float) -> Meta:
    m = x.m
    if half_to_float or not m.dtype.is_floating_point:
        raise NeedsMeta
    wrap_dim(dim, len(m.shape))
    return new(m.shape, None, m.dtype, m.device)


@row("cumsum")
def _cumsum(x, dim, *, dtype=None) -> Meta:
    m = x.m
    wrap_dim(dim, len(m.shape))
    return new(m.shape, None if is_contiguous(m) else needs_meta(), dtype or _sum_dtype(m.dtype), m.device)


# --- matmul and convolution -----------------------------------------------------------------------


def _matched(*tensors) -> None:
    first = tensors[0].m
    for t in tensors[1:]:
        if t.m.dtype is not first.dtype or t.m.device != first.device:
            raise NeedsMeta


@row("mm")
def _mm(a, b) -> Meta:
    x, y = a.m, b.m
    if len(x.shape) != 2 or len(y.shape) != 2:
        raise NeedsMeta
    if x.shape[1] != y.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and {y.shape[0]}x{y.shape[1]})"
        )
    _matched(a, b)
    return new((x.shape[0], y.shape[1]), None, x.dtype, x.device)


@row("addmm")
def _addmm(bias, a, b, *, beta=1, alpha=1) -> Meta:
    _matched(bias, a, b)
    out = _mm(a, b)
    shape = bias.m.shape
    pad = 2 - len(shape)
    if pad < 0 or any(n != 1 and n != out.shape[pad + i] for i, n in enumerate(shape)):
        raise NeedsMeta
    return out


@row("bmm")
def _bmm(a, b) -> Meta:
    x, y = a.m, b.m
    _matched(a, b)
    if len(x.shape) != 3 or len(y.shape) != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise NeedsMeta
    return new((x.shape[0], x.shape[1], y.shape[2]), None, x.dtype, x.device)


@row("baddbmm")
def _baddbmm(bias, a, b, *, beta=1, alpha=1) -> Meta:
    _matched(bias, a, b)
    return _bmm(a, b)


@row("mv")
def _mv(a, b) -> Meta:
    _matched(a, b)
    if len(a.m.shape) != 2 or len(b.m.shape) != 1 or a.m.shape[1] != b.m.shape[0]:
        raise NeedsMeta
    return new((a.m.shape[0],), None, a.m.dtype, a.m.device)


@row("dot", "vdot")
def _dot(a, b) -> Meta:
    _matched(a, b)
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


def _per_dim(values, count: int) -> list:
    return list(values) * count if len(values) == 1 and count > 1 else list(values)


@row("convolution")
def _convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> Meta:
    m, w = x.m, weight.m
    spatial = len(m.shape) - 2
    if len(w.shape) != len(m.shape) or spatial < 1 or 0 in m.shape or 0 in w.shape:
        raise NeedsMeta
    _matched(x, weight) if bias is None else _matched(x, weight, bias)
    if m.shape[1] != (w.shape[0] if transposed else w.shape[1] * groups):
        raise NeedsMeta
    stride, padding, dilation = (_per_dim(v, spatial) for v in (stride, padding, dilation))
    output_padding = _per_dim(output_padding, spatial)
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
    return new(shape, _convolution_stride(x, weight, shape, how), m.dtype, m.device)


def _convolution_stride(x, weight, shape: tuple, how: tuple) -> tuple | None:
    """Strides of a convolution's result. One over a line is eager's over an image of one row whose input was made contiguous;
    one over a volume lies as the library that torch chooses for it has it."""
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


@row("cudnn_grid_sampler")
def _cudnn_grid_sampler(x, grid) -> Meta:
    m, g = x.m, grid.m
    if len(m.shape) != 4 or len(g.shape) != 4 or g.shape[3] != 2:
        raise NeedsMeta
    _matched(x, grid)
    return new((m.shape[0], m.shape[1], g.shape[1], g.shape[2]), None, m.dtype, m.device)


# --- norms ----------------------------------------------------------------------------------------


@row("native_layer_norm")
def _layer_norm(x, shape, weight, bias, eps) -> tuple:
    m = x.m
    kept = len(m.shape) - len(shape)
    if kept < 0 or tuple(shape) != m.shape[kept:] or not m.dtype.is_floating_point:
        raise NeedsMeta
    if weight is not None and weight.m.dtype is not m.dtype:
        raise NeedsMeta
    if any(t is not None and tuple(t.m.shape) != tuple(shape) for t in (weight, bias)):
        raise NeedsMeta
    stats = m.shape[:kept] + (1,) * len(shape)
    if m.device.type != "cpu" and m.dtype in (torch.float16, torch.bfloat16):
        stat_dtype = torch.float32
    else:
        stat_dtype = m.dtype
    out = new(m.shape, None, m.dtype, m.device)
    return out, new(stats, None, stat_dtype, m.device), new(stats, None, stat_dtype, m.device)


@row("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit")
def _batch_norm(x, weight, bias, mean, var, training, momentum, eps) -> tuple:
    m = x.m
    if m.device.type != "cpu" or len(m.shape) < 2 or (weight is not None and weight.m.dtype is not m.dtype):
        raise NeedsMeta
    if training and 0 in m.shape:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(m.shape)}")
    stats = (m.shape[1],) if training else (0,)
    out = new(m.shape, channels_last_stride(m.shape) if suggests_channels_last(m) else None, m.dtype, m.device)
    return out, new(stats, None, m.dtype, m.device), new(stats, None, m.dtype, m.device)


@row("_native_batch_norm_legit_no_training")
def _batch_norm_eval(x, weight, bias, mean, var, momentum, eps) -> tuple:
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)


@row("_batch_norm_with_update")
def _batch_norm_with_update(x, weight, bias, mean, var, momentum, eps) -> tuple:
    """With a fourth result, memory for the backward pass of a GPU's library: none."""
    made = _batch_norm(x, weight, bias, mean, var, True, momentum, eps)
    return *made, new((0,), None, torch.uint8, x.m.device)


def _window(size, kernel, stride, padding, dilation, ceil_mode: bool):
    span = dilation * (kernel - 1) + 1
    count = (size + 2 * padding - span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count = count - 1
    if count < 1 or padding * 2 > kernel:
        raise NeedsMeta
    return count


def _pooled(x, kernel, stride, padding, dilation, ceil_mode) -> Meta:
    m = x.m
    if len(m.shape) != 4 or 0 in m.shape or not m.dtype.is_floating_point:
        raise NeedsMeta
    kernel, padding, dilation = (_per_dim(v, 2) for v in (kernel, padding, dilation))
    stride = _per_dim(stride, 2) if stride else kernel
    shape = (
        *m.shape[:2],
        *(_window(m.shape[2 + i], kernel[i], stride[i], padding[i], dilation[i], ceil_mode) for i in range(2)),
    )
    return new(shape, channels_last_stride(shape) if suggests_channels_last(m) else None, m.dtype, m.device)


@row("max_pool2d_with_indices")
def _max_pool2d(x, kernel, stride=(), padding=(0,), dilation=(1,), ceil_mode=False) -> tuple:
    out = _pooled(x, kernel, stride, padding, dilation, ceil_mode)
    return out, new(out.shape, out.stride, torch.int64, out.device)


@row("avg_pool2d")
def _avg_pool2d(
    x, kernel, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None
) -> Meta:
    return _pooled(x, kernel, stride, padding, (1,), ceil_mode)


@row("max_unpool2d")
def _max_unpool2d(x, indices, output_size) -> Meta:
    """The CPU keeps the channels innermost where the input has them so."""
    m = x.m
    if m.device.type != "cpu" or len(m.shape) != 4 or 0 in m.shape or indices.m.dtype != torch.int64 or len(
            output_size) != 2 or not alike(m.shape, indices.m.shape):
        raise NeedsMeta
    return _like_last(m, (*m.shape[:2], *output_size))


@row("nll_loss2d_forward")
def _nll_loss2d(x, target, weight, reduction, ignore_index) -> tuple:
    """A loss a pixel is contiguous whatever the input's layout."""
    m = x.m
    if len(m.shape) != 4 or len(target.m.shape) != 3 or not alike((m.shape[0], *m.shape[2:]), target.m.shape):
        raise NeedsMeta
    return new(target.m.shape if reduction == 0 else (), None, m.dtype, m.device), new((), None, m.dtype, m.device)


@row("binary_cross_entropy_with_logits")
def _bce_with_logits(x, target, weight=None, pos_weight=None, reduction=1) -> Meta:
    """Eager computes in the memory of 1 - target: its dtype and layout are the loss's."""
    m = target.m
    if not m.dtype.is_floating_point or not alike(m.shape, x.m.shape) or m.device != x.m.device:
        raise NeedsMeta
    return new(m.shape, like_stride(m), m.dtype, m.device) if reduction == 0 else new((), None, m.dtype, m.device)


@row("native_dropout")
def _native_dropout(x, p, train) -> tuple:
    m = x.m
    stride = like_stride(m)
    return new(m.shape, stride, m.dtype, m.device), new(m.shape, stride, _BOOL, m.device)


@row("native_dropout_backward")
def _native_dropout_backward(grad, mask, scale) -> Meta:
    """On the CPU a product like any other."""
    if grad.m.device.type != "cpu":
        raise NeedsMeta
    return ROWS["aten::mul.Tensor"](grad, mask)


@row("bernoulli_.float", "uniform_", "normal_")
def _random_in_place(x, *rest, **options) -> Meta:
    return x.m


@row("gather")
def _gather(x, dim, index, *, sparse_grad=False) -> Meta:
    m = index.m
    if m.dtype not in (torch.int64, torch.int32) or len(m.shape) != len(x.m.shape):
        raise NeedsMeta
    return new(m.shape, None, x.m.dtype, x.m.device)


@row("put_")
def _put(x, index, source, accumulate=False) -> Meta:
    if x.m.dtype != source.m.dtype or index.m.dtype != torch.int64 or numel(index.m.shape) != numel(source.m.shape):
        raise NeedsMeta
    return x.m


def _fft_strides(x, dims, shape: tuple, last: bool) -> tuple | None:
    """As the CPU's kernels have them: dimensions that are not transformed are the outer ones, and both groups keep their
    order in memory; with `last` the last of `dims` is the innermost."""
    m, rank = x.m, len(shape)
    if not dims or m.device.type != "cpu":
        raise NeedsMeta
    if not torch.backends.mkl.is_available():
        return None
    order = memory_order(m)
    if order is None:
        raise NeedsMeta
    dims = [d % rank for d in dims]
    end = dims[-1:] if last else []
    inner = [d for d in order if d in dims and d not in end] + end
    stride, step = [0] * rank, 1
    for d in reversed([d for d in order if d not in dims] + inner):
        stride[d] = step
        step = step * shape[d]
    return tuple(stride)


@row("_fft_c2c")
def _fft_c2c(x, dims, normalization, forward) -> Meta:
    return new(x.m.shape, _fft_strides(x, dims, x.m.shape, False), x.m.dtype, x.m.device)


@row("_fft_r2c")
def _fft_r2c(x, dims, normalization, onesided) -> Meta:
    m = x.m
    shape = _resized(m.shape, dims, m.shape[dims[-1]] // 2 + 1) if onesided and dims else m.shape
    return new(shape, _fft_strides(x, dims, shape, True), _COMPLEX[m.dtype] if m.dtype in _COMPLEX else _refused(), m.device)


@row("_fft_c2r")
def _fft_c2r(x, dims, normalization, last_dim_size) -> Meta:
    m = x.m
    shape = _resized(m.shape, dims, last_dim_size) if dims else m.shape
    return new(shape, _fft_strides(x, dims, shape, True), _REAL[m.dtype] if m.dtype in _REAL else _refused(), m.device)


def _resized(shape: tuple, dims, size) -> tuple:
    """`shape` with another size of the last of `dims`."""
    at = dims[-1] % len(shape)
    return (*shape[:at], size, *shape[at + 1:])


_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {c: r for r, c in _COMPLEX.items()}


def _refused():
    raise NeedsMeta


# --- moved elements: on the CPU the channels stay innermost, which torch's meta kernels do not know ---------------------


def _like_last(m: Meta, shape: tuple) -> Meta:
    if m.device.type != "cpu" or 0 in shape or not suggests_channels_last(m):
        raise NeedsMeta
    return new(tuple(shape), channels_last_stride(shape), m.dtype, m.device)


def _padded(m: Meta, pad, within: bool) -> Meta:
    shape = list(m.shape)
    for k in range(len(pad) // 2):
        low, high, n = pad[2 * k], pad[2 * k + 1], m.shape[-1 - k]
        if n + low + high < 1 or within and (low >= n or high >= n):
            raise NeedsMeta
        shape[-1 - k] = n + low + high
    return _like_last(m, tuple(shape))


@row("reflection_pad2d", "reflection_pad3d")
def _reflection_pad(x, pad) -> Meta:
    return _padded(x.m, pad, True)


@row("replication_pad2d", "replication_pad3d")
def _replication_pad(x, pad) -> Meta:
    return _padded(x.m, pad, False)


@row("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(x, groups) -> Meta:
    if len(x.m.shape) != 4 or groups <= 0 or x.m.shape[1] % groups:
        raise NeedsMeta
    return _like_last(x.m, x.m.shape)


@row("pixel_shuffle")
def _pixel_shuffle(x, r) -> Meta:
    m = x.m
    if len(m.shape) != 4 or r <= 0 or m.shape[1] % (r * r):
        raise NeedsMeta
    return _like_last(m, (m.shape[0], m.shape[1] // (r * r), m.shape[2] * r, m.shape[3] * r))


@row("roll")
def _roll(x, shifts, dims=()) -> Meta:
    if len(dims) != 1 or len(shifts) != 1 or not -len(x.m.shape) <= dims[0] < len(x.m.shape):
        raise NeedsMeta
    return _like_last(x.m, x.m.shape)
