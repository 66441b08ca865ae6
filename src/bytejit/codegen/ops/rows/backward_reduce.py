"""Gradients with sums in them: softmax, cross entropy, and the norms. Sums over the batch (of a scale, a shift) and over a row
are kernels of their own here; fuse puts those that read the same elements into one sweep.

Differences from the mean are taken before they are summed up: sums of products lose digits where the mean is far from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, acc_dtype
from bytejit.common.spec import wrap_dim

from .composite import F
from .group_norm import of_channels
from .reduce import copied, count, kept, number, row

Reading = Callable[[tuple], F]


def reading(ctx: Lowering, v: Value, acc: str) -> Reading:
    """A function from coordinates to the element of v there."""
    return lambda c: F(ctx, ctx.read(v, c, acc))


# ---- softmax ------------------------------------------------------------------------------------------------------
def softmax_rows(ctx: Lowering, g: Value, y: Value, dim: int) -> tuple[tuple[int], str, Reading, Reading]:
    """The dimension and the dtype of the sum of each row, and how gradient and result are read. Raises: NoRule."""
    if not y.shape or y.dtype not in FLOATS or g.dtype != y.dtype:
        raise NoRule("a softmax of one number")
    acc = acc_dtype(g.dtype)
    return (wrap_dim(dim, len(y.shape)),), acc, reading(ctx, g, acc), reading(ctx, y, acc)


@row("softmax_backward", "_softmax_backward_data")
def softmax_backward(ctx: Lowering, g: Value, y: Value, dim: int, dtype: Any) -> Value:
    """y * (g - sum(g * y))."""
    dims, acc, up, out = softmax_rows(ctx, g, y, dim)
    total = ctx.reduce(y, dims, "sum", lambda c: (up(c) * out(c)).e, acc)
    return ctx.map(lambda c: ((up(c) - F(ctx, ctx.read(total, kept(c, dims, True)))) * out(c)).e)


@row("log_softmax_backward", "_log_softmax_backward_data")
def log_softmax_backward(ctx: Lowering, g: Value, y: Value, dim: int, dtype: Any) -> Value:
    """g - exp(y) * sum(g)."""
    dims, acc, up, out = softmax_rows(ctx, g, y, dim)
    total = ctx.reduce(g, dims, "sum", None, acc)
    return ctx.map(lambda c: (up(c) - out(c).do("exp") * F(ctx, ctx.read(total, kept(c, dims, True)))).e)


# ---- norms of rows ------------------------------------------------------------------------------------------------
def to_x(ctx: Lowering, x: Value, dims: tuple, scaled: Callable, normal: Callable, rstd: Callable, centred: bool = True) -> Value:
    """rstd * (scaled - mean(scaled) - normal * mean(scaled * normal)) over dims: the gradient of normal = (x - mean) * rstd at
    x. centred: the mean was taken off."""
    acc, n = acc_dtype(x.dtype), number(count(x, dims))
    first = ctx.reduce(x, dims, "sum", lambda c: scaled(c).e, acc) if centred else None
    second = ctx.reduce(x, dims, "sum", lambda c: (scaled(c) * normal(c)).e, acc)

    def element(c: tuple) -> Expr:
        k = kept(c, dims, True)
        value = scaled(c) - normal(c) * (F(ctx, ctx.read(second, k)) / n)
        return ((value - F(ctx, ctx.read(first, k)) / n if first is not None else value) * rstd(c)).e

    return ctx.map(element, 0)


def total_of(ctx: Lowering, x: Value, dims: tuple, term: Callable[[tuple], F]) -> Value:
    """The sum of a term over dims of x."""
    return ctx.reduce(x, dims, "sum", lambda c: term(c).e, acc_dtype(x.dtype))


def over_batch(ctx: Lowering, x: Value, dims: tuple, terms: dict[int, Callable[[tuple], F]]) -> dict[int, Value]:
    """The i-th results of the node that are sums of terms[i] over dims of x, in the shape that the node gives them."""
    made: dict[int, Value] = {}
    for i, term in terms.items():
        if ctx.used(i) and ctx.spec(i) is not None:
            made[i] = copied(ctx, total_of(ctx, x, dims, term), i)
    return made


@row("layer_norm_backward", "native_layer_norm_backward")
def layer_norm_backward(
    ctx: Lowering, g: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Value | None, bias: Value | None, mask: Any
) -> tuple:
    acc, n, k = acc_dtype(x.dtype), len(x.shape), len(shape)
    _checked(x, g)
    dims = tuple(range(n - k, n))
    up = reading(ctx, g, acc)

    def of_row(v: Value, c: tuple) -> F:
        return F(ctx, ctx.read(v, (*c[: n - k], *(ix.ZERO,) * k), acc))

    def normal(c: tuple) -> F:
        return (F(ctx, ctx.read(x, c, acc)) - of_row(mean, c)) * of_row(rstd, c)

    scaled = _times_weight(ctx, up, weight, n - k, acc)
    first = to_x(ctx, x, dims, scaled, normal, lambda c: of_row(rstd, c)) if mask[0] and ctx.used(0) else None
    batch = over_batch(ctx, x, tuple(range(n - k)), {1: lambda c: up(c) * normal(c), 2: up})
    return first, batch.get(1), batch.get(2)


@row("rms_norm_backward", "_fused_rms_norm_backward")
def rms_norm_backward(ctx: Lowering, g: Value, x: Value, shape: Any, rstd: Value, weight: Value | None, mask: Any) -> tuple:
    acc, n, k = acc_dtype(x.dtype), len(x.shape), len(shape)
    _checked(x, g)
    up = reading(ctx, g, acc)

    def scale(c: tuple) -> F:
        return F(ctx, ctx.read(rstd, (*c[: n - k], *(ix.ZERO,) * k), acc))

    def normal(c: tuple) -> F:
        return F(ctx, ctx.read(x, c, acc)) * scale(c)

    scaled = _times_weight(ctx, up, weight, n - k, acc)
    first = to_x(ctx, x, tuple(range(n - k, n)), scaled, normal, scale, False) if mask[0] and ctx.used(0) else None
    return first, over_batch(ctx, x, tuple(range(n - k)), {1: lambda c: up(c) * normal(c)}).get(1)


def _times_weight(ctx: Lowering, up: Reading, weight: Value | None, first: int, acc: str) -> Reading:
    """The gradient `up` times a norm's weight, whose dimensions are those of the input from `first` on."""
    return up if weight is None else lambda c: up(c) * F(ctx, ctx.read(weight, c[first:], acc))


