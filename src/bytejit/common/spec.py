"""What a tensor looks like: shape, strides, dtype, device; how to print it in one line; dimensions by number."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from bytejit.common.light_dataclass import light_dataclass

from .dtypes import short_dtype


def contiguous_stride(shape: tuple) -> tuple:
    """Row-major strides of `shape`. Units: elements. Sizes may be symbolic; size 0 counts as 1, as in torch."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step = step * (size if not isinstance(size, int) or size > 1 else 1)
    return tuple(reversed(stride))


def channels_last_stride(shape: tuple) -> tuple:
    """Strides of torch.channels_last (4 dims) and channels_last_3d (5 dims). Units: elements."""
    stride = [0] * len(shape)
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        stride[dim] = step
        step = step * (shape[dim] if shape[dim] != 0 else 1)
    return tuple(stride)


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last element, both included; 0 where there are none."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a tensor without dimensions counts as one of one. Raises: IndexError, as torch."""
    span = rank or 1
    if not -span <= dim < span:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {dim})")
    return dim + span if dim < 0 else dim


def reduced_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """The dimensions that a reduction takes, in order: all of them for None and for (). Raises: IndexError."""
    if dims is None or not isinstance(dims, int) and not len(dims):
        return tuple(range(rank))
    found = {wrap_dim(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)}
    return tuple(sorted(found)) if rank else ()


def same_places(shape: tuple, a: tuple, b: tuple) -> bool:
    """Whether two strides lead to the same elements of a shape: those of dimensions of size 1 lead nowhere."""
    return a == b or 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, a, b))


def lies_dense(shape: Sequence, stride: Sequence, hint: Callable = int, differ: Callable = operator.ne) -> bool:
    """Whether elements lie side by side, each once, in some order of the dimensions. hint: a size as an int; differ: whether two
    strides do. Both know the symbols that the sizes are made of."""
    step = 1
    for s, n in sorted(zip(stride, shape), key=lambda pair: (hint(pair[0]), hint(pair[1]))):
        if isinstance(n, int) and n == 1:
            continue
        if differ(s, step):
            return False
        step = step * n
    return True


@light_dataclass(frozen=True, slots=True)
class Spec:
    """Shape, strides, dtype and device of a tensor. Units: elements. Sizes are ints or symbols."""

    shape: tuple
    stride: tuple
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Spec:
        """The spec of any strided tensor, real or fake."""
        return Spec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def __repr__(self) -> str:
        text = f"{short_dtype(self.dtype)}[{','.join(map(str, self.shape))}]"
        if self.stride != contiguous_stride(self.shape):
            text += f"({','.join(map(str, self.stride))})"
        return text if self.device.type == "cpu" else f"{text}@{self.device}"
