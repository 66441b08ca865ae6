"""Shape rules of views and of copies with a part replaced. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from bytejit.common.spec import contiguous_stride, wrap_dim
from bytejit.shapes.symbols import any_symbolic

from .core import HasMeta, Meta, NeedsMeta, Size, alike, is_one, new, numel, row
from .elementwise import like_stride
from .view_shapes import infer_size, viewed_stride

# name -> rule of a view that only steps through its operand: of it the op table's row is made (`codegen/ops/rows/strided.py`)
STRIDED: dict[str, Callable[..., Any]] = {}


def strided(*names: str) -> Callable:
    """Register the rule of views of which shape, strides and offset are sums of the operand's, and their row in the op table."""

    def register(fn: Callable) -> Callable:
        STRIDED.update({n if "::" in n else f"aten::{n}": fn for n in names})
        return row(*names)(fn)

    return register


def view(m: Meta, shape: tuple, stride: tuple, offset: Size | None = None) -> Meta:
    """A view of `m`: the same storage."""
    return Meta(shape, stride, m.offset if offset is None else offset, m.dtype, m.device, m.store)


def needs_meta() -> NoReturn:
    """Raises NeedsMeta, for use inside an expression."""
    raise NeedsMeta


@row("view", "_unsafe_view", beside="sizes")
def _view(x: HasMeta, size: Sequence[Size]) -> Meta:
    m = x.m
    shape = infer_size(size, numel(m.shape))
    plain = not any_symbolic((*m.shape, *m.stride)) and 0 not in m.shape and m.stride == contiguous_stride(m.shape)
    stride = contiguous_stride(shape) if plain else viewed_stride(m.shape, m.stride, shape)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead."
        )
    return view(m, shape, stride)


@row("_reshape_alias", beside="sizes")
def _reshape_alias(x: HasMeta, size: Sequence[Size], stride: Sequence[Size]) -> Meta:
    return view(x.m, tuple(size), tuple(stride))


@strided("expand")
def _expand(x: HasMeta, size: Sequence[Size], *, implicit: bool = False) -> Meta:
    m = x.m
    pad = len(size) - len(m.shape)
    if pad < 0:
        raise NeedsMeta
    if not m.shape:
        return view(m, tuple(size), (0,) * len(size)) if all(n >= 0 for n in size) else needs_meta()
    shape, stride = list(size), [0] * len(size)
    for i in range(len(size) - 1, -1, -1):
        have = m.shape[i - pad] if i >= pad else 1
        if shape[i] < 0:
            if shape[i] != -1 or i < pad:
                raise NeedsMeta
            shape[i] = have
        if not (is_one(have) and not is_one(shape[i])) and have == shape[i]:
            stride[i] = m.stride[i - pad] if i >= pad else (shape[i + 1] * stride[i + 1] if i + 1 < len(size) else 1)
        elif not is_one(have) and have != 1:
            raise NeedsMeta
    return view(m, tuple(shape), tuple(stride))


@strided("permute")
def _permute(x: HasMeta, dims: Sequence[int]) -> Meta:
    m = x.m
    dims = [wrap_dim(d, len(m.shape)) for d in dims]
    if len(set(dims)) != len(m.shape) or len(dims) != len(m.shape):
        raise NeedsMeta
    return view(m, tuple(m.shape[d] for d in dims), tuple(m.stride[d] for d in dims))


@strided("transpose.int")
def _transpose(x: HasMeta, dim0: int, dim1: int) -> Meta:
    m = x.m
    rank = len(m.shape)
    dim0, dim1 = wrap_dim(dim0, rank), wrap_dim(dim1, rank)
    if not rank:
        return view(m, m.shape, m.stride)
    shape, stride = list(m.shape), list(m.stride)
    shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
    stride[dim0], stride[dim1] = stride[dim1], stride[dim0]
    return view(m, tuple(shape), tuple(stride))


@strided("t")
def _t(x: HasMeta) -> Meta:
    m = x.m
    if len(m.shape) > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {len(m.shape)}D")
    return view(m, m.shape[::-1], m.stride[::-1])


