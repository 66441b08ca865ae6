"""Hooks of gradients that eager does not come to.

A compiled region is one node of autograd. Where some of its results are not used, some of its inputs have no gradient. Torch's
engine goes on to them all the same, and calls their hooks with None; so those of the unused results. Eager has a node for each
operation: it does not come to those, and calls no hook.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

Hook = Callable[[torch.Tensor], torch.Tensor | None]


class Sparing(OrderedDict):
    """A tensor's table of hooks, each of which is called only with a gradient."""

    def __setitem__(self, key: int, hook: Hook) -> None:
        super().__setitem__(key, hook if type(hook) is Spared else Spared(hook))


def sparing(tensor: torch.Tensor) -> None:
    """Gives a tensor that some backward passes do not come to its table, before the program registers hooks. Cost: 0.9 us."""
    if tensor.grad_fn is not None:
        tensor._backward_hooks = Sparing()
        tensor.grad_fn._register_hook_dict(tensor)


class Spared:
    """A hook that is called only with a gradient. hooks, key: the tensor's table, where the hook is put back once it was called;
    without a table this stays in its place."""

    def __init__(self, hook: Hook, hooks: dict[int, Any] | None = None, key: int = 0) -> None:
        self.hook, self.hooks, self.key = hook, hooks, key

    def __call__(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        if self.hooks is not None and self.hooks.get(self.key) is self:
            self.hooks[self.key] = self.hook
        return None if grad is None else self.hook(grad)


def spare(hooks: dict[int, Any]) -> None:
    """Keeps a tensor's hooks from being called without a gradient, once."""
    for key, hook in hooks.items():
        if type(hook) is not Spared:
            hooks[key] = Spared(hook, hooks, key)


def register(tensor: torch.Tensor, hook: Hook) -> RemovableHandle:
    """Registers a hook on what a region made."""
    return tensor.register_hook(Spared(hook))
