"""Functions of torch whose C++ takes plain numbers that decide sizes (which diagonal, how much larger, how wide a window),
composed of functions that take symbols. What is not said here gets constants."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.spec import wrap_dim
from bytejit.shapes.symbols import any_symbolic, is_symbolic, same

from .composites import composes

aten = torch.ops.aten
_F = torch.nn.functional


# ---- diagonals -----------------------------------------------------------------------------------------------------------
@composes(torch.diagonal, torch.Tensor.diagonal)
def _diagonal(input: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """The main diagonal of what is right of its first element, or below it."""
    if not is_symbolic(offset) or wrap_dim(dim1, input.dim()) == wrap_dim(dim2, input.dim()):
        return torch.diagonal(input, int(offset), dim1, dim2)
    along, away = (dim2, offset) if offset >= 0 else (dim1, -offset)
    if away >= input.shape[along]:  # nothing is there: eager's view starts elsewhere
        return torch.diagonal(input, int(offset), dim1, dim2)
    return torch.diagonal(input.narrow(along, away, input.shape[along] - away), 0, dim1, dim2)


@composes(torch.linalg.diagonal)
def _linalg_diagonal(A: torch.Tensor, *, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    return _diagonal(A, offset, dim1, dim2)


@composes(torch.diag_embed, torch.Tensor.diag_embed)
def _diag_embed(input: torch.Tensor, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    """The square matrix with the numbers on its main diagonal, with columns before it and rows below, or the other way round."""
    rank = input.dim() + 1
    if not is_symbolic(offset) or (wrap_dim(dim1, rank), wrap_dim(dim2, rank)) != (rank - 2, rank - 1):
        return torch.diag_embed(input, int(offset), dim1, dim2)
    away = offset if offset >= 0 else -offset
    return _F.pad(torch.diag_embed(input), (away, 0, 0, away) if offset >= 0 else (0, away, away, 0))


@composes(torch.diag, torch.Tensor.diag)
def _diag(input: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    if not is_symbolic(diagonal) or input.dim() not in (1, 2):
        return torch.diag(input, int(diagonal))
    return _diag_embed(input, diagonal) if input.dim() == 1 else _diagonal(input, diagonal).clone()


# ---- images of another size ----------------------------------------------------------------------------------------------
def _resizes(name: str, dims: int, aligns: bool) -> tuple[Any, bool]:
    """(the op of sizes and scales, whether it is told how corners are aligned)"""
    return getattr(aten, f"{name}{dims}d").default, aligns


_RESIZING = {
    **{("nearest", n + 2): _resizes("upsample_nearest", n, False) for n in (1, 2, 3)},
    **{("nearest-exact", n + 2): _resizes("_upsample_nearest_exact", n, False) for n in (1, 2, 3)},
    ("linear", 3): _resizes("upsample_linear", 1, True),
    ("bilinear", 4): _resizes("upsample_bilinear", 2, True),
    ("bicubic", 4): _resizes("upsample_bicubic", 2, True),
    ("trilinear", 5): _resizes("upsample_trilinear", 3, True),
}


@composes(_F.interpolate)
def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """By a factor that is a symbol: an op that is given the sizes, computed here, and the factors."""
    given = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * (input.dim() - 2)
    if not any_symbolic(given):
        return _F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if size is None and len(given) == input.dim() - 2 and (mode == "area" or recompute_scale_factor):
        sizes = [torch.sym_int(n * torch.sym_float(f)) for n, f in zip(input.shape[2:], given)]
        return _F.interpolate(input, sizes, None, mode, align_corners, None, antialias)
    op, aligns = _RESIZING.get((mode, input.dim()), (None, False))
    odd = size is not None or antialias or (align_corners is not None and not aligns)
    if op is None or odd or len(given) != input.dim() - 2 or not input.is_floating_point():
        constant = [float(f) if isinstance(f, (float, torch.SymFloat)) else int(f) for f in given]
        of_all = constant if isinstance(scale_factor, (list, tuple)) else constant[0]
        return _F.interpolate(input, size, of_all, mode, align_corners, recompute_scale_factor, antialias)
    scales = [torch.sym_float(f) for f in given]
    sizes = [torch.sym_int(n * f) for n, f in zip(input.shape[2:], scales)]
    return op(input, sizes, *([bool(align_corners)] if aligns else []), *scales)


# ---- windows -------------------------------------------------------------------------------------------------------------
@composes(torch.Tensor.unfold)
def _unfold(self: torch.Tensor, dimension: int, size: Any, step: Any) -> torch.Tensor:
    """Windows that overlap are a view with another stride: its gradient adds up what overlaps."""
    at = wrap_dim(dimension, self.dim()) if self.dim() else -1
    if not any_symbolic((size, step)) or at < 0 or not 0 <= size <= self.shape[at] or step <= 0:
        return self.unfold(dimension, int(size), int(step))
    shape, stride = list(self.shape), list(self.stride())
    count = (shape[at] - size) // step + 1
    return self.as_strided(
        [*shape[:at], count, *shape[at + 1 :], size],
        [*stride[:at], stride[at] * step, *stride[at + 1 :], stride[at]],
        self.storage_offset(),
    )


def _spans_all(x: torch.Tensor, dims: int, kernel: Any, padding: Any) -> bool:
    """Whether the window of a pool, with a symbol in it, is all of the image."""
    given = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel]
    around = padding if isinstance(padding, (list, tuple)) else [padding]
    if (
        not any_symbolic(given)
        or not x.is_floating_point()
        or x.dim() not in (dims + 1, dims + 2)
        or any(is_symbolic(p) or p != 0 for p in around)
    ):
        return False
    each = given * dims if len(given) == 1 else given
    return len(each) == dims and all(same(k, n) for k, n in zip(each, x.shape[-dims:]))


def _pools(dims: int) -> None:
    """Pools over the whole of a sequence or an image (`F.max_pool1d(x, x.shape[2])`)."""
    average, largest = getattr(_F, f"avg_pool{dims}d"), getattr(_F, f"max_pool{dims}d")
    every = list(range(-dims, 0))

    @composes(average)
    def avg_pool(input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **options: Any) -> Any:
        if rest or options.get("divisor_override") is not None or not _spans_all(input, dims, kernel_size, padding):
            return average(input, kernel_size, stride, padding, *rest, **options)
        return input.mean(every, True)

    @composes(largest)
    def max_pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *rest: Any, **options: Any
    ) -> Any:
        plain = dilation in (1, [1] * dims, (1,) * dims) and not rest and not options.get("return_indices")
        if not plain or not _spans_all(input, dims, kernel_size, padding):
            return largest(input, kernel_size, stride, padding, dilation, *rest, **options)
        if not (input.requires_grad and torch.is_grad_enabled()):
            return input.amax(every, True)
        return input.flatten(-dims).max(-1).values.view([*input.shape[:-dims], *[1] * dims])  # one of equals has the gradient


for _dims in (1, 2, 3):
    _pools(_dims)