@strided("slice.Tensor")
def _slice(x: HasMeta, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1) -> Meta:
    m = x.m
    if not m.shape:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    dim = wrap_dim(dim, len(m.shape))
    size = m.shape[dim]
    start = 0 if start is None else start
    end = size if end is None else end
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    start = 0 if start < 0 else size if start > size else start
    end = start if end < start else size if end > size else end
    shape = (*m.shape[:dim], (end - start + step - 1) // step, *m.shape[dim + 1 :])
    stride = (*m.stride[:dim], m.stride[dim] * step, *m.stride[dim + 1 :])
    return view(m, shape, stride, m.offset + start * m.stride[dim])


@strided("select.int")
def _select(x: HasMeta, dim: int, index: Size) -> Meta:
    m = x.m
    if not m.shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, len(m.shape))
    size = m.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(m.shape)} at dimension {dim}")
    index = index + size if index < 0 else index
    return view(m, m.shape[:dim] + m.shape[dim + 1 :], m.stride[:dim] + m.stride[dim + 1 :], m.offset + index * m.stride[dim])


@strided("unsqueeze")
def _unsqueeze(x: HasMeta, dim: int) -> Meta:
    m = x.m
    dim = wrap_dim(dim, len(m.shape) + 1)
    step = m.shape[dim] * m.stride[dim] if dim < len(m.shape) else 1
    return view(m, (*m.shape[:dim], 1, *m.shape[dim:]), (*m.stride[:dim], step, *m.stride[dim:]))


def _without(m: Meta, dims: Sequence[int]) -> Meta:
    keep = [i for i in range(len(m.shape)) if i not in dims or m.shape[i] != 1]
    return view(m, tuple(m.shape[i] for i in keep), tuple(m.stride[i] for i in keep))


@strided("squeeze")
def _squeeze(x: HasMeta) -> Meta:
    return _without(x.m, range(len(x.m.shape)))


@strided("squeeze.dim")
def _squeeze_dim(x: HasMeta, dim: int) -> Meta:
    return _without(x.m, (wrap_dim(dim, len(x.m.shape)),))


@strided("squeeze.dims")
def _squeeze_dims(x: HasMeta, dims: Sequence[int]) -> Meta:
    return _without(x.m, [wrap_dim(d, len(x.m.shape)) for d in dims])


def _pieces(m: Meta, dim: int, sizes: Sequence[Size]) -> list[Meta]:
    out = []
    offset = m.offset
    for size in sizes:
        out.append(view(m, (*m.shape[:dim], size, *m.shape[dim + 1 :]), m.stride, offset))
        offset = offset + size * m.stride[dim]
    return out


