"""Rows of operators that move elements: views, slices, joins, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.spec import Spec

from .table import COMPUTED, EVERY, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten
LAST = (1 << 63) - 1  # an end beyond every tensor


@row(
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    dtypes=EVERY,
)
def reshaped(w: ModelWriter, out: Spec, x: Tensor, *rest: Any) -> Tensor:
    """The same elements in row-major order."""
    return w.reshape(x, out.shape)


@row(aten.permute.default, dtypes=EVERY)
def permute(w: ModelWriter, out: Spec, x: Tensor, dims: Sequence[int]) -> Tensor:
    """`x` with its dimensions in another order."""
    return w.transpose(x, [d % len(x.shape) for d in dims])


@row(aten.transpose.int, dtypes=EVERY)
def transpose(w: ModelWriter, out: Spec, x: Tensor, a: int, b: int) -> Tensor:
    """`x` with two dimensions exchanged."""
    order = list(range(len(x.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return w.transpose(x, order)


@row(aten.t.default, dtypes=EVERY)
def t(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """A matrix with rows and columns exchanged; a vector as it is."""
    return w.transpose(x, list(range(len(x.shape)))[::-1])


@row(aten.expand.default, dtypes=EVERY)
def expand(w: ModelWriter, out: Spec, x: Tensor, size: Sequence, implicit: bool = False) -> Tensor:
    """`x`, repeated along its dimensions of one element."""
    return w.op("Expand", x, w.ints(out.shape))


def sliced(w: ModelWriter, x: Tensor, dim: int, start: Any, end: Any, step: Any = 1) -> Tensor:
    """A slice along one dimension."""
    return w.op("Slice", x, w.ints([start]), w.ints([end]), w.ints([dim % len(x.shape)]), w.ints([step]))


@row(aten.slice.Tensor, dtypes=EVERY)
def slice_tensor(w: ModelWriter, out: Spec, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    """A slice of `x` along one dimension."""
    return sliced(w, x, dim, 0 if start is None else start, LAST if end is None else end, step)


@row(aten.select.int, dtypes=EVERY)
def select(w: ModelWriter, out: Spec, x: Tensor, dim: int, index: Any) -> Tensor:
    """The element of one dimension at an index; the dimension goes."""
    return w.op("Gather", x, w.to(index, torch.int64), axis=dim % len(x.shape))


@row(aten.cat.default, dtypes=EVERY)
def cat(w: ModelWriter, out: Spec, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along a dimension."""
    if any(len(x.shape) != len(out.shape) for x in tensors):
        raise Cannot("it joins an empty tensor of another rank")
    return w.op("Concat", *(w.to(x, out.dtype) for x in tensors), axis=dim % len(out.shape))


