"""Functions of torch that its C++ composes of others with plain sizes, composed here in the same way with sizes that may be
symbols. Some are composed below where autocast looks, of operations that it knows: these are composed here under it, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.autocast import autocast_state

from .sized import has_symbols
from .tensor import NoFake

aten = torch.ops.aten
COMPOSITES: dict[Any, Callable] = {}
CAST_WITHIN: set[Callable] = set()  # those whose operations autocast casts, though torch has one op of the whole


def composite_of(function: Any, args: tuple, kwargs: dict) -> Callable | None:
    """The function to call in place of one on symbolic sizes, or under autocast; None where torch's own does."""
    try:
        composed = COMPOSITES.get(function)
    except TypeError:  # not hashable
        return None
    if composed is None or kwargs.get("out") is not None:
        return None
    cast = composed in CAST_WITHIN and any(autocast_state())
    return composed if cast or any(map(has_symbols, (*args, *kwargs.values()))) else None


def composes(*functions: Callable, cast_within: bool = False) -> Callable:
    """Register a function that stands for others. cast_within: also under autocast."""

    def register(composed: Callable) -> Callable:
        COMPOSITES.update(dict.fromkeys(functions, composed))
        if cast_within:
            CAST_WITHIN.add(composed)
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


@composes(torch.nn.functional.affine_grid, torch.affine_grid_generator, cast_within=True)
def _affine_grid(theta: torch.Tensor, size: list[int], align_corners: bool | None = None) -> torch.Tensor:
    """A product of the places of all pixels, as columns (x, y, 1) or (x, y, z, 1), with the matrices."""
    sizes = list(size[2:])
    odd = len(sizes) not in (2, 3) or tuple(theta.shape[1:]) != (len(sizes), len(sizes) + 1) or any(n < 2 for n in sizes)
    if odd or align_corners is None or size[0] < 1 or size[1] < 1:
        return torch.nn.functional.affine_grid(theta, list(size), align_corners)  # which warns, or refuses

    def line(n: int) -> torch.Tensor:
        """The places of n pixels from -1 to 1."""
        places = torch.linspace(-1, 1, n, dtype=theta.dtype, device=theta.device)
        return places if align_corners else places * (n - 1) / n

    along = [line(n).view([n if d == at else 1 for d in range(len(sizes))]) for at, n in enumerate(sizes)]
    columns = [x.expand(sizes) for x in (*reversed(along), theta.new_ones([1] * len(sizes)))]
    places = torch.stack(columns, -1).expand(size[0], *sizes, len(columns)).reshape(size[0], -1, len(columns))
    return places.bmm(theta.transpose(1, 2)).view(size[0], *sizes, len(sizes))


def _pinv(function: Callable) -> None:
    @composes(function, cast_within=True)
    def pinv(*args: Any, **kwargs: Any) -> torch.Tensor:
        if any(autocast_state()):
            raise NoFake("linalg.pinv under autocast", "products within it are cast")
        return function(*args, **kwargs)


for _function in (torch.linalg.pinv, torch.pinverse, torch.Tensor.pinverse):  # each with tolerances of its own
    _pinv(_function)
