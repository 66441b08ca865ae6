"""`x[mask] = value` with a gradient of the value.

torch's gradient of the value is `grad[mask]`, whose size depends on the mask's data. Where the number of places has no part in
the value's shape, the write is `x = where(mask, value, x)`, and the gradient is a masked sum. Where the value has an element for
each place, it says how many there are: a write that has been done was right, so the gradient reads that many places.
"""

from __future__ import annotations

from types import EllipsisType, NoneType
from typing import Any

import torch

from bytejit.fake.rules.core import is_one
from bytejit.fake.tensor import Fake, spec_of

from .mutation import overlaps


def set_item(x: Any, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    if isinstance(x, Fake) and isinstance(value, Fake) and value.requires_grad and torch.is_grad_enabled():
        parts = key if isinstance(key, tuple) else (key,)
        masks = [p for p in parts if isinstance(p, Fake)]
        plain = all(isinstance(p, Fake) or type(p) in (int, slice, EllipsisType, NoneType) for p in parts)
        if plain and len(masks) == 1 and masks[0].dtype is torch.bool and masks[0].dim() and _write(x, parts, masks[0], value):
            return
    x[key] = value


def _write(x: Fake, parts: tuple, mask: Fake, value: Fake) -> bool:
    """Write in one of both ways. Returns False, with nothing written, where torch may refuse or cast."""
    at, k = next(i for i, p in enumerate(parts) if p is mask), mask.dim()
    view = x[(*parts[:at], *[slice(None)] * k, *parts[at + 1 :])] if len(parts) > 1 else x
    if ... in parts[:at]:
        after = sum(type(p) in (slice, NoneType) for p in parts[at + 1 :])
        first = view.dim() - after - k
    else:
        first = sum(type(p) in (slice, NoneType) for p in parts[:at])
    rest = view.dim() - first - k
    shape = list(value.shape)
    while shape and is_one(shape[0]):  # as torch strips them
        del shape[0]
    place = len(shape) - rest - 1  # the dim of the value that runs over the places
    count = shape[place] if place >= 0 else 1
    wide = [*view.shape[:first], count, *view.shape[first + k :]]
    fits = len(shape) <= len(wide) and all(is_one(n) or n == m for n, m in zip(reversed(shape), reversed(wide)))
    if not fits or view.dtype is not value.dtype or overlaps(spec_of(view)) or not view.device == value.device == mask.device:
        return False
    if not is_one(count):
        if count == 1:  # a symbol
            return False
        view.copy_(_ByPlace.apply(view, mask, value.reshape(shape).expand(wide), first))
        return True
    if place >= 0:
        shape[place : place + 1] = [1] * k
    view.copy_(torch.where(mask.reshape([*mask.shape, *[1] * rest]), value.reshape(shape), view))
    return True


class _ByPlace(torch.autograd.Function):
    """`x` with a value for each place of a mask, which stands behind `first` dims."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.first, ctx.count, ctx.dims = first, value.shape[first], x.dim()
        return torch.ops.aten.index_put(x, [*[None] * first, mask], value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        (mask,) = ctx.saved_tensors
        places = torch.nonzero_static(mask, size=ctx.count).unbind(1)
        others = grad.masked_fill(mask.reshape([*mask.shape, *[1] * (ctx.dims - ctx.first - mask.dim())]), 0)
        return others, None, grad[(*[slice(None)] * ctx.first, *places)], None