@row(aten.stack.default, dtypes=EVERY)
def stack(w: ModelWriter, out: Spec, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors side by side along a new dimension."""
    dim %= len(out.shape)
    made = [w.op("Unsqueeze", w.to(x, out.dtype), w.ints([dim])) for x in tensors]
    return w.op("Concat", *made, axis=dim)


@row(aten.repeat.default, dtypes=EVERY)
def repeat(w: ModelWriter, out: Spec, x: Tensor, repeats: Sequence) -> Tensor:
    """Copies of `x` one after the other along each dimension."""
    shape = [1] * (len(repeats) - len(x.shape)) + list(x.shape)
    return w.op("Tile", w.reshape(x, shape), w.ints(repeats))


@row(aten.flip.default, dtypes=EVERY)
def flip(w: ModelWriter, out: Spec, x: Tensor, dims: Sequence[int]) -> Tensor:
    """`x` with the order of its elements reversed along some dimensions."""
    axes = [d % len(x.shape) for d in dims]
    if not axes:
        return w.op("Identity", x)
    return w.op("Slice", x, w.ints([-1] * len(axes)), w.ints([-LAST] * len(axes)), w.ints(axes), w.ints([-1] * len(axes)))


@row(aten.constant_pad_nd.default, dtypes=COMPUTED - {torch.bool})
def constant_pad(w: ModelWriter, out: Spec, x: Tensor, pad: Sequence, value: Any = 0) -> Tensor:
    """`x` with a number around it."""
    return w.op("Pad", x, _pads(w, x, pad), w.to(value, x.dtype), mode="constant")


@row(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(w: ModelWriter, out: Spec, x: Tensor, pad: Sequence) -> Tensor:
    """`x` with its mirror image around it."""
    return w.op("Pad", x, _pads(w, x, pad), mode="reflect")


@row(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(w: ModelWriter, out: Spec, x: Tensor, pad: Sequence) -> Tensor:
    """`x` with its edges repeated around it."""
    return w.op("Pad", x, _pads(w, x, pad), mode="edge")


def _pads(w: ModelWriter, x: Tensor, pad: Sequence) -> Tensor:
    """The widths of a padding in ONNX's order: all begins, then all ends."""
    rank = len(x.shape)
    amounts = list(zip(pad[::2], pad[1::2]))
    amounts += [(0, 0)] * (rank - len(amounts))
    if any(isinstance(n, int) and n < 0 for pair in amounts for n in pair):
        raise Cannot("its padding is negative")
    return w.ints([low for low, _ in amounts[::-1]] + [high for _, high in amounts[::-1]])


@row(aten.tril.default)
def tril(w: ModelWriter, out: Spec, x: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with zeros above a diagonal."""
    return _triangle(w, x, diagonal, 0)


@row(aten.triu.default)
def triu(w: ModelWriter, out: Spec, x: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with zeros below a diagonal."""
    return _triangle(w, x, diagonal, 1)


def _triangle(w: ModelWriter, x: Tensor, diagonal: int, upper: int) -> Tensor:
    if x.dtype is torch.int32:
        raise Cannot("its tensor is int32")
    return w.op("Trilu", x, w.to(diagonal, torch.int64), upper=upper)


# ---- gathers -------------------------------------------------------------------------------------------------------
@row(aten.embedding.default, dtypes=EVERY)
def embedding(w: ModelWriter, out: Spec, weight: Tensor, indices: Tensor, *rest: Any, **settings: Any) -> Tensor:
    """Rows of a matrix. For a negative index torch raises, while ONNX counts from the end: `_strict` makes it out of range."""
    return w.op("Gather", weight, _strict(w, indices, weight.shape[0]), axis=0)


def _strict(w: ModelWriter, indices: Tensor, size: Any) -> Tensor:
    """Indices of an op that refuses negative ones: each is replaced by one out of range, for which every engine raises."""
    below = w.op("Less", indices, 0, dtype=torch.bool)
    return w.op("Where", below, w.to(size, indices.dtype), indices, dtype=indices.dtype)


@row(aten.index_select.default, dtypes=EVERY)
def index_select(w: ModelWriter, out: Spec, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The elements of one dimension at some indices."""
    if not x.shape or len(index.shape) != 1:
        raise Cannot("its index has no dimensions")
    return w.op("Gather", x, _strict(w, index, x.shape[dim]), axis=dim % len(x.shape))


@row(aten.gather.default, dtypes=EVERY)
def gather(w: ModelWriter, out: Spec, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """For each place the element of one dimension whose index the place has."""
    if not x.shape or len(x.shape) != len(index.shape):
        raise Cannot("its index has no dimensions")
    dim %= len(x.shape)
    for d, (of, n) in enumerate(zip(x.shape, index.shape)):
        if d != dim and of != n:  # torch accepts an index that is smaller along other dims
            x = Tensor(sliced(w, x, d, 0, n).name, x.dtype, x.shape)
    return w.op("GatherElements", x, _strict(w, index, x.shape[dim]), axis=dim)


@row(aten.index.Tensor, dtypes=EVERY)
def index(w: ModelWriter, out: Spec, x: Tensor, indices: Sequence) -> Tensor:
    """x[i] with one row of indices: along the first dimension that has one."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype not in INDEX_DTYPES:
        raise Cannot("it has several indices, or a mask")
    dim, at = given[0]
    return w.op("Gather", x, at, axis=dim)
