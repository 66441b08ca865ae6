"""Shape rules of reductions, softmax and cumulative sums, made of the rows of `common/reduction_ops.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.reduction_ops import REDUCTIONS, Dims, ReductionOp
from bytejit.common.spec import wrap_dim
from bytejit.fake.rules.errors import NoFake

from .core import HasMeta, Meta, NeedsMeta, new, row

_BOOL = torch.bool


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


# `results` of a row -> the dtype of a result, of an operand's dtype
RESULTS: dict[str, Callable[[torch.dtype], torch.dtype]] = {
    "same": lambda dtype: dtype,
    "sum": _sum_dtype,
    "bool": lambda dtype: torch.uint8 if dtype is torch.uint8 else _BOOL,
    "index": lambda dtype: torch.int64,
}
# `of` of a row -> whether it serves a dtype; "any" has none
SERVED: dict[str, Callable[[torch.dtype], bool]] = {
    "inexact": lambda dtype: dtype.is_floating_point or dtype.is_complex,
    "floats": lambda dtype: dtype.is_floating_point,
    "real": lambda dtype: not dtype.is_complex,
    "numbers": lambda dtype: not dtype.is_complex and dtype is not _BOOL,
    "bools": lambda dtype: dtype is _BOOL,
}


def reduced_shape(op: ReductionOp, shape: tuple, dims: Dims, keepdim: bool) -> tuple:
    """The shape left after reducing `dims`. Raises: NeedsMeta where a dimension is given twice, which eager refuses."""
    if type(dims) is int:
        d = wrap_dim(dims, len(shape))
        return (*shape[:d], 1, *shape[d + 1 :]) if keepdim and shape else shape[:d] + shape[d + 1 :]
    rank = len(shape)
    gone = op.dims(dims, rank)
    if dims is not None and len(dims) > (len(gone) if rank else 1):  # type: ignore[arg-type]
        raise NeedsMeta
    if keepdim:
        return tuple([1 if i in gone else n for i, n in enumerate(shape)])
    return tuple([n for i, n in enumerate(shape) if i not in gone])


def _maker(op: ReductionOp) -> Callable[[Meta, tuple, torch.dtype | None], Any]:
    """What makes the results of a row, given their shape: row-major."""
    dtypes = [RESULTS[result] for result in op.results]
    first = dtypes[0]

    def one(m: Meta, shape: tuple, dtype: torch.dtype | None) -> Meta:
        return new(shape, None, dtype or first(m.dtype), m.device)

    def several(m: Meta, shape: tuple, dtype: torch.dtype | None) -> tuple:
        return tuple([new(shape, None, of(m.dtype), m.device) for of in dtypes])

    return one if len(dtypes) == 1 else several


def _reducing(op: ReductionOp) -> Callable[..., Any]:
    served, made, empty, refuses = SERVED.get(op.of), _maker(op), op.empty, op.no_dims == "refused"

    def reduce(
        x: HasMeta, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, correction: Any = None
    ) -> Any:
        m = x.m
        shape = m.shape
        if served and not served(dtype or m.dtype) or not empty and 0 in shape:
            raise NeedsMeta
        if refuses and shape and isinstance(dim, (list, tuple)) and not dim:
            raise NoFake(op.name, "torch's meta kernel reduces no dimension, which its others refuse")
        return made(m, () if dim is None and not keepdim else reduced_shape(op, shape, dim, keepdim), dtype)

    return reduce


def _running(op: ReductionOp) -> Callable[..., Any]:
    served, made = SERVED.get(op.of), _maker(op)

    def run(x: HasMeta, dim: int, wider: bool | torch.dtype | None = None, *, dtype: torch.dtype | None = None) -> Any:
        """wider: another dtype of the result, or whether it is another."""
        m = x.m
        if served and not served(m.dtype) or dtype is _BOOL or wider and wider is not m.dtype:
            raise NeedsMeta
        wrap_dim(dim, len(m.shape))
        return made(m, m.shape, dtype)

    return run


for _op in REDUCTIONS.values():
    row(*_op.overloads)((_running if _op.keeps else _reducing)(_op))


_SUM = REDUCTIONS["sum"]


@row("linalg_vector_norm", beside="sizes")
def _vector_norm(
    x: HasMeta, order: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Meta:
    """Infers a norm. torch's own meta kernel before 2.12 keeps dims of size 1 that are reduced."""
    m = x.m
    none = isinstance(dim, (list, tuple)) and not dim
    refusable = 0 in m.shape and not 0 <= order < math.inf  # the largest of nothing
    if dtype is not None or none or not m.dtype.is_floating_point or refusable:
        raise NeedsMeta
    shape = reduced_shape(_SUM, m.shape, tuple(range(len(m.shape))) if dim is None else dim, keepdim)
    return new(shape, None, m.dtype, m.device)
