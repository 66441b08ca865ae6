"""Decomposes torch's fused optimizer operators (`_fused_adam_` and others), so that their parts fuse with what is around them.

Source: aten/src/ATen/native/cpu/FusedAdamKernel.cpp and its neighbours; the CUDA kernels compute the same. Steps are counted by
the caller. With `found_inf` nothing is written where it is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensors = Sequence[torch.Tensor]
Number: TypeAlias = torch.Tensor | float


class _Writes:
    """Writes of one operator: undone where the gradients are not finite."""

    def __init__(self, grad_scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> None:
        self.scale, self.found = grad_scale, found_inf

    def write(self, x: torch.Tensor, new: torch.Tensor) -> None:
        """x[:] = new. No version counts it, as none counts what the operator writes."""
        versions = () if x.is_inference() else (x._version,)
        x.copy_(new if self.found is None else torch.where(self.found == 1, x, new))
        if versions:
            torch._C._autograd._unsafe_set_version_counter((x,), versions)

    def gradient(self, grad: torch.Tensor, maximize: bool) -> torch.Tensor:
        """The gradient without its scale, which is written back."""
        if self.scale is not None:
            unscaled = grad / self.scale
            self.write(grad, unscaled)
            grad = unscaled
        return -grad if maximize else grad


def adam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Number,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    decoupled: bool = False,
) -> None:
    """`torch._fused_adam_`; decoupled: `torch._fused_adamw_`."""
    to = _Writes(grad_scale, found_inf)
    for i, (param, grad, first, second, step) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, state_steps)):
        grad, step, value = to.gradient(grad, maximize), step.double(), param
        if decoupled:
            value = value - value * (lr * weight_decay)
        else:
            grad = grad + value * weight_decay
        new_first = torch.lerp(first, grad, 1 - beta1)
        new_second = second * beta2 + grad * grad * (1 - beta2)
        root = new_second
        if amsgrad:
            root = torch.maximum(max_exp_avg_sqs[i], new_second)
            to.write(max_exp_avg_sqs[i], root)
        denom = root.sqrt() / (1 - beta2**step) ** 0.5 + eps
        to.write(first, new_first)
        to.write(second, new_second)
        to.write(param, value - new_first / denom * (lr / (1 - beta1**step)))


def adamw(*args: Any, **options: Any) -> None:
    """`torch._fused_adamw_`."""
    adam(*args, **options, decoupled=True)


def sgd(
    params: Tensors,
    grads: Tensors,
    buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`torch._fused_sgd_`."""
    to = _Writes(grad_scale, found_inf)
    for i, (param, grad) in enumerate(zip(params, grads)):
        grad = to.gradient(grad, maximize) + param * weight_decay
        if len(buffers):
            moved = grad if is_first_step else buffers[i] * momentum + grad * (1 - dampening)
            to.write(buffers[i], moved)
            grad = grad + moved * momentum if nesterov else moved
        to.write(param, param - grad * lr)


def adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`torch._fused_adagrad_`."""
    to = _Writes(grad_scale, found_inf)
    for param, grad, total, step in zip(params, grads, state_sums, state_steps):
        grad = to.gradient(grad, maximize) + param * weight_decay
        added = total + grad * grad
        to.write(total, added)
        to.write(param, param - grad / (added.sqrt() + eps) * (lr / (1 + (step.double() - 1) * lr_decay)))


def unscale(grads: Tensors, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """`torch._amp_foreach_non_finite_check_and_unscale_`, of `GradScaler`."""
    for grad in grads:
        bad = torch.isfinite(grad).all().logical_not()
        found_inf.copy_(torch.where(bad, torch.ones_like(found_inf), found_inf))
        grad.mul_(inv_scale)


def update_scale(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """`torch._amp_update_scale_`, of `GradScaler`."""
    bad, steps = found_inf != 0, growth_tracker + 1
    full, grown = steps == growth_interval, scale * scale_growth_factor
    grown = torch.where(full & torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(bad, scale * scale_backoff_factor, grown))
    growth_tracker.copy_(torch.where(bad | full, torch.zeros_like(steps), steps))
    return scale


FUSED: dict[Callable, Callable] = {
    torch._fused_adam_: adam,
    torch._fused_adamw_: adamw,
    torch._fused_sgd_: sgd,
    torch._fused_adagrad_: adagrad,
    torch._amp_foreach_non_finite_check_and_unscale_: unscale,
    torch._amp_update_scale_: update_scale,
}
