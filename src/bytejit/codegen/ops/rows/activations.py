"""Rows of activations, as formulas (see composite.py)."""

from __future__ import annotations

import math
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.table import op
from bytejit.common.dtypes import FLOATS, NARROW, acc_dtype

from .composite import NUMBERS, SQRT_HALF, F, formula, limits
from .pointwise import aten

formula("relu", ref=torch.relu, cost=1, dtypes=NUMBERS)(lambda x: limits(x, 0))
formula("relu6", "relu6", ref=torch.nn.functional.relu6, cost=2)(lambda x: limits(x, 0, 6))
formula("hardtanh", ref=torch.nn.functional.hardtanh, cost=2)(lambda x, a=-1, b=1: limits(x, a, b))
formula("silu", ref=torch.nn.functional.silu, cost=11)(lambda x: x / (1 + (-x).do("exp")))


@formula("mish", ref=torch.nn.functional.mish, cost=20)
def mish(x: F) -> F:
    """x * tanh(log1p(e)) of e = exp(x), which is x * n / (n + 2) of n = e * (e + 2). Past 20 that is x."""
    e = x.do("minimum", 20).do("exp")
    n = e * (e + 2)
    return x * (n / (n + 2))


formula("hardsigmoid", ref=torch.nn.functional.hardsigmoid, cost=4)(lambda x: limits(x + 3, 0, 6) / 6)
formula("hardswish", ref=torch.nn.functional.hardswish, cost=5)(lambda x: x * limits(x + 3, 0, 6) / 6)
formula("leaky_relu", ref=torch.nn.functional.leaky_relu, cost=2)(lambda x, slope=0.01: x.do("gt", 0).pick(x, x * slope))
formula("prelu", ("_prelu_kernel",), 2, cost=2)(lambda x, w: x.do("gt", 0).pick(x, x * w))
formula("threshold", cost=2)(lambda x, limit, value: x.do("le", limit).pick(value, x))


@formula("hardshrink", ref=torch.nn.functional.hardshrink, cost=3)
def hardshrink(x: F, limit: Any = 0.5) -> F:
    """Zero within the limit, as x's own dtype holds it: the result jumps there."""
    limit = F(x.ctx, x.ctx.rounded(x._other(limit), dtype)) if (dtype := ir_dtype(x.ctx.spec())) in NARROW else limit
    return x.do("ge", -limit).do("and", x.do("le", limit)).pick(0, x)


formula("softshrink", ref=torch.nn.functional.softshrink, cost=4)(
    lambda x, l=0.5: x.do("gt", l).pick(x - l, x.do("lt", -l).pick(x + l, x.do("abs") * 0))  # no -0
)
formula("log_sigmoid", "log_sigmoid", ref=torch.nn.functional.logsigmoid, cost=20)(lambda x: logsigmoid(x))


@formula("gelu", ref=torch.nn.functional.gelu, cost=16)
def gelu(x: F, approximate: str = "none") -> F:
    """Both forms, with torch's constants."""
    return x * below(x, approximate)


def below(x: F, approximate: str) -> F:
    """The part of the standard normal distribution below x. On a GPU in forms that have a faster text for 16 bits."""
    gpu = x.ctx.device() != "cpu"
    if approximate == "none":
        return x.do("normal_cdf") if gpu else 0.5 * (1 + (x * SQRT_HALF).do("erf"))
    y = (x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)
    return y.do("tanh_cdf") if gpu else 0.5 * (1 + y.do("tanh"))


@formula("elu", ref=torch.nn.functional.elu, cost=14)
def elu(x: F, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> F:
    """scale * (alpha * expm1(input_scale * x) if x < 0 else x): a zero keeps its sign, whatever alpha's."""
    return x.do("lt", 0).pick((x * input_scale).do("expm1") * (alpha * scale), x if scale == 1 else x * scale)


formula("selu", "selu", ref=torch.selu, cost=14)(lambda x: elu(x, 1.6732632423543772, 1.0507009873554805))


@formula("celu", ref=torch.celu, cost=14)
def celu(x: F, alpha: float = 1.0) -> F:
    """An elu of x / alpha. Raises: NoRule at 0, which torch refuses when it runs."""
    if alpha == 0:
        raise NoRule("celu with an alpha of 0")
    return elu(x, alpha, 1, 1 / alpha)


def soft_plus(x: F, beta: float = 1, threshold: float = 20) -> F:
    """log1p(exp(beta * x)) / beta; x itself past the threshold."""
    y = x if beta == 1 else x * beta
    soft = y.do("exp").do("log1p")
    return y.do("gt", threshold).pick(x, soft if beta == 1 else soft / beta)


formula("softplus", ref=torch.nn.functional.softplus, cost=20)(soft_plus)


def logsigmoid(x: F) -> F:
    """min(x, 0) - log1p(exp(-|x|))."""
    return x.do("minimum", 0) - (-x.do("abs")).do("exp").do("log1p")


def _log_sigmoid_forward(ctx: Lowering, x: Value) -> tuple:
    """(log_sigmoid(x), exp(-|x|)); the second is empty on a GPU."""
    buffer = None
    if ctx.used(1):
        buffer = ctx.map(lambda c: (-F(ctx, ctx.read(x, c)).do("abs")).do("exp").e, 1)
    return ctx.map(lambda c: logsigmoid(F(ctx, ctx.read(x, c))).e, 0), buffer


op("log_sigmoid_forward", aten("log_sigmoid_forward"), "composite", dtypes=FLOATS, elementwise=True, lower=_log_sigmoid_forward)


@formula("logit", "logit", ref=torch.logit, cost=12, domain=(0.01, 0.99))
def logit(x: F, eps: float | None = None) -> F:
    """log(x / (1 - x)) of x between eps and 1 - eps. An eps above a half has the limits the other way around: the lower one
    counts first, unlike in clamp."""
    if isinstance(eps, (int, float)) and eps > 0.5:
        x = x.do("lt", eps).pick(eps, x.do("gt", 1 - eps).pick(1 - eps, x))
    elif eps is not None:
        x = limits(x, eps, 1 - eps)
    return (x / (1 - x)).do("log")


def _glu(ctx: Lowering, x: Value, dim: int = -1) -> Value:
    dim, dtype = dim % len(x.shape), acc_dtype(x.dtype)
    half = ix.size_of(ix.floordiv(x.shape[dim], 2, {}))

    def at(c: tuple) -> Expr:
        gate = ctx.read(x, tuple(v + half if i == dim else v for i, v in enumerate(c)), dtype)
        return ctx.op("mul", ctx.read(x, c, dtype), ctx.op("sigmoid", gate))

    return ctx.map(at)


op("glu", aten("glu"), "composite", cost=12, lower=_glu)
