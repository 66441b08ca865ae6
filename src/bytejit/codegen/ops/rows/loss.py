"""Rows of losses. Only the element of a row's class is read, so what computes the row (a log_softmax) is never stored."""

from __future__ import annotations

from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, acc_dtype
from bytejit.common.light_dataclass import light_dataclass

from .gather import row

NONE, MEAN = 0, 1


@light_dataclass(frozen=True)
class Targets:
    """The class of each row of x [rows, classes, ...]: target [rows, ...], a weight for each class or None, a class to ignore."""

    ctx: Lowering
    x: Value
    target: Value
    weight: Value | None
    ignore: int

    def check(self) -> None:
        """Raises: NoRule for one row without a dim of its own, or odd dtypes."""
        x, target = self.x, self.target
        if (
            len(x.shape) != len(target.shape) + 1
            or len(x.shape) < 2
            or x.dtype not in FLOATS
            or target.dtype not in ("i64", "u8")
        ):
            raise NoRule("nll_loss of one row, or of an odd dtype")

    def at(self, c: tuple) -> tuple[Expr, Expr]:
        """A row's class, and whether it is the one to ignore."""
        ctx, t = self.ctx, self.ctx.read(self.target, c, "i64")
        return t, ctx.op("eq", t, ctx.const(self.ignore, "i64"))

    def parts(self, c: tuple) -> tuple[Expr, Expr]:
        """A row's loss and weight, 0 where its target is the one to ignore. A target out of range is refused as an index is."""
        ctx, acc = self.ctx, acc_dtype(self.x.dtype)
        (t, skip), zero = self.at(c), ctx.const(0.0, acc)
        at = ctx.bound(ctx.op("select", skip, ctx.const(0, "i64"), t, dtype="i64"), self.x.shape[1], "nll_loss", wrap=False)
        w = ctx.const(1.0, acc) if self.weight is None else ctx.read(self.weight, (at,), acc)
        value = ctx.op("neg", ctx.read(self.x, (c[0], at, *c[1:]), acc))
        value = value if self.weight is None else ctx.op("mul", value, w)
        return ctx.op("select", skip, zero, value, dtype=acc), ctx.op("select", skip, zero, w, dtype=acc)


@row("nll_loss_forward", "nll_loss_forward", "nll_loss2d_forward", refuses=True)
def nll_loss_forward(ctx: Lowering, x: Value, target: Value, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    """(loss, sum of weights) of x [rows, classes, ...] and target [rows, ...]."""
    rows, acc = Targets(ctx, x, target, weight, ignore), acc_dtype(x.dtype)
    rows.check()
    if reduction == NONE:
        return ctx.map(lambda c: rows.parts(c)[0], 0), ctx.map(lambda c: ctx.const(0.0, acc), 1)
    dims = tuple(range(len(target.shape)))
    loss = ctx.reduce(target, dims, "sum", lambda c: rows.parts(c)[0], acc)
    weights = ctx.reduce(target, dims, "sum", lambda c: rows.parts(c)[1], acc)

    def whole(c: tuple) -> Expr:
        total = ctx.read(loss, c, acc)
        return ctx.op("div", total, ctx.read(weights, c, acc)) if reduction == MEAN else total

    return ctx.map(whole, 0), ctx.map(lambda c: ctx.read(weights, c, acc), 1)


@row("nll_loss_backward", "nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    ctx: Lowering, g: Value, x: Value, target: Value, weight: Any, reduction: int, ignore: int, total: Value
) -> Value:
    """-g * weight at the class of each row, 0 elsewhere. It is computed at every class, so that a reader can compute it
    instead of loading it. Targets out of range were refused by the forward pass."""
    rows, acc = Targets(ctx, x, target, weight, ignore), acc_dtype(x.dtype)
    rows.check()

    def element(c: tuple) -> Expr:
        own = (c[0], *c[2:])
        t, skip = rows.at(own)
        hit = ctx.op("eq", ctx.cons.index(ix.index(c[1])), t)
        hit = ctx.op("and", hit, ctx.op("logical_not", skip))
        value = ctx.op("neg", ctx.read(g, own if reduction == NONE else (), acc))
        value = ctx.op("div", value, ctx.read(total, (), acc)) if reduction == MEAN else value
        value = value if weight is None else ctx.op("mul", value, ctx.read(weight, (c[1],), acc))
        return ctx.op("select", hit, value, ctx.const(0.0, acc), dtype=acc)

    return ctx.map(element)
