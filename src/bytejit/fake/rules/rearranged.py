"""Shape rules of what moves elements: gather, put, Fourier transforms, pads, shuffles. See `fake/rules/core.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any, NoReturn

import torch

from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.spec import channels_last_stride, contiguous_stride

from .core import HasMeta, Meta, NeedsMeta, Operand, Size, is_one, memory_order, new, numel, row
from .elementwise import broadcast, like_stride, permuted_stride, sorted_dims
from .factories import formatted_stride
from .products import suggests_channels_last
from .view_shapes import viewed_stride


@row("bernoulli_.float", "uniform_")
def _random_in_place(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    return x.m


@row("normal_")
def _normal_in_place(x: HasMeta, mean: float = 0, std: float = 1, **options: Any) -> Meta:
    if not std >= 0 or not (x.m.dtype.is_floating_point or x.m.dtype.is_complex):
        raise NeedsMeta
    return x.m


@row("random_", "random_.to", "random_.from")
def _random_in_range(x: HasMeta, *bounds: int | None, **options: Any) -> Meta:
    low, high = bounds if len(bounds) == 2 else (0, *(bounds or (None,)))
    if x.m.dtype.is_complex or high is not None and (low is None or not low < high):
        raise NeedsMeta
    return x.m


@row("bernoulli_.Tensor")
def _bernoulli_in_place(x: HasMeta, p: HasMeta, **options: Any) -> Meta:
    if not p.m.dtype.is_floating_point or p.m.shape != x.m.shape or x.m.dtype.is_complex:
        raise NeedsMeta
    return x.m


@row("embedding_renorm_")
def _renormed_in_place(x: HasMeta, index: HasMeta, max_norm: float, norm_type: float) -> Meta:
    if len(x.m.shape) != 2 or not x.m.dtype.is_floating_point or index.m.dtype not in INDEX_DTYPES:
        raise NeedsMeta
    return x.m


def _of_a_copy(in_place: Callable) -> Callable:
    """The rule of what torch makes of an op in place: a copy that the op writes into."""

    def rule(x: HasMeta, *rest: Any, **options: Any) -> Meta:
        m = in_place(x, *rest, **options)
        return new(m.shape, formatted_stride(m), m.dtype, m.device)

    return rule


row("normal_functional")(_of_a_copy(_normal_in_place))
row("random", "random.to", "random.from")(_of_a_copy(_random_in_range))
row("bernoulli.Tensor")(_of_a_copy(_bernoulli_in_place))
row("embedding_renorm")(_of_a_copy(_renormed_in_place))


@row("angle")
def _angle(x: HasMeta) -> Meta:
    """Infers the angle of complex numbers: row-major, whatever the layout."""
    if not x.m.dtype.is_complex:
        raise NeedsMeta
    return new(x.m.shape, None, x.m.dtype.to_real(), x.m.device)


@row("_sample_dirichlet", "_standard_gamma", "poisson")
def _drawn_like(x: HasMeta, generator: torch.Generator | None = None) -> Meta:
    """Row-major, whatever the parameters are."""
    return new(x.m.shape, None, x.m.dtype, x.m.device)


@row("binomial")
def _binomial(count: HasMeta, prob: HasMeta, generator: torch.Generator | None = None) -> Meta:
    if not (count.m.dtype.is_floating_point and count.m.shape == prob.m.shape and count.m.dtype is prob.m.dtype):
        raise NeedsMeta
    return new(count.m.shape, None, count.m.dtype, count.m.device)


@row("gather", beside="sizes")
def _gather(x: HasMeta, dim: int, index: HasMeta, *, sparse_grad: bool = False) -> Meta:
    m = index.m
    rank = len(m.shape)
    if m.dtype not in INDEX_DTYPES or rank != len(x.m.shape):
        raise NeedsMeta
    # a larger index would read past x's end
    if 0 not in m.shape and any(m.shape[d] > x.m.shape[d] for d in range(rank) if d != dim % rank):
        raise NeedsMeta
    return new(m.shape, None, x.m.dtype, x.m.device)


@row("index.Tensor", beside="sizes")
def _index(x: HasMeta, indices: Sequence[HasMeta | None]) -> Meta:
    """Indices are integer tensors. The result has the strides that TensorIterator gives it from x and the indices."""
    m, rank = x.m, len(x.m.shape)
    given = {d: i.m for d, i in enumerate(indices) if i is not None}
    if not given or len(indices) > rank or 0 in m.shape or any(i.dtype not in INDEX_DTYPES for i in given.values()):
        raise NeedsMeta
    if any(i.device != m.device and (i.shape or i.device.type != "cpu") for i in given.values()):
        raise NeedsMeta
    picked = broadcast([i.shape for i in given.values()])
    kept = [d for d in range(rank) if d not in given]
    at = min(given) if max(given) - min(given) + 1 == len(given) else 0  # a gap between indices: the picked dims come first
    before, after = [m.shape[d] for d in kept[:at]], [m.shape[d] for d in kept[at:]]
    shape = (*before, *picked, *after)
    stride = (*(m.stride[d] for d in kept[:at]), *(0 for _ in picked), *(m.stride[d] for d in kept[at:]))
    operands = [Meta(shape, stride, 0, m.dtype, m.device, m.store)]
    for i in given.values():
        pad = len(picked) - len(i.shape)
        plain = contiguous_stride(picked)[pad:]  # the stride of a dim of size 1 may be a symbol: it is not asked
        spread = tuple(
            s if not is_one(n) else plain[d] if is_one(picked[pad + d]) else 0 for d, (n, s) in enumerate(zip(i.shape, i.stride))
        )
        wide = (*(1 for _ in before), *picked, *(1 for _ in after))
        own = viewed_stride(picked, (0,) * pad + spread, wide)
        operands.append(Meta(wide, contiguous_stride(wide) if own is None else own, 0, i.dtype, i.device, i.store))
    return new(shape, permuted_stride(shape, sorted_dims(shape, operands)), m.dtype, m.device)


@row("put_")
def _put(x: HasMeta, index: HasMeta, source: Operand, accumulate: bool = False) -> Meta:
    if x.m.dtype != source.m.dtype or index.m.dtype != torch.int64 or numel(index.m.shape) != numel(source.m.shape):
        raise NeedsMeta
    return x.m


@row("put")
def _put_apart(x: HasMeta, index: HasMeta, source: Operand, accumulate: bool = False) -> Meta:
    return _copied(_put(x, index, source))


@row("_conj_physical", beside="layout")
def _conj_physical(x: HasMeta) -> Meta:
    return _copied(x.m)


def _copied(m: Meta) -> Meta:
    return new(m.shape, like_stride(m), m.dtype, m.device)


def _asked_order(m: Meta) -> list[int]:
    """The dims, outermost first. Which of two strides is larger becomes a condition."""

    def outer_first(a: int, b: int) -> int:
        return -1 if m.stride[a] > m.stride[b] else 1 if m.stride[a] < m.stride[b] else 0

    return sorted(range(len(m.shape)), key=cmp_to_key(outer_first))


def _fft_strides(x: HasMeta, dims: Sequence[int], shape: tuple, last: bool) -> tuple | None:
    """Returns the strides of the CPU's kernels: dimensions that are not transformed are the outer ones, and both groups keep
    their order in memory; with `last` the last of `dims` is the innermost."""
    m, rank = x.m, len(shape)
    if not dims or m.device.type != "cpu":
        raise NeedsMeta
    if not torch.backends.mkl.is_available():
        return None
    order = memory_order(m) or _asked_order(m)
    dims = [d % rank for d in dims]
    end = dims[-1:] if last else []
    inner = [d for d in order if d in dims and d not in end] + end
    stride, step = [0] * rank, 1
    for d in reversed([d for d in order if d not in dims] + inner):
        stride[d] = step
        step = step * shape[d]
    return tuple(stride)


@row("_fft_c2c")
def _fft_c2c(x: HasMeta, dims: Sequence[int], normalization: int, forward: Any) -> Meta:
    return new(x.m.shape, _fft_strides(x, dims, x.m.shape, False), x.m.dtype, x.m.device)


@row("_fft_r2c")
def _fft_r2c(x: HasMeta, dims: Sequence[int], normalization: int, onesided: bool) -> Meta:
    m = x.m
    shape = _resized(m.shape, dims, m.shape[dims[-1]] // 2 + 1) if onesided and dims else m.shape
    return new(shape, _fft_strides(x, dims, shape, True), _COMPLEX[m.dtype] if m.dtype in _COMPLEX else _refused(), m.device)


@row("_fft_c2r")
def _fft_c2r(x: HasMeta, dims: Sequence[int], normalization: int, last_dim_size: Size) -> Meta:
    m = x.m
    shape = _resized(m.shape, dims, last_dim_size) if dims else m.shape
    return new(shape, _fft_strides(x, dims, shape, True), _REAL[m.dtype] if m.dtype in _REAL else _refused(), m.device)


def _resized(shape: tuple, dims: Sequence[int], size: Size) -> tuple:
    """`shape` with another size of the last of `dims`."""
    at = dims[-1] % len(shape)
    return (*shape[:at], size, *shape[at + 1 :])


_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {c: r for r, c in _COMPLEX.items()}


def _refused() -> NoReturn:
    raise NeedsMeta


# --- moved elements: on the CPU the channels stay innermost, which torch's meta kernels do not know ---------------------


def like_last(m: Meta, shape: tuple) -> Meta:
    if m.device.type != "cpu" or 0 in shape or not suggests_channels_last(m):
        raise NeedsMeta
    return new(tuple(shape), channels_last_stride(shape), m.dtype, m.device)


def _padded(m: Meta, pad: Sequence[Size], within: bool) -> Meta:
    shape = list(m.shape)
    for k in range(len(pad) // 2):
        low, high, n = pad[2 * k], pad[2 * k + 1], m.shape[-1 - k]
        if n + low + high < 1 or within and (low >= n or high >= n):
            raise NeedsMeta
        shape[-1 - k] = n + low + high
    return like_last(m, tuple(shape))


@row("reflection_pad2d", "reflection_pad3d", beside="layout")
def reflection_pad(x: HasMeta, pad: Sequence[Size]) -> Meta:
    return _padded(x.m, pad, True)


@row("replication_pad2d", "replication_pad3d", beside="layout")
def replication_pad(x: HasMeta, pad: Sequence[Size]) -> Meta:
    return _padded(x.m, pad, False)


@row("channel_shuffle", "native_channel_shuffle", beside="layout")
def _channel_shuffle(x: HasMeta, groups: int) -> Meta:
    if len(x.m.shape) != 4 or groups <= 0 or x.m.shape[1] % groups:
        raise NeedsMeta
    return like_last(x.m, x.m.shape)


@row("pixel_shuffle", beside="layout")
def _pixel_shuffle(x: HasMeta, r: int) -> Meta:
    m = x.m
    if len(m.shape) != 4 or r <= 0 or m.shape[1] % (r * r):
        raise NeedsMeta
    return like_last(m, (m.shape[0], m.shape[1] // (r * r), m.shape[2] * r, m.shape[3] * r))


@row("roll", beside="layout")
def _roll(x: HasMeta, shifts: Any, dims: Sequence[int] = ()) -> Meta:
    if len(dims) != 1 or len(shifts) != 1 or not -len(x.m.shape) <= dims[0] < len(x.m.shape):
        raise NeedsMeta
    return like_last(x.m, x.m.shape)


@row("nonzero_static")
def _nonzero_static(x: HasMeta, *, size: Size, fill_value: int = -1) -> Meta:
    """Row-major, where `nonzero` is laid out column by column."""
    if x.m.device.type != "cpu" or size < 0:
        raise NeedsMeta
    return new((size, len(x.m.shape)), None, torch.int64, x.m.device)
