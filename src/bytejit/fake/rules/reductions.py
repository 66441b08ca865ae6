"""Shape rules of reductions, softmax and cumulative sums. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from bytejit.common.spec import reduced_dims, wrap_dim
from bytejit.fake.errors import NoFake

from .core import HasMeta, Meta, NeedsMeta, is_contiguous, new, row
from .views import needs_meta

_BOOL = torch.bool
Dims: TypeAlias = Sequence[int] | int | None


def reduced_shape(shape: tuple, dims: Dims, keepdim: bool) -> tuple:
    """The shape left after reducing `dims` (None or empty: all of them)."""
    gone = reduced_dims(dims, len(shape))
    if keepdim:
        return tuple(1 if i in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def _distinct(dims: Dims, rank: int) -> None:
    if dims is not None and not isinstance(dims, int) and len({wrap_dim(d, rank) for d in dims}) != len(dims):
        raise NeedsMeta


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


@row("sum", "prod")
def _sum(x: HasMeta, *, dtype: torch.dtype | None = None) -> Meta:
    m = x.m
    return new((), None, dtype or _sum_dtype(m.dtype), m.device)


@row("sum.dim_IntList")
def _sum_dim(x: HasMeta, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    m = x.m
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, dtype or _sum_dtype(m.dtype), m.device)


@row("mean")
def _mean(x: HasMeta, *, dtype: torch.dtype | None = None) -> Meta:
    return _mean_dim(x, None, dtype=dtype)


@row("mean.dim")
def _mean_dim(x: HasMeta, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    m = x.m
    dtype = dtype or m.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise NeedsMeta
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, dtype, m.device)


@row("amax", "amin")
def _amax(x: HasMeta, dim: Dims = (), keepdim: bool = False) -> Meta:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    _distinct(dim, len(m.shape))
    return new(reduced_shape(m.shape, dim, keepdim), None, m.dtype, m.device)


@row("logsumexp")
def _logsumexp(x: HasMeta, dim: Dims, keepdim: bool = False) -> Meta:
    if isinstance(dim, (list, tuple)) and not dim and x.m.shape:
        raise NoFake("logsumexp", "torch's meta kernel reduces no dimension, which its others refuse")
    raise NeedsMeta


@row("max", "min")
def _max(x: HasMeta) -> Meta:
    if 0 in x.m.shape:
        raise NeedsMeta
    return new((), None, x.m.dtype, x.m.device)


@row("max.dim", "min.dim")
def _max_dim(x: HasMeta, dim: int, keepdim: bool = False) -> tuple:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    shape = reduced_shape(m.shape, dim, keepdim)
    return new(shape, None, m.dtype, m.device), new(shape, None, torch.int64, m.device)


@row("argmax", "argmin")
def _argmax(x: HasMeta, dim: int | None = None, keepdim: bool = False) -> Meta:
    m = x.m
    if 0 in m.shape:
        raise NeedsMeta
    return new(reduced_shape(m.shape, dim, keepdim), None, torch.int64, m.device)


@row("any", "all")
def _any(x: HasMeta) -> Meta:
    return new((), None, torch.uint8 if x.m.dtype is torch.uint8 else _BOOL, x.m.device)


@row("any.dim", "all.dim", "any.dims", "all.dims")
def _any_dim(x: HasMeta, dim: Dims = None, keepdim: bool = False) -> Meta:
    m = x.m
    return new(reduced_shape(m.shape, dim, keepdim), None, torch.uint8 if m.dtype is torch.uint8 else _BOOL, m.device)


@row("log_sigmoid_forward")
def _log_sigmoid(x: HasMeta) -> tuple:
    """The CPU's kernel reads a contiguous copy, and is followed in that."""
    m = x.m
    if m.device.type != "cpu" or not m.dtype.is_floating_point:
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device), new(m.shape, None, m.dtype, m.device)


@row("var.correction", "std.correction")
def _var(x: HasMeta, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Meta:
    m = x.m
    if not m.dtype.is_floating_point:
        raise NeedsMeta
    return new(reduced_shape(m.shape, dim, keepdim), None, m.dtype, m.device)


@row("var_mean.correction", "std_mean.correction")
def _var_mean(x: HasMeta, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> tuple:
    return _var(x, dim, keepdim=keepdim), _var(x, dim, keepdim=keepdim)


@row("_softmax", "_log_softmax")
def _softmax(x: HasMeta, dim: int, half_to_float: bool) -> Meta:
    m = x.m
    if half_to_float or not m.dtype.is_floating_point:
        raise NeedsMeta
    wrap_dim(dim, len(m.shape))
    return new(m.shape, None, m.dtype, m.device)


@row("_safe_softmax")
def _safe_softmax(x: HasMeta, dim: int, dtype: torch.dtype | None = None) -> Meta:
    return _softmax(x, dim, dtype is not None and dtype is not x.m.dtype)


@row("cumsum")
def _cumsum(x: HasMeta, dim: int, *, dtype: torch.dtype | None = None) -> Meta:
    m = x.m
    wrap_dim(dim, len(m.shape))
    return new(m.shape, None if is_contiguous(m) else needs_meta(), dtype or _sum_dtype(m.dtype), m.device)
