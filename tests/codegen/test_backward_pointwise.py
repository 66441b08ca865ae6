"""Gradients of activations and losses as kernels of both printers against eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from backward import aten, check, check_sizes
from both import both

pytestmark = pytest.mark.cxx

SPECIAL = torch.tensor(
    [torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5, 6.0, 0.3, -0.3, 1e-30, 40.0]
)
ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "elu": (aten.elu_backward.default, lambda x: F.elu(x, 0.7)),
    "celu": (aten.elu_backward.default, lambda x: F.celu(x, 0.7)),
    "selu": (aten.elu_backward.default, F.selu),
    "elu_": (aten.elu_backward.default, lambda x: F.elu_(x * 1, 0.7)),
    "gelu": (aten.gelu_backward.default, F.gelu),
    "gelu_tanh": (aten.gelu_backward.default, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (aten.silu_backward.default, F.silu),
    "mish": (aten.mish_backward.default, F.mish),
    "hardswish": (aten.hardswish_backward.default, F.hardswish),
    "hardsigmoid": (aten.hardsigmoid_backward.default, F.hardsigmoid),
    "hardtanh": (aten.hardtanh_backward.default, lambda x: F.hardtanh(x, -0.3, 0.5)),
    "relu6": (aten.hardtanh_backward.default, F.relu6),
    "hardshrink": (aten.hardshrink_backward.default, lambda x: F.hardshrink(x, 0.3)),
    "softshrink": (aten.softshrink_backward.default, lambda x: F.softshrink(x, 0.3)),
    "leaky_relu": (aten.leaky_relu_backward.default, lambda x: F.leaky_relu(x, 0.2)),
    "softplus": (aten.softplus_backward.default, lambda x: F.softplus(x, 2, 10)),
    "log_sigmoid": (aten.log_sigmoid_backward.default, F.logsigmoid),
    "logit": (aten.logit_backward.default, torch.logit),
    "logit_eps": (aten.logit_backward.default, lambda x: torch.logit(x, 0.1)),
    "logit_negative": (aten.logit_backward.default, lambda x: torch.logit(x, -0.1)),
    "sigmoid": (aten.sigmoid_backward.default, torch.sigmoid),
    "tanh": (aten.tanh_backward.default, torch.tanh),
    "relu": (aten.threshold_backward.default, torch.relu),
    "glu": (aten.glu_backward.default, F.glu),
    "glu_0": (aten.glu_backward.default, lambda x: F.glu(x, 0)),
    "rrelu": (aten.rrelu_with_noise_backward.default, lambda x: F.rrelu(x, training=True)),
}


#: at nan, eager's vector code and its scalar code disagree
UNSURE_AT_NAN = ("elu", "celu", "selu", "elu_", "hardswish", "hardtanh", "relu6", "hardshrink", "softshrink", "logit_eps")


def points(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([SPECIAL, torch.randn(32)]).view(6, 8).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, dtype: torch.dtype) -> None:
    op, fn = ACTIVATIONS[name]
    x = points(dtype) + 0  # no -0.0, where eager's ways of logit's disagree too
    check(op, fn, x.nan_to_num(2.0) if name in UNSURE_AT_NAN else x, triton=dtype is torch.float32)


@pytest.mark.parametrize("name", ["elu", "glu", "glu_0", "hardswish", "softplus"])
def test_activation_of_other_layouts(name: str) -> None:
    op, fn = ACTIVATIONS[name]
    check(op, fn, torch.randn(4, 6).t(), triton=False)
    check(op, fn, torch.randn(2, 4, 6, 8).contiguous(memory_format=torch.channels_last), triton=False)
    check(op, fn, torch.randn(0, 4) if name == "glu" else torch.randn(4, 0), triton=False)


def test_prelu() -> None:
    check(aten._prelu_kernel_backward.default, F.prelu, torch.randn(3, 4, 5), torch.rand(4))
    check(aten._prelu_kernel_backward.default, F.prelu, points(torch.float32), torch.rand(1))


def test_rrelu_in_evaluation() -> None:
    fn = aten.rrelu_with_noise_backward.default
    both(lambda g, x: fn(g, x, x, 0.1, 0.3, False, False), torch.randn(4, 5), torch.randn(4, 5))


def test_dropout() -> None:
    both(lambda g, m: aten.native_dropout_backward(g, m, 1.25), torch.randn(4, 5), torch.rand(4, 5) > 0.2)


LOSSES: dict[str, tuple[Callable, Callable]] = {
    "mse": (aten.mse_loss_backward.default, F.mse_loss),
    "smooth_l1": (aten.smooth_l1_loss_backward.default, lambda x, t, **k: F.smooth_l1_loss(x, t, beta=0.5, **k)),
    "huber": (aten.huber_loss_backward.default, lambda x, t, **k: F.huber_loss(x, t, delta=0.5, **k)),
    "soft_margin": (aten.soft_margin_loss_backward.default, F.soft_margin_loss),
    "bce": (aten.binary_cross_entropy_backward.default, F.binary_cross_entropy),
}


@pytest.mark.parametrize("name", ["mse", "smooth_l1", "huber"])
def test_losses_of_infinite_distances(name: str) -> None:
    op, fn = LOSSES[name]
    check(op, lambda x: fn(x, torch.zeros(48).view(6, 8), reduction="none"), points(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str, reduction: str, dtype: torch.dtype) -> None:
    op, fn = LOSSES[name]
    x, t = torch.rand(5, 7), torch.rand(5, 7).round() * 2 - 1 if name == "soft_margin" else torch.rand(5, 7)
    x.view(-1)[:3], t.view(-1)[:3] = torch.tensor([0.0, 1.0, 0.75]), torch.tensor([0.0, 1.0, 0.25])
    triton = dtype is torch.float32 and reduction == "mean"
    check(op, lambda x: fn(x, t.to(dtype), reduction=reduction), x.to(dtype), triton=triton)


def test_loss_with_weights() -> None:
    x, t, w = torch.rand(5, 7), torch.rand(5, 7), torch.rand(7)
    check(LOSSES["bce"][0], lambda x: F.binary_cross_entropy(x, t, w), x)
    check(LOSSES["bce"][0], lambda x: F.binary_cross_entropy(x, t, w, reduction="sum"), x, triton=False)


def test_sizes_that_change() -> None:
    def fn(g: torch.Tensor, x: torch.Tensor) -> tuple:
        one = g.sum()
        return (
            aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
            aten.glu_backward(g, torch.cat([x, x], 1), 1),
            aten.mse_loss_backward(one, x, g, 1),
            aten.binary_cross_entropy_backward(one, x.sigmoid(), g.sigmoid(), None, 1),
        )

    check_sizes(fn, lambda n, m: (torch.randn(n, m), torch.randn(n, m)), [(3, 4), (5, 8), (9, 2)])
