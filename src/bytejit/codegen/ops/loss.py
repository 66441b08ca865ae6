"""Rows of losses: what a row's class costs is read from it, so that what makes the row (a log_softmax) is never stored."""
from __future__ import annotations

from typing import Any

from bytejit.codegen.loops.ir import FLOATS, Expr, acc_dtype
from bytejit.codegen.loops.lower import Lowering, NoRule, Value

from .gather import row

NONE, MEAN = 0, 1


@row("nll_loss_forward", "nll_loss_forward")
def nll_loss_forward(ctx: Lowering, x: Value, target: Value, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    """(loss, sum of weights) of x [rows, classes] and target [rows]. A target out of range is refused as an index is."""
    if len(x.shape) != 2 or x.dtype not in FLOATS or target.dtype not in ("i64", "u8"):
        raise NoRule("nll_loss of one row, or of an odd dtype")
    acc = acc_dtype(x.dtype)

    def parts(c: tuple) -> tuple[Expr, Expr]:
        """A row's loss and weight, 0 where its target is the one to ignore."""
        t = ctx.read(target, c, "i64")
        skip, zero = ctx.op("eq", t, ctx.const(ignore, "i64")), ctx.const(0.0, acc)
        at = ctx.bound(ctx.op("select", skip, ctx.const(0, "i64"), t, dtype="i64"), x.shape[1], "nll_loss", wrap=False)
        w = ctx.const(1.0, acc) if weight is None else ctx.read(weight, (at,), acc)
        value = ctx.op("neg", ctx.read(x, (*c, at), acc))
        value = value if weight is None else ctx.op("mul", value, w)
        return tuple(ctx.op("select", skip, zero, v, dtype=acc) for v in (value, w))

    if reduction == NONE:
        return ctx.map(lambda c: parts(c)[0], 0), ctx.map(lambda c: ctx.const(0.0, acc), 1)
    loss, weights = (ctx.reduce(target, (0,), "sum", lambda c, i=i: parts(c)[i], acc) for i in range(2))

    def whole(c: tuple) -> Expr:
        total = ctx.read(loss, c, acc)
        return ctx.op("div", total, ctx.read(weights, c, acc)) if reduction == MEAN else total
    return ctx.map(whole, 0), ctx.map(lambda c: ctx.read(weights, c, acc), 1)