def _checked(x: Value, g: Value) -> None:
    """Raises: NoRule for what eager refuses, or for nothing to sum up."""
    if x.dtype not in FLOATS or g.dtype != x.dtype or 0 in x.shape:
        raise NoRule("a norm of nothing, or of other dtypes")


# ---- norms of channels --------------------------------------------------------------------------------------------
@row("group_norm_backward", "native_group_norm_backward")
def group_norm_backward(
    ctx: Lowering,
    g: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Any,
    C: int,
    HxW: Any,
    groups: int,
    mask: Any,
) -> tuple:
    """Each channel is summed up first: the groups and the scale are made of those sums."""
    acc, each = acc_dtype(x.dtype), ix.size_of(ix.floordiv(C, groups, {}))
    _checked(x, g)
    up, n = reading(ctx, g, acc), len(x.shape)

    def of_group(v: Value, c: tuple) -> F:
        return F(ctx, ctx.read(v, c[:2], acc))

    mean, rstd = (of_channels(ctx, v, C, each) for v in (mean, rstd))

    def normal(c: tuple) -> F:
        return (F(ctx, ctx.read(x, c, acc)) - of_group(mean, c)) * of_group(rstd, c)

    within = tuple(range(2, n))
    plain = ctx.reduce(x, within, "sum", lambda c: up(c).e, acc)
    weighted = ctx.reduce(x, within, "sum", lambda c: (up(c) * normal(c)).e, acc)

    def of_groups(sums: Value) -> Value:
        """The sums, scaled, over the channels of each group."""
        split = ctx.view(sums, (N, groups, each), lambda c: (c[0], c[1] * each + c[2]))

        def term(c: tuple) -> Expr:
            e = F(ctx, ctx.read(split, c, acc))
            return (e if weight is None else e * F(ctx, ctx.read(weight, (ix.index(c[1] * each + c[2]),), acc))).e

        return ctx.reduce(split, (2,), "sum", term, acc)

    first = None
    if mask[0] and ctx.used(0):
        a, b = (of_channels(ctx, of_groups(v), C, each) for v in (plain, weighted))
        points = HxW * each

        def element(c: tuple) -> Expr:
            scaled = up(c) if weight is None else up(c) * F(ctx, ctx.read(weight, (c[1],), acc))
            mean_of = (of_group(a, c) + normal(c) * of_group(b, c)) / number(points)
            return ((scaled - mean_of) * of_group(rstd, c)).e

        first = ctx.map(element, 0)
    batch = over_batch(ctx, plain, (0,), {1: reading(ctx, weighted, acc), 2: reading(ctx, plain, acc)})
    return first, batch.get(1), batch.get(2)


