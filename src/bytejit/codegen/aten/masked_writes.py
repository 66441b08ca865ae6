"""`x[mask] = value` with a gradient of the value.

torch's gradient of the value is `grad[mask]`, whose size depends on the mask's data. Where the number of places has no part in
the value's shape, the write is `x = where(mask, value, x)`, and the gradient is a masked sum.
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
    """Write through `where`. Returns False, with nothing written, where the value may have an element for each place."""
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
    wide = [*view.shape[:first], 1, *view.shape[first + k :]]
    fits = len(shape) <= len(wide) and all(is_one(n) or n == m for n, m in zip(reversed(shape), reversed(wide)))
    if not fits or view.dtype is not value.dtype or view.device != value.device or overlaps(spec_of(view)):
        return False
    if len(shape) > rest:
        place = len(shape) - rest - 1
        shape[place : place + 1] = [1] * k
    view.copy_(torch.where(mask.reshape([*mask.shape, *[1] * rest]), value.reshape(shape), view))
    return True
