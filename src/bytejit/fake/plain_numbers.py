"""Functions of torch whose C++ takes plain numbers that decide sizes (which diagonal, how much larger, how wide a window),
composed of functions that take symbols. What is not said here gets constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.autocast import cast_resized, casts
from bytejit.common.spec import wrap_dim
from bytejit.shapes.symbols import any_symbolic, is_symbolic, same

from .composites import composes

aten = torch.ops.aten
_F = torch.nn.functional


def _constant(number: Any) -> Any:
    """A number as it is now: a symbol becomes a constant."""
    return float(number) if isinstance(number, torch.SymFloat) else int(number) if is_symbolic(number) else number


# ---- diagonals -----------------------------------------------------------------------------------------------------------
@composes(torch.diagonal, torch.Tensor.diagonal)
def _diagonal(input: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """The main diagonal of what is right of its first element, or below it."""
    if not is_symbolic(offset) or wrap_dim(dim1, input.dim()) == wrap_dim(dim2, input.dim()):
        return torch.diagonal(input, _constant(offset), dim1, dim2)
    along, away = (dim2, offset) if offset >= 0 else (dim1, -offset)
    if away >= input.shape[along]:  # nothing is there: eager's view starts elsewhere
        return torch.diagonal(input, _constant(offset), dim1, dim2)
    return torch.diagonal(input.narrow(along, away, input.shape[along] - away), 0, dim1, dim2)


@composes(torch.linalg.diagonal)
def _linalg_diagonal(A: torch.Tensor, *, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    return _diagonal(A, offset, dim1, dim2)


@composes(torch.diag_embed, torch.Tensor.diag_embed)
def _diag_embed(input: torch.Tensor, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    """The square matrix with the numbers on its main diagonal, with columns before it and rows below, or the other way round."""
    rank = input.dim() + 1
    if not is_symbolic(offset) or (wrap_dim(dim1, rank), wrap_dim(dim2, rank)) != (rank - 2, rank - 1):
        return torch.diag_embed(input, _constant(offset), dim1, dim2)
    away = offset if offset >= 0 else -offset
    return _F.pad(torch.diag_embed(input), (away, 0, 0, away) if offset >= 0 else (0, away, away, 0))


@composes(torch.diag, torch.Tensor.diag)
def _diag(input: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    if not is_symbolic(diagonal) or input.dim() not in (1, 2):
        return torch.diag(input, _constant(diagonal))
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
    (input,), _ = cast_resized(_F.interpolate, (input,), {"mode": mode})
    given = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * (input.dim() - 2)
    if not any_symbolic(given):
        return _F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    known = size is None and len(given) == input.dim() - 2  # a factor for each dimension
    if known and (mode == "area" or recompute_scale_factor):
        return _F.interpolate(input, _scaled(input, given), None, mode, align_corners, None, antialias)
    op, aligns = _RESIZING.get((mode, input.dim()), (None, False))
    if op is None or not known or antialias or (align_corners is not None and not aligns) or not input.is_floating_point():
        constant = [_constant(f) for f in given]
        of_all = constant if isinstance(scale_factor, (list, tuple)) else constant[0]
        return _F.interpolate(input, size, of_all, mode, align_corners, recompute_scale_factor, antialias)
    return op(input, _scaled(input, given), *([bool(align_corners)] if aligns else []), *map(torch.sym_float, given))


def _scaled(input: torch.Tensor, factors: Sequence) -> list:
    """The sizes of an image that these factors make larger."""
    return [torch.sym_int(n * torch.sym_float(f)) for n, f in zip(input.shape[2:], factors)]


# ---- windows -------------------------------------------------------------------------------------------------------------
@composes(torch.Tensor.unfold)
def _unfold(self: torch.Tensor, dimension: int, size: Any, step: Any) -> torch.Tensor:
    """Windows that overlap are a view with another stride: its gradient adds up what overlaps."""
    at = wrap_dim(dimension, self.dim()) if self.dim() else -1
    if not any_symbolic((size, step)) or at < 0 or not 0 <= size <= self.shape[at] or step <= 0:
        return self.unfold(dimension, _constant(size), _constant(step))
    shape, stride = list(self.shape), list(self.stride())
    count = (shape[at] - size) // step + 1
    return self.as_strided(
        [*shape[:at], count, *shape[at + 1 :], size],
        [*stride[:at], stride[at] * step, *stride[at + 1 :], stride[at]],
        self.storage_offset(),
    )


def _row(value: Any, dims: int) -> list:
    """A number for each dimension."""
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    return given * dims if len(given) == 1 else given


def _spans_all(x: torch.Tensor, dims: int, kernel: Any, padding: Any) -> bool:
    """Whether the window of a pool, with a symbol in it, is all of the image."""
    each, around = _row(kernel, dims), _row(padding, dims)
    if (
        not any_symbolic(each)
        or casts(x.device.type)
        or not x.is_floating_point()
        or x.dim() not in (dims + 1, dims + 2)
        or any(is_symbolic(p) or p != 0 for p in around)
    ):
        return False
    return len(each) == dims and all(same(k, n) for k, n in zip(each, x.shape[-dims:]))


def _windows(x: torch.Tensor, numbers: Sequence[list], fill: float = 0.0) -> torch.Tensor | None:
    """A view of an image, with margins around it: its last dimensions are places of a window, then those within it. numbers:
    kernel, stride, padding, dilation. None where eager refuses."""
    kernel, stride, padding, dilation = numbers
    dims = len(kernel)
    if x.dim() not in (dims + 1, dims + 2) or any(len(row) != dims for row in numbers):
        return None
    if casts(x.device.type):  # it casts for some of what stands for windows here
        return None
    if any(n < 1 for n in (*kernel, *stride, *dilation)) or any(p < 0 for p in padding):
        return None
    if any(is_symbolic(p) or p for p in padding):
        x = _F.pad(x, [p for p in reversed(padding) for _ in range(2)], value=fill)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    if any(n < span for n, span in zip(x.shape[-dims:], spans)):
        return None
    places = [(n - span) // s + 1 for n, span, s in zip(x.shape[-dims:], spans, stride)]
    steps = x.stride()
    around, within = ([n * s for n, s in zip(steps[-dims:], row)] for row in (stride, dilation))
    return x.as_strided([*x.shape[:-dims], *places, *kernel], [*steps[:-dims], *around, *within], x.storage_offset())


@composes(_F.unfold)
def _columns(input: torch.Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> torch.Tensor:
    numbers = [_row(v, 2) for v in (kernel_size, stride, padding, dilation)]
    found = _windows(input, numbers) if any(map(any_symbolic, numbers)) else None
    if found is None:
        return _F.unfold(input, kernel_size, dilation, padding, stride)
    *batch, channels, rows, columns, high, wide = found.shape
    at = len(batch)
    inner = found.permute(*range(at + 1), at + 3, at + 4, at + 1, at + 2)
    return inner.reshape([*batch, channels * high * wide, rows * columns])


def _pooled_windows(x: torch.Tensor, dims: int, numbers: Sequence, fill: float, ceil_mode: Any) -> torch.Tensor | None:
    """The windows of a pool whose numbers change."""
    kernel, stride, padding, dilation = numbers
    steps = kernel if stride is None or stride in ([], ()) else stride
    rows = [_row(v, dims) for v in (kernel, steps, padding, dilation)]
    if not any(map(any_symbolic, rows)) or ceil_mode or not x.is_floating_point():
        return None
    if any(2 * p > k for p, k in zip(rows[2], rows[0])):
        return None
    return _windows(x, rows, fill)


def _pools(dims: int) -> None:
    """Pools over the whole of a sequence or an image (`F.max_pool1d(x, x.shape[2])`)."""
    average, largest = getattr(_F, f"avg_pool{dims}d"), getattr(_F, f"max_pool{dims}d")
    every = list(range(-dims, 0))

    @composes(average)
    def avg_pool(input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **options: Any) -> Any:
        counts = not rest and options.get("divisor_override") is None and options.get("count_include_pad", True)
        if counts and _spans_all(input, dims, kernel_size, padding):
            return input.mean(every, True)
        numbers = (kernel_size, stride, padding, 1)
        found = _pooled_windows(input, dims, numbers, 0.0, options.get("ceil_mode")) if counts else None
        return average(input, kernel_size, stride, padding, *rest, **options) if found is None else found.mean(every)

    @composes(largest, getattr(torch, f"max_pool{dims}d"))
    def max_pool(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        numbers, learns = (kernel_size, stride, padding, dilation), input.requires_grad and torch.is_grad_enabled()
        if return_indices or dilation not in (1, [1] * dims, (1,) * dims) or not _spans_all(input, dims, kernel_size, padding):
            plain = not return_indices and not learns
            found = _pooled_windows(input, dims, numbers, -math.inf, ceil_mode) if plain else None
            return largest(input, *numbers, ceil_mode, return_indices) if found is None else found.amax(every)
        if not learns:
            return input.amax(every, True)
        return input.flatten(-dims).max(-1).values.view([*input.shape[:-dims], *[1] * dims])  # one of equals has the gradient


for _dims in (1, 2, 3):
    _pools(_dims)
