"""Rows of activations."""

from __future__ import annotations

import torch

from bytejit.common.spec import Spec

from .pointwise import clamp, either
from .table import FLOATS, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten


@row(aten.relu.default, dtypes=FLOATS | {torch.int32})
def relu(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """max(x, 0)."""
    return w.op("Relu", x)


@row(aten.gelu.default, dtypes=FLOATS)
def gelu(w: ModelWriter, out: Spec, x: Tensor, approximate: str = "none") -> Tensor:
    """x times the cumulative normal distribution at x; approximate: `none` or `tanh`."""
    return w.op("Gelu", x, approximate=approximate)


@row(aten.silu.default, dtypes=FLOATS)
def silu(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return w.op("Mul", x, w.op("Sigmoid", x))


@row(aten.leaky_relu.default, dtypes=FLOATS)
def leaky_relu(w: ModelWriter, out: Spec, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is above zero, else negative_slope * x."""
    return w.op("LeakyRelu", x, alpha=negative_slope)


@row(aten.elu.default, dtypes=FLOATS)
def elu(w: ModelWriter, out: Spec, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale * x where x is above zero, else scale * alpha * (exp(input_scale * x) - 1)."""
    if input_scale != 1:
        raise Cannot("it has input_scale")
    below = w.op("Mul", w.op("Elu", x, alpha=1.0), alpha)
    made = either(w, w.op("Greater", x, 0, dtype=torch.bool), x, below, out.dtype)
    return made if scale == 1 else w.op("Mul", made, scale)


@row(aten.hardtanh.default, dtypes=FLOATS)
def hardtanh(w: ModelWriter, out: Spec, x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """x, kept between two numbers."""
    return clamp(w, out, x, min_val, max_val)


@row(aten.hardsigmoid.default, dtypes=FLOATS)
def hardsigmoid(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return w.op("Div", clamp(w, out, w.op("Add", x, 3), 0, 6), 6)


@row(aten.hardswish.default, dtypes=FLOATS)
def hardswish(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """x * hardsigmoid(x)."""
    return w.op("Div", w.op("Mul", x, clamp(w, out, w.op("Add", x, 3), 0, 6)), 6)


@row(aten.softplus.default, dtypes=FLOATS)
def softplus(w: ModelWriter, out: Spec, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is beyond the threshold."""
    wide = w.op("Mul", x, beta)
    made = w.op("Div", w.op("Softplus", wide), beta)
    return either(w, w.op("Greater", wide, threshold, dtype=torch.bool), x, made, out.dtype)


@row(aten.threshold_backward.default, dtypes=FLOATS)
def threshold_backward(w: ModelWriter, out: Spec, grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """The gradient; zero where x is at most the threshold."""
    return either(w, w.op("LessOrEqual", x, threshold, dtype=torch.bool), 0, grad, out.dtype)
