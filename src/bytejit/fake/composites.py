"""Functions of torch that its C++ composes of others with plain sizes, composed here in the same way with sizes that may be
symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .sized import has_symbols

aten = torch.ops.aten
COMPOSITES: dict[Any, Callable] = {}


def composite_of(function: Any, args: tuple, kwargs: dict) -> Callable | None:
    """The function to call in place of one on symbolic sizes; None where torch's own does."""
    try:
        composed = COMPOSITES.get(function)
    except TypeError:  # not hashable
        return None
    if composed is None or kwargs.get("out") is not None:
        return None
    return composed if any(map(has_symbols, (*args, *kwargs.values()))) else None


def composes(*functions: Callable) -> Callable:
    """Register a function that stands for others."""

    def register(composed: Callable) -> Callable:
        COMPOSITES.update(dict.fromkeys(functions, composed))
        return composed

    return register


@composes(torch.kron, torch.Tensor.kron)
def _kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    rank = max(input.dim(), other.dim())
    left, right = ([1] * (rank - x.dim()) + list(x.shape) for x in (input, other))
    a = aten._unsafe_view(input, [n for size in left for n in (size, 1)])
    b = aten._unsafe_view(other, [n for size in right for n in (1, size)])
    return aten._unsafe_view(a * b, [m * n for m, n in zip(left, right)])


@composes(torch.take_along_dim, torch.Tensor.take_along_dim)
def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return input.view(-1).gather(0, indices.view(-1))
    if input.dim() != indices.dim() or indices.dtype != torch.int64:
        raise RuntimeError("torch says what it refuses")
    at = dim % input.dim()

    def spread(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """`x` broadcast with the other, besides the dimension."""
        return x.broadcast_to(torch.broadcast_shapes(x.shape, (*other.shape[:at], x.shape[at], *other.shape[at + 1 :])))

    return spread(input, indices).gather(at, spread(indices, input))


@composes(torch.block_diag)
def _block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    """Of concatenations: their gradients are parts of the result's gradient, as eager's are."""
    if not all(1 <= x.dim() <= 2 for x in tensors):  # torch promotes dtypes of scalars otherwise, or refuses
        return torch.block_diag(*tensors)
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    blocks = [(x if x.dim() == 2 else x.unsqueeze(0)).to(dtype) for x in tensors]
    width, column, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        end = column + x.shape[1]
        rows.append(torch.cat([x.new_zeros(x.shape[0], column), x, x.new_zeros(x.shape[0], width - end)], 1))
        column = end
    return torch.cat(rows, 0)
