"""Who holds a tensor: whether nobody would see it if its memory were used anew.

How many holders a tensor has that nobody holds but a parameter, as its `.grad`, depends on torch and on Python: it is counted
once, on such a tensor.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable

import torch

from . import caches

Holders = tuple[int, int, int, int]


def is_only_a_grad(parameter: torch.Tensor, storage: int) -> bool:
    """Whether `.grad` of a parameter is a tensor in this storage (its `_cdata`) that nobody else holds. Other tensors in the
    storage are the caller's business."""
    if type(parameter.grad) is not torch.Tensor or parameter.grad.untyped_storage()._cdata != storage:
        return False
    return holders_of(weakref.ref(parameter.grad))[:2] == of_a_lone_grad()[:2]


def is_lone(tensor: Callable[[], torch.Tensor | None]) -> bool:
    """Whether a tensor that is some parameter's `.grad`, given by a weak reference, has no other holder, nor has its memory."""
    return holders_of(tensor) == of_a_lone_grad()


def drop_lone_grads(parameters: Iterable[torch.Tensor]) -> None:
    """Lets go of gradients that nobody else holds and that no other stream works on, as `zero_grad` does."""
    for p in parameters:
        grad = weakref.ref(p.grad) if p.grad is not None else None
        if grad is not None and is_lone(grad) and p.grad.untyped_storage()._cdata not in caches.STREAMED:
            p.grad = None


def holders_of(tensor: Callable[[], torch.Tensor | None]) -> Holders:
    """Returns how many hold a tensor in C++ and in Python, and its memory in C++ and in Python."""
    t = tensor()
    assert t is not None
    return t._use_count(), sys.getrefcount(t), *holders_of_memory(t.untyped_storage())


def holders_of_memory(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Returns how many hold a storage in C++, and in Python."""
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


@functools.cache
def of_a_lone_grad() -> Holders:
    """The holders of a gradient that only its parameter has."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    return holders_of(weakref.ref(parameter.grad))
