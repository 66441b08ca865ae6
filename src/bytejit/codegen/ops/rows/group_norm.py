"""Group norms. Where the channels are innermost each channel is summed up first, so that channels are the lanes of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import acc_dtype

from .composite import F
from .reduce import copied, count, moments, number, row


def of_channels(ctx: Lowering, v: Value, channels: Any, each: Any) -> Value:
    """Numbers of groups of `each` channels as numbers of their channels."""
    shape = (v.shape[0], channels)
    return ctx.pointwise(shape, v.dtype, lambda c: ctx.read(v, (c[0], ix.floordiv(c[1], each, ctx.sizes))))


def moments_of_groups(ctx: Lowering, x: Value, groups: Any, each: Any, acc: str) -> tuple[Value, Value]:
    """`moments` of groups of `each` channels."""
    split = ctx.view(x, (x.shape[0], groups, each, *x.shape[2:]), lambda c: (c[0], c[1] * each + c[2], *c[3:]))
    return moments(ctx, split, tuple(range(2, len(split.shape))), acc)


def moments_by_channel(ctx: Lowering, x: Value, groups: Any, each: Any, acc: str) -> tuple[Value, Value]:
    """`moments_of_groups` where the channels are innermost. The moments of each channel come first, so that the channels are
    the lanes: a group has fewer channels than a vector has lanes."""
    rest = tuple(range(2, len(x.shape)))

    def total(term: Callable[[tuple], Expr] | None) -> Value:
        sums = ctx.reduce(x, rest, "sum", term, acc)
        split = ctx.view(sums, (x.shape[0], groups, each), lambda c: (c[0], c[1] * each + c[2]))
        return ctx.reduce(split, (2,), "sum", None, acc)

    n, sums = number(count(x, rest) * each), total(None)
    avg = ctx.pointwise(sums.shape, acc, lambda c: (F(ctx, ctx.read(sums, c)) / n).e)
    near = of_channels(ctx, avg, x.shape[1], each)

    def squared(c: tuple) -> Expr:
        d = F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(near, c[:2]))
        return (d * d).e

    return avg, total(squared)


@row("group_norm", "native_group_norm")
def group_norm(
    ctx: Lowering,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    groups: int,
    eps: float,
) -> tuple:
    acc, each = acc_dtype(x.dtype), ix.size_of(ix.floordiv(C, groups, {}))
    if each == 0:
        raise NoRule("group_norm of no channels")
    inner = ctx.device() == "cpu" and len(x.shape) > 2 and isinstance(C, int) and C > 1 and ctx.spec(0).stride[1] == 1
    avg, m2 = (moments_by_channel if inner else moments_of_groups)(ctx, x, groups, each, acc)
    n = number(count(x, tuple(range(2, len(x.shape)))) * each)
    rstd = ctx.pointwise(m2.shape, acc, lambda c: (F(ctx, ctx.read(m2, c)) / n + eps).do("rsqrt").e)

    def numbers(c: tuple) -> tuple[F, F]:
        """(mean, reciprocal of the deviation) at a channel of an image."""
        g = (c[0], ix.floordiv(c[1], each, ctx.sizes))
        return F(ctx, ctx.read(avg, g)), F(ctx, ctx.read(rstd, g))

    def scale(c: tuple) -> F:
        return numbers(c)[1] * F(ctx, ctx.read(weight, (c[1],), acc)) if weight is not None else numbers(c)[1]

    def shift(c: tuple) -> F:
        s = -numbers(c)[0] * scale(c)
        return s + F(ctx, ctx.read(bias, (c[1],), acc)) if bias is not None else s

    def at(c: tuple) -> Expr:
        mean, deviation = numbers(c)
        v = (F(ctx, ctx.read(x, c, acc)) - mean) * deviation
        v = v * F(ctx, ctx.read(weight, (c[1],), acc)) if weight is not None else v
        return (v + F(ctx, ctx.read(bias, (c[1],), acc)) if bias is not None else v).e

    if inner:  # as eager computes it
        a, b = ctx.pointwise((N, C), acc, lambda c: scale(c).e), ctx.pointwise((N, C), acc, lambda c: shift(c).e)
        out = ctx.map(lambda c: (F(ctx, ctx.read(x, c, acc)) * F(ctx, ctx.read(a, c[:2])) + F(ctx, ctx.read(b, c[:2]))).e, 0)
    else:
        out = ctx.map(at, 0)
    return (
        out,
        *(copied(ctx, s, i) if ctx.used(i) else None for i, s in ((1, avg), (2, rstd))),
    )
