"""Functions of torch that its C++ composes of others with plain sizes, composed here in the same way with sizes that may be
symbols. Some are composed below where autocast looks, of operations that it knows: these are composed here under it, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.autocast import autocast_state

from .sized import has_symbols
from .tensor import NoFake

aten = torch.ops.aten
COMPOSITES: dict[Any, Callable] = {}
ALSO: dict[
    Callable, Callable[..., bool]
] = {}  # those that stand for a call of plain sizes too: whether for one with these arguments


def composite_of(function: Any, args: tuple, kwargs: dict) -> Callable | None:
    """The function to call in place of one on symbolic sizes, or where `ALSO` says so; None where torch's own does."""
    try:
        composed = COMPOSITES.get(function)
    except TypeError:  # not hashable
        return None
    if composed is None or kwargs.get("out") is not None:
        return None
    if any(map(has_symbols, (*args, *kwargs.values()))):
        return composed
    also = ALSO.get(composed)
    return composed if also is not None and also(*args, **kwargs) else None


def under_autocast(*args: Any, **kwargs: Any) -> bool:
    """For a function whose operations autocast casts, though torch has one op of the whole."""
    return any(autocast_state())


def composes(*functions: Callable, also: Callable[..., bool] | None = None) -> Callable:
    """Register a function that stands for others. also: whether for a call without symbols too."""

    def register(composed: Callable) -> Callable:
        COMPOSITES.update(dict.fromkeys(functions, composed))
        if also is not None:
            ALSO[composed] = also
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


@composes(torch.sgn, torch.Tensor.sgn)
def _sgn(input: torch.Tensor) -> torch.Tensor:
    """The gradient of torch's own is made of plain sizes."""
    return torch.sgn(input) if input.dtype.is_complex else torch.sign(input)


@composes(torch.isin)
def _isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> torch.Tensor:
    """Of one number, which may change."""
    if isinstance(elements, torch.Tensor) == isinstance(test_elements, torch.Tensor):
        return torch.isin(elements, test_elements, assume_unique=assume_unique, invert=invert)
    if isinstance(test_elements, torch.Tensor):
        found = (test_elements == elements).any()
        return found.logical_not() if invert else found
    return elements != test_elements if invert else elements == test_elements


class _Cumprod(torch.autograd.Function):
    """torch.cumprod of floats. The gradient is torch's formula, which makes its zeros of plain sizes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        made = torch.cumprod(x, dim)
        ctx.save_for_backward(x, made)
        ctx.dim = dim
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        if torch.is_grad_enabled():
            raise NoFake("cumprod", "the second derivative of numbers with zeros among them is another")
        (x, made), dim = ctx.saved_tensors, ctx.dim
        zeros = x == 0
        passed = zeros.cumsum(dim)
        before, rest = passed == 0, (passed == 1) & ~zeros
        first = (passed == 1) & zeros  # the gradient at the first zero: products of all numbers up to the second one but itself
        plain = (grad * made).masked_fill(~before, 0).flip(dim).cumsum(dim).flip(dim) / x
        behind = (x.masked_fill(~rest, 1).cumprod(dim) * grad.masked_fill(passed != 1, 0)).sum(dim, True)
        ahead = x.masked_fill(~before, 1).prod(dim, True)
        return torch.where(first, behind * ahead, torch.where(before, plain, 0)), None


def _adds_up_each_number(*args: Any, **kwargs: Any) -> bool:
    """Whether the gradient of torch's own on fakes takes some steps for each number along the dimension. So until 2.12."""
    return torch.__version__ < (2, 13)