@row("unsafe_split.Tensor")
@strided("split.Tensor")
def _split(x: HasMeta, size: Size, dim: int = 0) -> list[Meta]:
    m = x.m
    if not m.shape or size <= 0:
        raise NeedsMeta
    dim = wrap_dim(dim, len(m.shape))
    total = m.shape[dim]
    count = max((total + size - 1) // size, 1)
    return _pieces(m, dim, [size] * (count - 1) + [total - size * (count - 1)])


@row("unsafe_split_with_sizes")
@strided("split_with_sizes")
def _split_with_sizes(x: HasMeta, sizes: Sequence[Size], dim: int = 0) -> list[Meta]:
    m = x.m
    if not m.shape:
        raise NeedsMeta
    dim = wrap_dim(dim, len(m.shape))
    if sum(sizes) != m.shape[dim] or any(s < 0 for s in sizes):
        raise NeedsMeta
    return _pieces(m, dim, sizes)


@strided("unbind.int")
def _unbind(x: HasMeta, dim: int = 0) -> list[Meta]:
    m = x.m
    if not m.shape:
        raise NeedsMeta
    dim = wrap_dim(dim, len(m.shape))
    return [_select(x, dim, i) for i in range(m.shape[dim])]


@row("lift")
@strided("detach", "alias", "lift_fresh", "prims::view_of")
def _alias(x: HasMeta) -> Meta:
    m = x.m
    return view(m, m.shape, m.stride)


@row("as_strided", beside="sizes")
def _as_strided(x: HasMeta, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None = None) -> Meta:
    given = (*size, *stride, 0 if storage_offset is None else storage_offset)
    if len(size) != len(stride) or any(type(n) is int and n < 0 for n in given):
        raise NeedsMeta
    return view(x.m, tuple(size), tuple(stride), storage_offset)


@strided("diagonal")
def _diagonal(x: HasMeta, offset: Size = 0, dim1: int = 0, dim2: int = 1) -> Meta:
    m = x.m
    rank = len(m.shape)
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if dim1 == dim2:
        raise NeedsMeta
    rows, columns = m.shape[dim1], m.shape[dim2]
    size = max(min(rows, columns - offset), 0) if offset >= 0 else max(min(rows + offset, columns), 0)
    start = m.offset
    if size:
        start = start + (offset * m.stride[dim2] if offset >= 0 else -offset * m.stride[dim1])
    keep = [i for i in range(rank) if i not in (dim1, dim2)]
    return view(m, (*(m.shape[i] for i in keep), size), (*(m.stride[i] for i in keep), m.stride[dim1] + m.stride[dim2]), start)


@strided("unfold")
def _unfold(x: HasMeta, dim: int, size: Size, step: Size) -> Meta:
    m = x.m
    if not m.shape or step <= 0 or size < 0:
        raise NeedsMeta
    dim = wrap_dim(dim, len(m.shape))
    if size > m.shape[dim]:
        raise NeedsMeta
    count = (m.shape[dim] - size) // step + 1
    return view(
        m,
        (*m.shape[:dim], count, *m.shape[dim + 1 :], size),
        (*m.stride[:dim], m.stride[dim] * step, *m.stride[dim + 1 :], m.stride[dim]),
    )


@row("view_as_complex")
def _view_as_complex(x: HasMeta) -> Meta:
    m = x.m
    kind = {torch.float32: torch.complex64, torch.float64: torch.complex128}.get(m.dtype)
    if kind is None or not m.shape or m.shape[-1] != 2 or m.stride[-1] != 1:
        raise NeedsMeta
    halves = [_half(n) for n in (*m.stride[:-1], m.offset)]
    return Meta(m.shape[:-1], tuple(halves[:-1]), halves[-1], kind, m.device, m.store)


def _half(n: Size) -> Size:
    if n % 2 != 0:
        raise NeedsMeta  # refused there
    return n // 2


@row("view_as_real")
def _view_as_real(x: HasMeta) -> Meta:
    m = x.m
    kind = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(m.dtype)
    if kind is None or x.is_conj():
        raise NeedsMeta
    return Meta((*m.shape, 2), (*(2 * n for n in m.stride), 1), 2 * m.offset, kind, m.device, m.store)


# --- a part of a copy replaced ---------------------------------------------------------------------


def _replaced(x: HasMeta, part: Meta, src: HasMeta) -> Meta:
    """A copy of x in which `part` of it is replaced by src: x's dtype and strides, gaps too; dense where its elements overlap."""
    m = x.m
    if not alike(part.shape, src.m.shape) or m.device != src.m.device:
        raise NeedsMeta
    overlaps = any(type(s) is int and s == 0 and not is_one(n) for n, s in zip(m.shape, m.stride))
    return new(m.shape, like_stride(m) if overlaps else m.stride, m.dtype, m.device)


@row("slice_scatter", beside="layout")
def _slice_scatter(x: HasMeta, src: HasMeta, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1) -> Meta:
    return _replaced(x, _slice(x, dim, start, end, step), src)


@row("select_scatter", beside="layout")
def _select_scatter(x: HasMeta, src: HasMeta, dim: int, index: HasMeta) -> Meta:
    return _replaced(x, _select(x, dim, index), src)


@row("diagonal_scatter", beside="layout")
def _diagonal_scatter(x: HasMeta, src: HasMeta, offset: Size = 0, dim1: int = 0, dim2: int = 1) -> Meta:
    return _replaced(x, _diagonal(x, offset, dim1, dim2), src)


@row("pixel_unshuffle", beside="layout")
def _pixel_unshuffle(x: HasMeta, downscale_factor: int) -> Meta:
    """The CPU's kernel gives a copy of what has no elements, in its own shape."""
    m = x.m
    if (
        m.device.type != "cpu"
        or 0 not in m.shape
        or len(m.shape) < 3
        or downscale_factor < 1
        or any(size % downscale_factor for size in m.shape[-2:])
    ):
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)
