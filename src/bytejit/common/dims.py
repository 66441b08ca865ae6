"""Marks on tensors that say which of their sizes change: `mark_dynamic`, `mark_static`."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .registry import DYNAMIC_DIMS, STATIC_DIMS


def _dims(t: torch.Tensor, index: int | Iterable[int] | None) -> tuple[int, ...]:
    """The dimensions, none negative. Raises: IndexError, TypeError."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(t).__name__}")
    dims = (index,) if isinstance(index, int) else range(t.dim()) if index is None else tuple(index)
    for d in dims:
        if not -t.dim() <= d < t.dim():
            raise IndexError(f"dimension {d} of a tensor with {t.dim()} dimensions")
    return tuple(d % t.dim() for d in dims)


def mark_dynamic(t: torch.Tensor, index: int | Iterable[int], *, min: int | None = None, max: int | None = None) -> None:
    """Make a size of this tensor symbolic from its first compile on. min, max: the range promised, guarded on.

    Raises: IndexError, TypeError.
    """
    marks = {**getattr(t, DYNAMIC_DIMS, {}), **dict.fromkeys(_dims(t, index), (min, max))}
    setattr(t, DYNAMIC_DIMS, marks)
    setattr(t, STATIC_DIMS, getattr(t, STATIC_DIMS, frozenset()) - marks.keys())


def mark_static(t: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Keep a size of this tensor (without index: all) constant, recompiling on change. Raises: IndexError."""
    dims = frozenset(_dims(t, index))
    setattr(t, STATIC_DIMS, getattr(t, STATIC_DIMS, frozenset()) | dims)
    setattr(t, DYNAMIC_DIMS, {d: r for d, r in getattr(t, DYNAMIC_DIMS, {}).items() if d not in dims})
