"""Rows of softmax and its logarithm: largest element, sum of exponentials, quotient. fuse makes one kernel of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.common.dtypes import acc_dtype
from bytejit.common.spec import reduced_dims, wrap_dim

from .composite import F
from .reduce import kept, row


def exponentials(ctx: Lowering, x: Value, dims: tuple[int, ...], acc: str) -> tuple[Value, Value]:
    """The greatest element over dims, and exp(x - greatest) everywhere."""
    most = ctx.reduce(x, dims, "amax", None, acc)
    e = ctx.pointwise(
        x.shape,
        acc,
        lambda c: (F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(most, kept(c, dims, True)))).do("exp").e,
    )
    return most, e


def quotients(ctx: Lowering, x: Value, dims: tuple[int, ...], acc: str) -> tuple[Value, Callable[[tuple], F]]:
    """The greatest element over dims, and the softmax at a place."""
    most, e = exponentials(ctx, x, dims, acc)
    total = ctx.reduce(e, dims, "sum", None, acc)
    scale = ctx.pointwise(total.shape, acc, lambda c: (1.0 / F(ctx, ctx.read(total, c))).e)
    return most, lambda c: F(ctx, ctx.read(e, c)) * F(ctx, ctx.read(scale, kept(c, dims, True)))


@row("softmax", ref=torch.softmax)
def softmax(ctx: Lowering, x: Value, dim: int, _: Any = None) -> Value:
    dims, acc = (wrap_dim(dim, len(x.shape)),), acc_dtype(ir_dtype(ctx.spec()))
    if not x.shape:
        return ctx.map(lambda c: (F(ctx, ctx.read(x, c, acc)) * 0.0 + 1.0).e)
    _, quotient = quotients(ctx, x, dims, acc)
    return ctx.map(lambda c: quotient(c).e)


@row("safe_softmax")
def safe_softmax(ctx: Lowering, x: Value, dim: int, _: Any = None) -> Value:
    """Softmax; 0 in a row that is -inf everywhere, as in an attention whose mask leaves no key."""
    dims, acc = (wrap_dim(dim, len(x.shape)),), acc_dtype(x.dtype)
    if not x.shape or x.dtype != ir_dtype(ctx.spec()):
        raise NoRule("of a number, or of another dtype than its result")
    most, quotient = quotients(ctx, x, dims, acc)
    return ctx.map(lambda c: F(ctx, ctx.read(most, kept(c, dims, True))).do("eq", -math.inf).pick(0.0, quotient(c)).e)


@row("log_softmax", ref=torch.log_softmax)
def log_softmax(ctx: Lowering, x: Value, dim: int, _: Any = None) -> Value:
    dims, acc = (wrap_dim(dim, len(x.shape)),), acc_dtype(ir_dtype(ctx.spec()))
    if not x.shape:
        return ctx.map(lambda c: (F(ctx, ctx.read(x, c, acc)) * 0.0).e)
    most, e = exponentials(ctx, x, dims, acc)
    total = ctx.reduce(e, dims, "sum", None, acc)
    logs = ctx.pointwise(total.shape, acc, lambda c: F(ctx, ctx.read(total, c)).do("log").e)

    def at(c: tuple) -> Expr:
        k = kept(c, dims, True)
        return (F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(most, k)) - F(ctx, ctx.read(logs, k))).e

    return ctx.map(at)


@row("logsumexp", ref=torch.logsumexp)
def logsumexp(ctx: Lowering, x: Value, dims: Any, keepdim: bool = False) -> Value:
    dims, acc = reduced_dims(dims, len(x.shape)), acc_dtype(ir_dtype(ctx.spec()))
    most = ctx.reduce(x, dims, "amax", None, acc)

    def safe(k: tuple) -> F:
        m = F(ctx, ctx.read(most, k))
        return m.do("isinf").pick(0.0, m)

    total = ctx.reduce(x, dims, "sum", lambda c: (F(ctx, ctx.read(x, c, acc)) - safe(kept(c, dims, True))).do("exp").e, acc)
    return ctx.map(lambda c: (F(ctx, ctx.read(total, kept(c, dims, keepdim))).do("log") + safe(kept(c, dims, keepdim))).e)
