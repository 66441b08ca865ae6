"""Sizes and strides of a view with another shape over the same elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bytejit.common.spec import contiguous_stride
from bytejit.shapes.symbols import any_symbolic, hint, same

from .core import Size, differ, is_one


def infer_size(shape: Sequence[Size], n: Size) -> tuple:
    """Fill in the -1 of a view's shape. Raises RuntimeError with eager's words."""
    known, hole = 1, None
    for i, size in enumerate(shape):
        if isinstance(size, int) and size == -1:
            if hole is not None:
                raise RuntimeError("only one dimension can be inferred")
            hole = i
        elif size < 0:
            raise RuntimeError(f"invalid shape dimension {size}")
        else:
            known = known * size
    if hole is None:
        if known != n:
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {n}")
        return tuple(shape)
    if known == 0:
        raise (
            RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension "
                "size -1 can be any value and is ambiguous"
            )
            if n == 0
            else RuntimeError(f"shape '{list(shape)}' is invalid for input of size {n}")
        )
    if n % known != 0:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {n}")
    return tuple(n // known if i == hole else size for i, size in enumerate(shape))


def viewed_stride(old_shape: tuple, old_stride: tuple, shape: tuple) -> tuple | None:
    """Strides of a view with another shape over the same elements, or None when a copy is needed."""
    if 0 in old_shape:
        return old_stride if old_shape == shape else contiguous_stride(shape)
    if any_symbolic((*old_shape, *old_stride)):
        if same(old_shape, shape):
            return old_stride
        found = _grouped_stride(old_shape, old_stride, shape, lambda size: False)
        if found is not None:  # right too where a dimension that parts two groups is 1: nothing was asked of it
            return found
    return _grouped_stride(old_shape, old_stride, shape, lambda size: size == 1)


def _grouped_stride(old_shape: tuple, old_stride: tuple, shape: tuple, skips: Callable) -> tuple | None:
    """The strides where each group of old dims that lie densely becomes a group of new ones. `skips`: whether a dim of this
    size is in any group."""
    stride = [0] * len(shape)
    at = len(shape) - 1
    chunk = old_stride[-1] if old_stride else 1
    elements = viewed = 1
    for dim in range(len(old_shape) - 1, -1, -1):
        elements = elements * old_shape[dim]
        # how dims are grouped is the hints' choice; that a group's sizes match is asked
        if dim == 0 or (
            differ(old_stride[dim - 1], elements * chunk) and not (is_one(old_shape[dim - 1]) or skips(old_shape[dim - 1]))
        ):
            while at >= 0 and (hint(viewed) < hint(elements) or is_one(shape[at])):
                stride[at] = viewed * chunk
                viewed = viewed * shape[at]
                at -= 1
            if viewed != elements:
                return None
            if dim > 0:
                chunk = old_stride[dim - 1]
                elements = viewed = 1
    if not old_shape:
        return tuple(1 for _ in shape)
    return tuple(stride) if at == -1 else None