@composes(torch.cumprod, torch.Tensor.cumprod, also=_adds_up_each_number)
def _cumprod(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    x = input if dtype is None else input.to(dtype)
    plain = x.requires_grad and torch.is_grad_enabled() and x.is_floating_point() and x.dim()
    return _Cumprod.apply(x, dim) if plain else torch.cumprod(input, dim, dtype=dtype)


@composes(torch.vander)
def _vander(x: torch.Tensor, N: int | None = None, increasing: bool = False) -> torch.Tensor:
    n = x.shape[0] if N is None and x.dim() == 1 else N
    if x.dim() != 1 or n is None or n < 2 or x.requires_grad:  # torch writes what its gradient needs: it raises
        return torch.vander(x, N, increasing)
    x = x.to(torch.promote_types(x.dtype, torch.int64)).unsqueeze(1)
    made = torch.cat([x.new_ones([x.shape[0], 1]), _cumprod(x.expand(x.shape[0], n - 1), 1)], 1)
    return made if increasing else made.flip(1)


@composes(torch.linalg.multi_dot)
def _multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) not in (2, 3) or any(x.dim() != 2 for x in tensors):
        return torch.linalg.multi_dot(tensors)
    if len(tensors) == 2:
        return tensors[0].mm(tensors[1])
    one, two, three = tensors
    (a, b), (c, d) = one.shape, three.shape
    return one.mm(two.mm(three)) if a * c * (b + d) > b * d * (a + c) else one.mm(two).mm(three)


@composes(torch.gradient)
def _gradient(
    input: torch.Tensor, *, spacing: Any = None, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> tuple[torch.Tensor, ...]:
    dims = [dim] if isinstance(dim, int) else list(range(input.dim()) if dim is None else dim)
    steps = [1 if spacing is None else spacing] * len(dims)
    if edge_order != 1 or not all(isinstance(s, (int, float)) for s in steps) or any(input.shape[d] < 2 for d in dims):
        given = {} if spacing is None else {"spacing": spacing}
        return torch.gradient(input, dim=dim, edge_order=edge_order, **given)
    found = []
    for d, step in zip(dims, steps):
        n = input.shape[d]
        inner = (input.narrow(d, 2, n - 2) - input.narrow(d, 0, n - 2)) / step / 2
        first, last = ((input.narrow(d, at + 1, 1) - input.narrow(d, at, 1)) / step for at in (0, n - 2))
        found.append(torch.cat([first, inner, last], d))
    return tuple(found)


@composes(torch.block_diag)
def _block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    """Computes it by concatenations: their gradients are parts of the result's gradient, as eager's are."""
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


@composes(torch.nn.functional.affine_grid, torch.affine_grid_generator, also=under_autocast)
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
    @composes(function, also=under_autocast)
    def pinv(*args: Any, **kwargs: Any) -> torch.Tensor:
        if any(autocast_state()):
            raise NoFake("linalg.pinv under autocast", "products within it are cast")
        return function(*args, **kwargs)


for _function in (torch.linalg.pinv, torch.pinverse, torch.Tensor.pinverse):  # each with tolerances of its own
    _pinv(_function)


def plain_observations(input: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> bool:
    """Whether a covariance looks at no tensor's value: there are no weights, and more observations than the correction."""
    odd = fweights is not None or aweights is not None or input.dim() > 2 or input.is_complex() or input.dtype is torch.bool
    return not odd and (input.shape[1] if input.dim() == 2 else input.numel()) > correction


@composes(torch.cov, torch.Tensor.cov, also=plain_observations)
def _cov(input: torch.Tensor, **options: Any) -> torch.Tensor:
    if not plain_observations(input, **options):
        return torch.cov(input, **options)
    rows = input.view([1, -1]) if input.dim() < 2 else input
    n = rows.shape[1]
    rows = rows - (rows.sum(1) / n).unsqueeze(1)
    return (rows.mm(rows.t()) / (n - options.get("correction", 1))).squeeze()


@composes(torch.corrcoef, torch.Tensor.corrcoef, also=plain_observations)
def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    if not plain_observations(input):
        return torch.corrcoef(input)
    c = _cov(input)
    if c.dim() == 0:
        return c / c
    deviations = c.diagonal().sqrt()
    return (c / deviations.view([-1, 1]) / deviations.view([1, -1])).clip(-1, 1)