def _channels(ctx: Lowering, g: Value, x: Value, weight: Any, mean: Any, scale: Callable[[tuple], F], train: bool) -> tuple:
    """Gradients of a batch norm at x, its weight and its bias; scale(coords of a channel): 1 over the deviation."""
    acc = acc_dtype(x.dtype)
    if x.dtype not in FLOATS or g.dtype != x.dtype or 0 in x.shape:
        raise NoRule("a norm of nothing, or of other dtypes")
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    up, n = reading(ctx, g, acc), number(count(x, dims))

    def apart(c: tuple) -> F:
        return F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(mean, (c[1],), acc))

    def times_weight(c: tuple, f: F) -> F:
        return f if weight is None else f * F(ctx, ctx.read(weight, c, acc))

    plain, product = (ctx.reduce(x, dims, "sum", fn, acc) for fn in (lambda c: up(c).e, lambda c: (up(c) * apart(c)).e))
    first = None
    if ctx.used(0) and ctx.spec(0) is not None:
        factor = ctx.pointwise((x.shape[1],), acc, lambda c: times_weight(c, scale(c)).e)
        if train:
            slope = ctx.pointwise((x.shape[1],), acc, lambda c: (F(ctx, ctx.read(product, c)) / n * scale(c) * scale(c)).e)
            shift = ctx.pointwise((x.shape[1],), acc, lambda c: (F(ctx, ctx.read(plain, c)) / n).e)

        def element(c: tuple) -> Expr:
            k = (c[1],)
            value = up(c)
            if train:
                value = value - F(ctx, ctx.read(shift, k)) - apart(c) * F(ctx, ctx.read(slope, k))
            return (value * F(ctx, ctx.read(factor, k))).e

        first = ctx.map(element, 0)
    second = third = None
    if ctx.used(1) and ctx.spec(1) is not None:
        second = ctx.map(lambda c: (F(ctx, ctx.read(product, c)) * scale(c)).e, 1)
    if ctx.used(2) and ctx.spec(2) is not None:
        third = ctx.map(lambda c: ctx.read(plain, c), 2)
    return first, second, third


@row("batch_norm_backward", "native_batch_norm_backward")
def batch_norm_backward(
    ctx: Lowering,
    g: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value | None,
    rstd: Value | None,
    train: bool,
    eps: float,
    mask: Any,
) -> tuple:
    """By the batch's own statistics, or in evaluation by the running ones."""
    acc = acc_dtype(x.dtype)
    if train:
        if mean is None or rstd is None:
            raise NoRule("no saved statistics")
        return _channels(ctx, g, x, weight, mean, lambda c: F(ctx, ctx.read(rstd, c, acc)), True)
    if running_mean is None or running_var is None:
        raise NoRule("no statistics")
    return _channels(ctx, g, x, weight, running_mean, lambda c: (F(ctx, ctx.read(running_var, c, acc)) + eps).do("rsqrt"), False)


@row("cudnn_batch_norm_backward", "cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    ctx: Lowering,
    x: Value,
    g: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value,
    rstd: Value,
    eps: float,
    reserve: Value,
) -> tuple:
    """Always in training."""
    return batch_norm_backward(ctx, g, x, weight, None, None, mean, rstd, True, eps, None)


@row("batch_norm_with_update_backward", "batch_norm_backward")
def batch_norm_with_update_backward(
    ctx: Lowering,
    g: Value,
    x: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value | None,
    rstd: Value | None,
    update: bool,
    eps: float,
    mask: Any,
    reserve: Value,
) -> tuple:
    return batch_norm_backward(ctx, g, x, weight, running_mean, running_var, mean, rstd, update, eps, mask)
