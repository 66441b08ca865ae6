"""A tensor of the graph as the rows of the op table see it, and the dtype in which values are computed."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.dtypes import SHORT, torch_dtype
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .index import Index
from .sizes import Real


@light_dataclass(frozen=True)
class Value:
    """A tensor of the graph: a view of `buffer`. map: the buffer's coordinates as indices over d0, d1, ..., the coordinates of
    this value; None: they are the same.

    elided: the program copies between the step that makes the buffer and this value; that copy was left out.
    """

    buffer: str
    shape: tuple
    dtype: str
    map: tuple[Index, ...] | None = None
    elided: bool = False


def ir_dtype(spec: Spec) -> str:
    """The IR's name of a spec's dtype (names of dtypes that kernels cannot hold included)."""
    return SHORT.get(spec.dtype) or str(spec.dtype)


def number_dtype(value: bool | int | float | complex | Index | Real) -> str:
    """The dtype of a Python number; a size is an integer."""
    return "b8" if isinstance(value, bool) else "i64" if isinstance(value, (int, Index)) else "f32"


def promote(args: list[Any]) -> str:
    """The dtype in which torch computes a comparison of these values. Within a category (bool, int, float) tensors with dims take
    precedence over 0-dim tensors, and those over numbers."""
    levels: list[str | None] = [None, None, None]
    for a in args:
        level = 2 if not isinstance(a, Value) else 1 if not a.shape else 0
        dtype = a.dtype if isinstance(a, Value) else number_dtype(a)
        before = levels[level]
        levels[level] = dtype if before is None else _promote(before, dtype)
    best: str | None = None
    for found in levels:
        if found is not None and (best is None or _category(found) > _category(best)):
            best = found
    return best or "f32"


def _category(dtype: str) -> int:
    return 0 if dtype == "b8" else 1 if dtype[0] in "iu" else 2


def _promote(a: str, b: str) -> str:
    t = torch.promote_types(torch_dtype(a), torch_dtype(b))
    return SHORT[t]
