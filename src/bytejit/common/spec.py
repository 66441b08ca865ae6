"""What a tensor looks like: shape, strides, dtype, device; and how to print it in one line."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .dtypes import short_dtype


def contiguous_stride(shape: tuple) -> tuple:
    """Row-major strides of `shape`. Units: elements. Sizes may be symbolic; size 0 counts as 1, as in torch."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step = step * (size if not isinstance(size, int) or size > 1 else 1)
    return tuple(reversed(stride))


def same_places(shape: tuple, a: tuple, b: tuple) -> bool:
    """Whether two strides lead to the same elements of a shape: those of dimensions of size 1 lead nowhere."""
    return a == b or 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, a, b))


@dataclass(frozen=True, slots=True)
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
