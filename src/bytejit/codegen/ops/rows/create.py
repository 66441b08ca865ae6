"""Rows of the ops that make a tensor of numbers alone: full, arange, linspace, eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.calls import kind_of
from bytejit.codegen.ops.table import Lower, lowers
from bytejit.common.dtypes import FLOATS, acc_dtype
from bytejit.common.factory_ops import FACTORIES, FactoryOp


def create(name: str, *overloads: str) -> Callable[[Lower], Lower]:
    """Declares a row of kind create whose lower function is decorated."""
    return lowers("create", name, overloads)


def filled(ctx: Lowering, value: Any) -> Value:
    """Fills it with one value; dtype and shape are those of the node's spec."""
    dtype = acc_dtype(ir_dtype(ctx.spec()))
    return ctx.map(lambda c: ctx.const(value, dtype))


def _factory(row: FactoryOp, *more: str) -> None:
    """The row of an op of `common/factory_ops.py`. more: overloads that say no shape."""

    @create(row.name, *row.overloads, *more)
    def lower(ctx: Lowering, *args: Any, **kw: Any) -> Value:
        """Fills the tensor. Memory without a value is 0 where kernels overwrite it; for a library or the caller it is left as it
        is, and torch fills it where deterministic algorithms are asked for."""
        if not row.stored and torch.are_deterministic_algorithms_enabled():
            raise NoRule("filled by torch")
        if not row.stored and any(u.op == "output" or kind_of(u) in (None, "extern") for u in ctx.node.users):
            raise NoRule("given to a library")
        return filled(ctx, args[-1] if row.value is None else row.value)


_factory(FACTORIES["zeros"], "zero")
_factory(FACTORIES["ones"])
_factory(FACTORIES["full"], "fill.Scalar", "scalar_tensor")
_factory(FACTORIES["empty"])


@create("arange", "arange", "arange.start", "arange.start_step", "prims.iota.default")
def arange(ctx: Lowering, *args: Any, start: Any = None, step: Any = None, **kw: Any) -> Value:
    """Integers exactly; floats as start + i*step in the result's own accumulation type, as eager on the CPU."""
    dtype = ir_dtype(ctx.spec())
    if str(ctx.node.target).startswith("prims.iota"):
        begin, by = start, step
    else:
        begin, by = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1 if step is None else step)
    if dtype in FLOATS:
        work = "f64"
        return ctx.map(
            lambda c: ctx.cast(
                ctx.op("add", ctx.const(begin, work), ctx.op("mul", ctx.cast(ctx.cons.index(c[0]), work), ctx.const(by, work))),
                dtype,
            )
        )
    begin, by = (v if isinstance(v, ix.Index) else int(v) for v in (begin, by))
    return ctx.map(lambda c: ctx.cast(ctx.cons.index(c[0] * by + begin), dtype))


@create("linspace", "linspace")
def linspace(ctx: Lowering, start: Any, end: Any, steps: int, **kw: Any) -> Value:
    """Computes each element from the nearer end, as eager does on a GPU, in f64. On a CPU: `codegen/aten/lines.py`."""
    dtype = ir_dtype(ctx.spec())
    if ctx.spec().device.type == "cpu":
        raise NoRule("a line on a CPU")
    if dtype not in FLOATS or not all(isinstance(v, (int, float)) for v in (start, end, steps)) or steps < 2:
        raise NoRule("linspace of whole numbers, or of sizes known at the call")
    step = (end - start) / (steps - 1)

    def at(c: tuple) -> Expr:
        def line(v: ix.Index, first: float, by: float) -> Expr:
            return ctx.op("add", ctx.const(first, "f64"), ctx.op("mul", ctx.cast(ctx.cons.index(v), "f64"), ctx.const(by, "f64")))

        low = ctx.op("lt", ctx.cons.index(c[0]), ctx.const(steps // 2, "i64"))
        return ctx.cast(
            ctx.op("select", low, line(c[0], start, step), line(ix.index(steps - 1 - c[0]), end, -step), dtype="f64"), dtype
        )

    return ctx.map(at)


@create("eye", "eye", "eye.m")
def eye(ctx: Lowering, *_: Any, **kw: Any) -> Value:
    dtype = ir_dtype(ctx.spec())
    return ctx.map(lambda c: ctx.cast(ctx.op("eq", ctx.cons.index(c[0]), ctx.cons.index(c[1])), dtype))
