"""Rows of reductions, scans and the norms: reductions kept apart from the pointwise steps around them.

Each lowers into small kernels over the same rows; fuse makes one kernel of nests. Variances take two nests: the mean first,
then the squared distances, in the accumulation dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Axis, LoopNest, Reduce, Store
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.table import Lower, lowers
from bytejit.common.dtypes import FLOATS, acc_dtype, torch_dtype
from bytejit.common.reduction_ops import REDUCTIONS
from bytejit.common.spec import contiguous_stride, reduced_dims, wrap_dim

from .composite import F
from .view import both


def row(name: str, *overloads: str, **fields: Any) -> Callable[[Lower], Lower]:
    """Declares a row of kind reduce whose lower function is decorated. Without overloads they are those of
    `common/reduction_ops.py`."""
    return lowers("reduce", name, overloads or REDUCTIONS[name].overloads, **fields)


def kept(coords: tuple, dims: tuple[int, ...], keepdim: bool) -> tuple:
    """Coordinates of a result (with or without the reduced dims) without them."""
    return tuple(c for i, c in enumerate(coords) if i not in dims) if keepdim else coords


def count(x: Value, dims: tuple[int, ...]) -> Any:
    """Returns how many elements one result is made of."""
    n = 1
    for d in dims:
        n = n * x.shape[d]
    return n


def number(n: Any) -> Any:
    """A count as a divisor: a float, or the index of what is known only at the call."""
    return float(n) if isinstance(n, int) else n


def restore(
    ctx: Lowering, r: Value, dims: tuple[int, ...], keepdim: bool, fn: Callable[[F], F] = lambda f: f, i: int | None = None
) -> Value:
    """The node's result from the kept-dims buffer r, through fn."""
    return ctx.map(lambda c: fn(F(ctx, ctx.read(r, kept(c, dims, keepdim)))).e, i)


