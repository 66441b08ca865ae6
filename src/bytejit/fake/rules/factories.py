"""Shape rules of copies, factories and joins. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.factory_ops import FACTORIES
from bytejit.common.spec import channels_last_stride, contiguous_stride, wrap_dim

from .core import (
    FakeStorage,
    HasMeta,
    Meta,
    NeedsMeta,
    Operand,
    Size,
    device_given,
    is_contiguous,
    is_one,
    new,
    numel,
    row,
)
from .elementwise import like_stride, promoted
from .products import suggests_channels_last

_Tensor = torch.Tensor


def formatted_stride(m: Meta, memory_format: torch.memory_format | None = None) -> tuple | None:
    """Strides of `empty_like(m, memory_format=...)`; None is contiguous."""
    if memory_format is None or memory_format is torch.preserve_format:
        return like_stride(m)
    return _laid_out(m.shape, memory_format)


def _laid_out(shape: tuple, memory_format: torch.memory_format | None) -> tuple | None:
    """Strides of a new tensor in a memory format; None is contiguous."""
    if memory_format is None or memory_format is torch.contiguous_format:
        return None
    if memory_format is torch.preserve_format or len(shape) != (4 if memory_format is torch.channels_last else 5):
        raise NeedsMeta
    return channels_last_stride(shape)


@row("clone", beside="layout")
def _clone(x: HasMeta, *, memory_format: torch.memory_format | None = None) -> Meta:
    m = x.m
    return new(m.shape, formatted_stride(m, memory_format), m.dtype, m.device)


@row("_to_copy", beside="layout")
@row("rand_like", "randn_like")
def _like(
    x: HasMeta,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
    **options: Any,
) -> Meta:
    m = x.m
    if layout not in (None, torch.strided):
        raise NeedsMeta
    return new(m.shape, formatted_stride(m, memory_format), dtype or m.dtype, device_given(device, m.device))


@row("randint_like", "randint_like.low_dtype")
def _like_drawn(x: HasMeta, *bounds: int, **options: Any) -> Meta:
    low, high = (0, *bounds)[-2:]
    if not low < high:
        raise NeedsMeta
    return _like(x, **options)


def _like_filled(x: HasMeta, value: Any, **options: Any) -> Meta:
    return _like(x, **options)


def _new(
    x: HasMeta,
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Meta:
    m = x.m
    return new(tuple(size), None, dtype or m.dtype, device_given(device, m.device))


def _new_filled(x: HasMeta, size: Sequence[Size], value: Any, **options: Any) -> Meta:
    return _new(x, size, **options)


def _made(
    size: Sequence[Size],
    stride: tuple | None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: Any,
) -> Meta:
    """A new tensor, of the default dtype and on the default device where none is given."""
    return new(tuple(size), stride, dtype or torch.get_default_dtype(), device_given(device, torch.get_default_device()))


@row("rand", "randn")
def _factory(
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Meta:
    if layout not in (None, torch.strided):
        raise NeedsMeta
    if any(isinstance(n, int) and n < 0 for n in size):
        raise NeedsMeta
    return _made(size, _laid_out(tuple(size), memory_format), dtype, device)


@row("empty_strided")
def _empty_strided(size: Sequence[Size], stride: Sequence[Size], **options: Any) -> Meta:
    return _made(size, tuple(stride), **options)


def _value_dtype(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.get_default_dtype()


def _filled(size: Sequence[Size], value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Meta:
    if isinstance(value, (complex, _Tensor)):
        raise NeedsMeta
    return _factory(size, dtype=dtype or _value_dtype(value), **options)


for _op in FACTORIES.values():
    _rules = (_factory, _like, _new) if _op.value is not None else (_filled, _like_filled, _new_filled)
    for _name, _rule in zip(_op.overloads, _rules):
        row(_name)(_rule)


@row("scalar_tensor", beside="sizes")
def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Meta:
    return _factory((), dtype=dtype, **options)


@row("arange", beside="sizes")
def _arange(end: Any, **options: Any) -> Meta:
    return _arange_step(0, end, 1, **options)


@row("arange.start", beside="sizes")
def _arange_start(start: Any, end: Any, **options: Any) -> Meta:
    return _arange_step(start, end, 1, **options)


@row("arange.start_step", beside="sizes")
def _arange_step(
    start: Any,
    end: Any,
    step: Size = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Meta:
    values = (start, end, step)
    if step == 0 or (end - start) * step < 0:
        raise NeedsMeta
    integer = all(isinstance(v, (int, torch.SymInt)) for v in values)
    if integer:
        count = -((start - end) // step)
    else:
        if not all(math.isfinite(v) for v in values) or (dtype is not None and not dtype.is_floating_point):
            raise NeedsMeta
        count = math.ceil((end - start) / step)
    if dtype is None:
        dtype = torch.int64 if integer else torch.get_default_dtype()
    return new((count,), None, dtype, device_given(device, torch.get_default_device()))


@row("cat", beside="sizes")
def _cat(tensors: Sequence[HasMeta], dim: int = 0) -> Meta:
    metas = [t.m for t in tensors]
    used = [m for m in metas if m.shape != (0,)]
    if not used or any(m.device != metas[0].device for m in metas):
        raise NeedsMeta
    rank = len(used[0].shape)
    if any(len(m.shape) != rank for m in used) or not rank:
        raise NeedsMeta
    dim = wrap_dim(dim, rank)
    first = used[0].shape
    rest = first[:dim] + first[dim + 1 :]
    if any(m.shape[:dim] + m.shape[dim + 1 :] != rest for m in used):
        raise NeedsMeta
    if not all(is_contiguous(m) for m in metas):
        raise NeedsMeta
    total = used[0].shape[dim]
    for m in used[1:]:
        total = total + m.shape[dim]
    dtype = metas[0].dtype if all(m.dtype is metas[0].dtype for m in metas) else promoted(tuple(tensors))
    shape = (*first[:dim], total, *first[dim + 1 :])
    last = all(map(either_way, metas)) and all(map(suggests_channels_last, metas))
    return new(shape, channels_last_stride(shape) if last else None, dtype, metas[0].device)


def either_way(m: Meta) -> bool:
    """Whether contiguous images may lie channels_last as well: of one channel, or of one pixel."""
    return len(m.shape) in (4, 5) and (is_one(m.shape[1]) or all(map(is_one, m.shape[2:])))


@row("embedding", beside="sizes")
def _embedding(weight: HasMeta, indices: Operand, *rest: Any) -> Meta:
    w, i = weight.m, indices.m
    if len(w.shape) != 2 or i.dtype not in INDEX_DTYPES:
        raise NeedsMeta
    return new((*i.shape, w.shape[1]), None, w.dtype, w.device)


@row("index_select", beside="sizes")
def _index_select(x: HasMeta, dim: int, index: HasMeta) -> Meta:
    m = x.m
    if len(index.m.shape) != 1 or not m.shape or index.m.dtype not in INDEX_DTYPES:
        raise NeedsMeta
    dim = wrap_dim(dim, len(m.shape))
    return new((*m.shape[:dim], index.m.shape[0], *m.shape[dim + 1 :]), None, m.dtype, m.device)


@row("empty_permuted")
def _empty_permuted(size: Sequence[Size], physical_layout: Sequence[int], **options: Any) -> Meta:
    stride, step = [0] * len(size), 1
    for d in reversed(physical_layout):
        stride[d], step = step, step * size[d]
    return _made(size, tuple(stride), **options)


@row("_new_zeros_with_same_feature_meta")
def _zeros_like_another(x: HasMeta, other: HasMeta, *, self_num_batch_dims: int = 0) -> Meta:
    """The zeros lie as `other` does, in a storage of as many elements, once for each place in the batch of `x`."""
    batch, like = x.m.shape[:self_num_batch_dims], other.m
    count = like.store.nbytes // like.dtype.itemsize
    outer = tuple(count * step for step in contiguous_stride(batch))
    store = FakeStorage(numel(batch) * count * x.m.dtype.itemsize)
    return Meta((*batch, *like.shape), (*outer, *like.stride), like.offset, x.m.dtype, x.m.device, store)
