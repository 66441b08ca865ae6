"""Fakes of tensors that hold other tensors, on which their class runs operations (DTensor): of the same class, around fakes.

Such a fake has what the tracer asks of each: `m`, what it looks like. Its store is that of the first tensor in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bytejit.common.overriding import is_composed
from bytejit.fake.rules.core import FakeStorage, Meta

from .tensor import Fake, NoFake, fake_like


def held(x: torch.Tensor) -> tuple[dict[str, Any], Any]:
    """What a tensor holds, by name, and what its class is to make another one from."""
    names, facts = x.__tensor_flatten__()  # type: ignore[attr-defined]
    return {name: getattr(x, name) for name in names}, facts


def composed_fake(real: torch.Tensor, stores: dict[int, FakeStorage]) -> torch.Tensor:
    """The fake of a real tensor that holds others."""
    parts, facts = held(real)
    fakes = {name: fake_of(part, stores) for name, part in parts.items()}
    made = around(real, fakes, facts)
    if real.requires_grad and not real.is_leaf:
        with torch.enable_grad():
            made = _NonLeaf.apply(made)
    if getattr(real, "_is_param", False):
        made._is_param = True  # type: ignore[attr-defined]
    return looking(made)


def fake_of(part: Any, stores: dict[int, FakeStorage]) -> Any:
    """The fake of what a tensor holds; of what is no tensor, the thing itself."""
    if not isinstance(part, torch.Tensor):
        return part
    return composed_fake(part, stores) if is_composed(type(part)) else fake_like(part, stores)


def around(like: torch.Tensor, parts: dict[str, Any], facts: Any) -> torch.Tensor:
    """A tensor of the same class, size and strides, which holds `parts`."""
    made = type(like).__tensor_unflatten__(parts, facts, like.size(), like.stride())  # type: ignore[attr-defined]
    return made.requires_grad_(like.requires_grad) if made.requires_grad != like.requires_grad else made


class _NonLeaf(torch.autograd.Function):
    """Gives such a fake a grad_fn, for inputs that are results of earlier operations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return around(x.detach(), *held(x))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def looking(x: torch.Tensor) -> torch.Tensor:
    """The fake itself, after it got what the tracer asks of each. Raises: NoFake where something in it is no fake."""
    if not hasattr(x, "m"):
        x.m = Meta(tuple(x.size()), x.stride(), x.storage_offset(), x.dtype, x.device, store_in(x))  # type: ignore[attr-defined]
        x.conjugated = x.viewed = False  # type: ignore[attr-defined]
    return x


def store_in(x: torch.Tensor) -> FakeStorage:
    """The store of the first tensor in a fake. Raises: NoFake where something in it is no fake."""
    if isinstance(x, Fake):
        return x.m.store
    stores = [store_in(part) for part in held(x)[0].values() if isinstance(part, torch.Tensor)] if is_composed(type(x)) else []
    if not stores:
        raise NoFake(type(x).__name__, "it was made of tensors that are no fakes")
    return stores[0]


def composed_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors that hold others among an operation's arguments or results."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from composed_in(v)
    elif isinstance(value, dict):
        yield from composed_in(tuple(value.values()))
    elif isinstance(value, torch.Tensor) and type(value) is not Fake and is_composed(type(value)):
        yield value