def _simple(name: str, ref: Any, b8: bool = False, kind: str = "") -> None:
    """A row of a plain reduction over dims. b8: any, all. kind: of the reduction, where the row has another name."""

    @row(name, ref=ref)
    def lower(ctx: Lowering, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        dims = REDUCTIONS[name].dims(dims, len(x.shape))
        out = ir_dtype(ctx.spec())
        if not REDUCTIONS[name].empty and count(x, dims) == 0:
            raise NoRule("the greatest of nothing: eager refuses it")
        acc = "b8" if b8 else acc_dtype(out)
        if b8:
            r = ctx.reduce(x, dims, kind or name, lambda c: ctx.read(x, c, "b8"), acc)
        else:
            r = ctx.reduce(x, dims, kind or name, None, acc)
        return restore(ctx, r, dims, keepdim)


_simple("sum", torch.sum)
_simple("prod", torch.prod)
_simple("amax", torch.amax)
_simple("amin", torch.amin)
_simple("any", torch.any, b8=True)
_simple("all", torch.all, b8=True)
_simple("is_any_true", torch.any, b8=True, kind="any")
_simple("is_all_true", torch.all, b8=True, kind="all")


@row("mean", ref=torch.mean)
def mean(ctx: Lowering, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = reduced_dims(dims, len(x.shape))
    r = ctx.reduce(x, dims, "sum", None, acc_dtype(ir_dtype(ctx.spec())))
    n = count(x, dims)
    return restore(ctx, r, dims, keepdim, lambda s: s / number(n))


def best(ctx: Lowering, x: Value, dims: tuple[int, ...], kind: str) -> Value:
    """Index (i64) of the first greatest or least element along dims, as if they were one; without them."""
    acc = acc_dtype(x.dtype)
    steps = contiguous_stride(tuple(x.shape[d] for d in dims))

    def element(c: tuple) -> tuple[Expr, Expr]:
        at = ix.index(0)
        for d, step in zip(dims, steps):
            at = at + c[d] * step
        return ctx.read(x, c, acc), ctx.cons.index(at)

    return ctx.reduce(x, dims, kind, element, "i64")


def _extreme(name: str, kind: str, arg: str) -> None:
    @row(name)
    def lower(ctx: Lowering, x: Value, dim: int, keepdim: bool = False) -> tuple:
        d = reduced_dims(dim, len(x.shape))
        if not x.shape:
            raise NoRule("of a 0-dim tensor")
        if not ctx.used(1):  # far faster than with indices, but of zeros of both signs it may return either
            return restore(ctx, ctx.reduce(x, d, kind, None, acc_dtype(x.dtype)), d, keepdim, i=0), None
        at = best(ctx, x, d, arg)

        def found(c: tuple) -> Expr:
            c = kept(c, d, keepdim)
            place = ix.index(ix.Val(ctx.load(at, c), x.shape[d[0]]))
            return ctx.read(x, (*c[: d[0]], place, *c[d[0] :]))

        values = ctx.map(found, 0) if ctx.used(0) else None
        return values, restore(ctx, at, d, keepdim, i=1)

    @row(arg)
    def lower_arg(ctx: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if not x.shape or x.dtype == "b8":
            raise NoRule("of a 0-dim tensor, or of bools, which eager refuses")
        d = reduced_dims(dim, len(x.shape))
        return restore(ctx, best(ctx, x, d, arg), d, keepdim)


_extreme("max_dim", "amax", "argmax")
_extreme("min_dim", "amin", "argmin")


# ---- moments ---------------------------------------------------------------------------------------------------------
def moments(ctx: Lowering, x: Value, dims: tuple[int, ...], acc: str, squares: str = "") -> tuple[Value, Value]:
    """Mean, and sum of squared distances from it, over dims; kept dims only. squares: the dtype of these, where it is another."""
    n = count(x, dims)
    total = ctx.reduce(x, dims, "sum", None, acc)
    avg = ctx.pointwise(total.shape, acc, lambda c: (F(ctx, ctx.read(total, c)) / number(n)).e)

    def squared(c: tuple) -> Expr:
        d = F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(avg, kept(c, dims, True)))
        d = F(ctx, ctx.cast(d.e, squares)) if squares else d
        return (d * d).e

    return avg, ctx.reduce(x, dims, "sum", squared, squares or acc)


def before_last(ctx: Lowering, x: Value, dims: tuple[int, ...]) -> Value:
    """0, or nan where a number before the last one along dims is infinite or none."""
    acc = acc_dtype(x.dtype)

    def term(c: tuple) -> Expr:
        ends = [ctx.op("eq", ctx.cons.index(ix.index(c[d])), ctx.const(ix.size_of(x.shape[d] - 1), "i64")) for d in dims]
        last = F(ctx, both(ctx, *ends) or ctx.const(True, "b8"))
        return last.pick(0.0, F(ctx, ctx.read(x, c, acc)) * 0.0).e

    return ctx.reduce(x, dims, "sum", term, acc)


def _variance(name: str, finish: Callable[[F], F], ref: Any = None) -> None:
    with_mean = len(REDUCTIONS[name].results) > 1

    @row(name, ref=ref)
    def lower(ctx: Lowering, x: Value, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
        dims = reduced_dims(dims, len(x.shape))
        correction, n = 1 if correction is None else correction, count(x, dims)
        known = isinstance(n, int) and isinstance(correction, (int, float))
        if known and n <= max(correction, 0) or x.dtype not in FLOATS:
            raise NoRule("variance of too few elements: eager warns of it")
        squares = "f64" if ctx.home == "cpu" else ""  # as eager there: those of 1e-25 are no floats of 32 bits
        avg, m2 = moments(ctx, x, dims, acc_dtype(x.dtype), squares)

        def over_freedom(s: F) -> F:
            """s over the degrees of freedom, which are 0 where the correction is more than there are elements."""
            if known:
                return finish(s / float(n - correction))
            free = F(ctx, ctx.const(n, s.e.dtype)) - correction
            return finish(s / free.do("maximum", 0.0))

        var = restore(ctx, m2, dims, keepdim, over_freedom, 0 if with_mean else None)
        if not with_mean:
            return var

        if not ctx.used(1):
            return var, None
        before = before_last(ctx, x, dims)

        def mean(c: tuple) -> Expr:
            """Eager updates the mean one number at a time, so it is nan after an infinite one."""
            at = kept(c, dims, keepdim)
            return (F(ctx, ctx.read(avg, at)) + F(ctx, ctx.read(before, at))).e

        return var, ctx.map(mean, 1)


_variance("var", lambda v: v, torch.var)
_variance("std", lambda v: v.do("sqrt"), torch.std)
_variance("var_mean", lambda v: v)
_variance("std_mean", lambda v: v.do("sqrt"))


def _norm(ctx: Lowering, x: Value, p: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    dims = reduced_dims(dims, len(x.shape))
    p = 2 if p is None else p
    if x.dtype not in FLOATS:
        raise NoRule("norm of ints")
    if p != 0 and count(x, dims) == 1:
        p = 1  # as in torch, where the square of a small number is 0
    acc = acc_dtype(ir_dtype(ctx.spec()))

    def term(c: tuple) -> Expr:
        v = F(ctx, ctx.read(x, c, acc))
        if p == 2:
            return (v * v).e
        v = v.do("abs")
        return (v.do("ne", 0.0).pick(1.0, v * 0) if p == 0 else v if p in (1, math.inf, -math.inf) else v.do("pow", p)).e

    kind = {math.inf: "amax", -math.inf: "amin"}.get(p, "sum")
    r = ctx.reduce(x, dims, kind, term, acc)
    return restore(
        ctx, r, dims, keepdim, lambda s: s.do("sqrt") if p == 2 else s if p in (0, 1, math.inf, -math.inf) else s.do("pow", 1 / p)
    )


row("norm", "linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")(_norm)


# ---- norms of models -------------------------------------------------------------------------------------------------
@row("layer_norm", "native_layer_norm")
def layer_norm(ctx: Lowering, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float) -> tuple:
    n, k = len(x.shape), len(shape)
    dims, acc = tuple(range(n - k, n)), acc_dtype(x.dtype)
    avg, m2 = moments(ctx, x, dims, acc)
    rstd = ctx.pointwise(m2.shape, acc, lambda c: (F(ctx, ctx.read(m2, c)) / number(count(x, dims)) + eps).do("rsqrt").e)

    def at(c: tuple) -> Expr:
        v = (F(ctx, ctx.read(x, c, acc)) - F(ctx, ctx.read(avg, c[: n - k]))) * F(ctx, ctx.read(rstd, c[: n - k]))
        v = v * F(ctx, ctx.read(weight, c[n - k :], acc)) if weight is not None else v
        return (v + F(ctx, ctx.read(bias, c[n - k :], acc)) if bias is not None else v).e

    return (
        ctx.map(at, 0),
        *(restore(ctx, s, dims, True, i=i) if ctx.used(i) else None for i, s in ((1, avg), (2, rstd))),
    )


@row("rms_norm", "rms_norm", "_fused_rms_norm")
def rms_norm(ctx: Lowering, x: Value, shape: Any, weight: Value | None = None, eps: float | None = None) -> Any:
    n, k = len(x.shape), len(shape)
    dims, acc = tuple(range(n - k, n)), acc_dtype(x.dtype)
    eps = torch.finfo(torch_dtype(acc)).eps if eps is None else eps
    total = ctx.reduce(x, dims, "sum", lambda c: (lambda v: (v * v).e)(F(ctx, ctx.read(x, c, acc))), acc)
    rstd = ctx.pointwise(total.shape, acc, lambda c: (F(ctx, ctx.read(total, c)) / number(count(x, dims)) + eps).do("rsqrt").e)

    def at(c: tuple) -> Expr:
        v = F(ctx, ctx.read(x, c, acc)) * F(ctx, ctx.read(rstd, c[: n - k]))
        return (v * F(ctx, ctx.read(weight, c[n - k :], acc)) if weight is not None else v).e

    if isinstance(ctx.node.meta["spec"], tuple):
        return ctx.map(at, 0), restore(ctx, rstd, dims, True, i=1) if ctx.used(1) else None
    return ctx.map(at)


def copied(ctx: Lowering, v: Value, i: int) -> Value:
    """v as the i-th result of the node."""
    return ctx.map(lambda c: ctx.read(v, c), i)


def channel_norm(
    ctx: Lowering,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    avg: Value,
    var: Value,
    eps: float,
    i: int | None,
) -> Value:
    """(x - avg) / sqrt(var + eps) * weight + bias per channel, as one scale and one shift a channel, in float32 or
    float64."""
    acc = acc_dtype(x.dtype)

    def scale(c: tuple) -> F:
        s = (F(ctx, ctx.read(var, c, acc)) + eps).do("rsqrt")
        return s * F(ctx, ctx.read(weight, c, acc)) if weight is not None else s

    def shift(c: tuple) -> F:
        s = -F(ctx, ctx.read(avg, c, acc)) * scale(c)
        return s + F(ctx, ctx.read(bias, c, acc)) if bias is not None else s

    a = ctx.pointwise(avg.shape, acc, lambda c: scale(c).e)
    b = ctx.pointwise(avg.shape, acc, lambda c: shift(c).e)
    return ctx.map(lambda c: (F(ctx, ctx.read(x, c, acc)) * F(ctx, ctx.read(a, (c[1],))) + F(ctx, ctx.read(b, (c[1],)))).e, i)


@row("batch_norm_eval", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm")
def batch_norm(ctx: Lowering, x: Value, weight: Any, bias: Any, avg: Any, var: Any, *rest: Any) -> tuple:
    """Evaluation with running statistics; training is decomposed before (or runs through torch)."""
    training = rest[0] if len(rest) == 3 else False
    if training or avg is None:
        raise NoRule("batch_norm in training")
    n = len(ctx.specs())
    if any(ctx.used(i) and ctx.spec(i).shape != (0,) for i in range(1, n)):
        raise NoRule("saved statistics are read")
    empty = tuple(ctx.map(lambda c: ctx.const(0, "f32"), i) if ctx.used(i) else None for i in range(1, n))
    return (channel_norm(ctx, x, weight, bias, avg, var, rest[-1], 0), *empty)


# ---- scans ---------------------------------------------------------------------------------------------------
def scanned(ctx: Lowering, shape: tuple, d: int) -> tuple[tuple[Axis, ...], Axis, tuple]:
    """Axes of a shape without dimension d, an axis along d in which points follow each other, the coordinates of a point."""
    outer, coords = ctx.axes(tuple(1 if i == d else s for i, s in enumerate(shape)))
    axis = Axis(ctx.name("a"), shape[d], "scan")
    ctx.sizes[axis.name] = axis.size
    return outer, axis, (*coords[:d], ix.var(axis.name), *coords[d + 1 :])


def _scan(name: str, kind: str) -> None:
    @row(name)
    def lower(ctx: Lowering, x: Value, dim: int, *, dtype: Any = None) -> Value:
        out = ctx.spec()
        acc, d = acc_dtype(ir_dtype(out)), wrap_dim(dim, len(x.shape))
        if acc == "b8":
            raise NoRule("torch has none of bools")
        if not x.shape or x.shape[d] == 1:
            return ctx.map(lambda c: ctx.read(x, c, acc))
        outer, axis, coords = scanned(ctx, x.shape, d)
        r = Reduce(ctx.name("r"), kind, (ctx.read(x, coords, acc),), acc, True, ctx.where)
        b = ctx.buffer(out.shape, ir_dtype(out), out.stride)
        value = ctx.finish(ctx.cons.ref(r.name, acc, ctx.where), b.dtype)
        ctx.kernel(outer, (LoopNest((axis,), (Store(b.name, coords, value, where=ctx.where),), (r,)),))
        return Value(b.name, out.shape, b.dtype)


_scan("cumsum", "sum")
_scan("cumprod", "prod")
_scan("logcumsumexp", "logsum")
