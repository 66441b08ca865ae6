"""Calls that reach the fake mode, and are made in another way than they were."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bytejit.common.overriding import is_composed

from .rules.errors import NoFake

NUMBERS = (int, float, bool, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def as_made(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> tuple:
    """The call to make in place of one of a transform's rules: a number cast as a tensor becomes one, zeros get memory."""
    if func is torch.ops.aten._efficientzerotensor.default:
        return torch.ops.aten.zeros.default, args, kwargs
    if func is torch.ops.aten._to_copy.default and type(args[0]) in NUMBERS:
        return torch.ops.aten.scalar_tensor.default, args, {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
    return func, args, kwargs


def left_to_class(func: torch._ops.OpOverload, classes: Iterable[type]) -> bool:
    """Whether the class of an argument makes the call, on tensors that the argument holds. Raises: NoFake for random numbers,
    which it may draw by means of its own."""
    if not any(map(is_composed, classes)):
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise NoFake(func.name(), "random numbers for a tensor that holds others")
    return True


def not_waited_for(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> torch.Tensor:
    """What other processes send: a tensor that holds the one which is to come."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(args[0])
