"""Gradients that are formulas over the elements: activations, losses, dropout. Arguments as ATen's derivatives give them.

At nan, eager's vector code and its scalar code (the last elements of a row) disagree for several of these: as in the former.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.table import Lower, lowers, op
from bytejit.common.dtypes import FLOATS, NARROW, acc_dtype
from bytejit.common.pointwise_ops import POINTWISE

from .activations import below
from .composite import F, formula
from .pointwise import aten
from .reduce import count, number

MEAN = 1  # reductions of losses: 0 none, 1 mean, 2 sum


# ---- activations --------------------------------------------------------------------------------------------------
formula("threshold_backward", cost=2)(lambda g, x, limit: x.do("le", limit).pick(0, g))
formula("sigmoid_backward", cost=4)(lambda g, y: g * (1 - y) * y)
formula("tanh_backward", cost=4)(lambda g, y: g * (1 - y * y))
formula("leaky_relu_backward", cost=2)(lambda g, x, slope, result: x.do("gt", 0).pick(g, g * slope))
formula("hardsigmoid_backward", cost=4)(lambda g, x: x.do("gt", -3).do("and", x.do("lt", 3)).pick(g / 6, 0))
formula("native_dropout_backward", cost=2)(lambda g, mask, scale: g * (mask * scale))


@formula("gelu_backward", cost=30)
def gelu_backward(g: F, x: F, approximate: str = "none") -> F:
    """g * gelu'(x). The tanh form has the parts of a sigmoid's distribution on both sides: neither is 1 less the other, which
    cancels."""
    if approximate == "none":
        density = (x * x * -0.5).do("exp") * (1 / math.sqrt(2 * math.pi))
        return g * (below(x, approximate) + x * density)
    y = (x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)
    e = (y.do("abs") * -2).do("exp")
    more = 1 / (1 + e)
    less = e * more
    part = x.do("lt", 0).pick(less, more)
    return g * (part + x * more * less * (2 * math.sqrt(2 / math.pi) * (1 + x * x * (3 * 0.044715))))


@formula("silu_backward", cost=16)
def silu_backward(g: F, x: F) -> F:
    """g * silu'(x)."""
    s = x.do("sigmoid")
    return g * s * (1 + x * (1 - s))


@formula("mish_backward", cost=30)
def mish_backward(g: F, x: F) -> F:
    """g * mish'(x), with `mish`'s e and n. Past 20 that is g, and nan at infinity as eager's."""
    low = x.do("minimum", 20)
    e = low.do("exp")
    n = e * (e + 2)
    slope = n / (n + 2) + low * (4 * e * (e + 1)) / ((n + 2) * (n + 2))
    return g * x.do("gt", 20).pick(x - x + 1, slope)


def on_cpu(x: F) -> bool:
    """Whether eager's vector code decides what nan gives: a GPU's scalar kernels ask the other way around."""
    return x.ctx.device() == "cpu"


@formula("hardswish_backward", cost=5)
def hardswish_backward(g: F, x: F) -> F:
    """0 up to -3, g from 3 on, and at nan on a GPU, a line between."""
    line = x.do("le", -3).pick(0, g * (x / 3 + 0.5))
    return x.do("ge", 3).pick(g, line) if on_cpu(x) else x.do("lt", 3).pick(line, g)


@formula("softplus_backward", cost=14)
def softplus_backward(g: F, x: F, beta: float, threshold: float) -> F:
    """g * sigmoid(beta * x); g past the threshold."""
    z = (x * beta).do("exp")
    return (x * beta).do("gt", threshold).pick(g, g * z / (z + 1))


def _rounded(x: F, limit: float) -> F:
    """A limit as x's own dtype holds it: the result jumps there."""
    number_, dtype = x._other(limit), ir_dtype(x.ctx.spec())
    return F(x.ctx, x.ctx.rounded(number_, dtype) if dtype in NARROW else number_)


