"""The history of a traced tensor. Autograd refuses to tell that of a view whose base was written behind it."""

from __future__ import annotations

import torch

from bytejit.common.gradients import refused
from bytejit.tracer.core.signals import Break


def check_usable(x: torch.Tensor) -> None:
    """Raises: Break where autograd refuses any use of a view: the original code then raises the error."""
    if x.requires_grad and refused(x):
        raise Break("a view that autograd refuses to use: what it views was written")


def step_of(x: torch.Tensor) -> torch.autograd.graph.Node | None:
    """Returns the step of autograd that made a tensor. Raises: Break."""
    check_usable(x)
    return x.grad_fn


def is_leaf(x: torch.Tensor) -> bool:
    """Returns whether a tensor was made by no step of autograd. Raises: Break."""
    return step_of(x) is None