@formula("shrink_backward", cost=3)
def shrink_backward(g: F, x: F, limit: float) -> F:
    """0 within the limit, and at nan on a CPU."""
    bound = _rounded(x, limit)
    if on_cpu(x):
        return x.do("gt", bound).do("or", x.do("lt", -bound)).pick(g, 0)
    return x.do("ge", -bound).do("and", x.do("le", bound)).pick(0, g)


@formula("hardtanh_backward", cost=2)
def hardtanh_backward(g: F, x: F, low: float, high: float) -> F:
    """0 from the limits on, and at nan on a CPU."""
    low_, high_ = _rounded(x, low), _rounded(x, high)
    if on_cpu(x):
        return x.do("gt", low_).do("and", x.do("lt", high_)).pick(g, 0)
    return x.do("le", low_).do("or", x.do("ge", high_)).pick(0, g)


@formula("logit_backward", cost=6)
def logit_backward(g: F, x: F, eps: float | None = None) -> F:
    """g / (x * (1 - x)); 0 within eps of 0 and 1, at nan too on a CPU, nan outside of them where there is no eps, or a negative
    one."""
    if isinstance(eps, (int, float)) and eps < 0:
        eps = None
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    slope, beyond = g / (x * (1 - x)), math.nan if eps is None else 0.0
    if on_cpu(x):
        return x.do("ge", low).do("and", x.do("le", high)).pick(slope, beyond)
    return x.do("lt", low).do("or", x.do("gt", high)).pick(beyond, slope)


def _row(name: str, overload: str = "", cost: int = 10, elementwise: bool = True) -> Callable[[Lower], Lower]:
    """Declares a row of kind composite, of floats, whose lower function is decorated. Without an overload they are those of
    `common/pointwise_ops.py`."""
    overloads = (overload,) if overload else POINTWISE[name].overloads
    return lowers("composite", name, overloads, cost=cost, elementwise=elementwise, dtypes=FLOATS)


def _elements(ctx: Lowering, *values: Value) -> Any:
    """A function from coordinates to the values there, in the dtype that the result is computed in."""
    spec = ctx.node.meta["spec"]
    dtype = acc_dtype(ir_dtype(spec[0] if isinstance(spec, tuple) else spec))
    if dtype not in FLOATS:
        raise NoRule(f"a gradient of {dtype}")
    return lambda c: (F(ctx, ctx.read(v, c, dtype)) for v in values)


@_row("elu_backward", cost=16)
def elu_backward(ctx: Lowering, g: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value) -> Value:
    at = _elements(ctx, g, x)

    def element(c: tuple) -> Expr:
        g, x = at(c)
        low = x + alpha * scale if is_result else (x * input_scale).do("exp") * (alpha * scale)
        high = g * scale
        low = g * input_scale * low
        return (x.do("gt", 0).pick(high, low) if on_cpu(x) else x.do("le", 0).pick(low, high)).e

    return ctx.map(element)


@_row("glu_backward", "glu_backward", 16, elementwise=False)  # of two halves
def glu_backward(ctx: Lowering, g: Value, x: Value, dim: int) -> Value:
    """Lowers it in one kernel: to an element of one half belongs the same element of the other."""
    dim = dim % len(x.shape)
    half = ix.size_of(ix.floordiv(x.shape[dim], 2, {}))

    def element(c: tuple) -> Expr:
        low, second = ix.index(c[dim] - half), ctx.op("ge", ctx.cons.index(ix.index(c[dim])), ctx.const(half, "i64"))
        first = ctx.op("logical_not", second)

        def pick(v: Value, here: Any, there: Any) -> F:
            """v at `here` in the first half, at `there` in the second."""
            dtype = acc_dtype(v.dtype)
            a = ctx.read(v, (*c[:dim], ix.index(here), *c[dim + 1 :]), dtype, first)
            b = ctx.read(v, (*c[:dim], ix.index(there), *c[dim + 1 :]), dtype, second)
            return F(ctx, ctx.op("select", second, b, a, dtype=dtype))

        up, gate = pick(g, c[dim], low), pick(x, c[dim] + half, c[dim]).do("sigmoid")
        value = pick(x, c[dim], low)
        return F(ctx, second).pick((1 - gate) * gate * value * up, gate * up).e

    return ctx.map(element)


@_row("prelu_backward", "_prelu_kernel_backward", 4)
def prelu_backward(ctx: Lowering, g: Value, x: Value, weight: Value) -> tuple:
    at = _elements(ctx, g, x, weight)

    def to_x(c: tuple) -> Expr:
        g, x, w = at(c)
        return x.do("gt", 0).pick(g, w * g).e

    def to_weight(c: tuple) -> Expr:
        g, x, _ = at(c)
        return x.do("gt", 0).pick(0, x * g).e

    return tuple(ctx.map(fn, i) if ctx.used(i) else None for i, fn in enumerate((to_x, to_weight)))


@_row("rrelu_backward", "rrelu_with_noise_backward", 3)
def rrelu_backward(
    ctx: Lowering, g: Value, x: Value, noise: Value, low: float, high: float, training: bool, result: bool
) -> Value:
    at = _elements(ctx, g, x, noise)

    def element(c: tuple) -> Expr:
        g, x, n = at(c)
        return (g * n if training and high - low > 1e-6 else x.do("gt", 0).pick(g, g * ((low + high) / 2))).e

    return ctx.map(element)


# ---- losses: g is one number, or one for each element -------------------------------------------------------------
def _loss(name: str, *overloads: str) -> Any:
    """Declares the row of the gradient of a loss of (g, x, target, reduction, ...): fn(x, target, ...) as F is its slope at x."""

    def declare(fn: Any) -> Any:
        def lower(ctx: Lowering, g: Value, x: Value, target: Value, reduction: int, *rest: Any) -> Value:
            at, n = _elements(ctx, g, x, target), number(count(x, tuple(range(len(x.shape)))))

            def element(c: tuple) -> Expr:
                g, x, t = at(c)
                return (fn(x, t, *rest) * (g / n if reduction == MEAN else g)).e

            return ctx.map(element)

        op(name, aten(*overloads or POINTWISE[name].overloads), "composite", cost=10, dtypes=FLOATS, lower=lower)
        return fn

    return declare


_loss("mse_loss_backward")(lambda x, t: (x - t) * 2)


@_loss("smooth_l1_loss_backward")
def smooth_l1_loss_backward(x: F, t: F, beta: float) -> F:
    """The sign of the distance beyond beta."""
    d = x - t
    one = F(d.ctx, d.ctx.const(1.0, d.e.dtype))
    inner = d if beta == 0 else d / beta
    return d.do("le", -beta).pick(-one, d.do("ge", beta).pick(one, inner))


@_loss("huber_loss_backward")
def huber_loss_backward(x: F, t: F, delta: float) -> F:
    """The distance, delta at most."""
    d = x - t
    most = F(d.ctx, d.ctx.const(float(delta), d.e.dtype))
    return d.do("le", -delta).pick(-most, d.do("ge", delta).pick(most, d))


@_loss("soft_margin_loss_backward", "soft_margin_loss_backward")
def soft_margin_loss_backward(x: F, t: F) -> F:
    """-t * sigmoid(-t * x)."""
    z = (-t * x).do("exp")
    return -t * z / (z + 1)


@_row("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    ctx: Lowering, g: Value, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    at, n = _elements(ctx, g, x, target), number(count(x, tuple(range(len(x.shape)))))

    def element(c: tuple) -> Expr:
        g, v, t = at(c)
        slope = g * (v - t) / ((1 - v) * v).do("maximum", 1e-12)
        if weight is not None:
            slope = slope * F(ctx, ctx.read(weight, c, v.e.dtype))
        return (slope / n if reduction == MEAN else slope).e

    return ctx.map(element)
