"""Rows of cummax and cummin: the greatest or least element so far, and the index of the last one equal to it."""

from __future__ import annotations

from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import LoopNest, Reduce, Store
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, INTS, acc_dtype
from bytejit.common.spec import wrap_dim

from .composite import F
from .reduce import row, scanned


def _best_so_far(name: str, kind: str) -> None:
    @row(name)
    def lower(ctx: Lowering, x: Value, dim: int) -> tuple[Value, Value]:
        """One nest, two running results: the element, then the greatest place at which one equalled it. nan is best; of equal
        ones, and of several nan, the last counts."""
        if x.dtype not in FLOATS | INTS:
            raise NoRule(f"{name} of {x.dtype}")
        d = wrap_dim(dim, len(x.shape))
        if not x.shape or x.shape[d] == 1:
            return ctx.map(lambda c: ctx.load(x, c), 0), ctx.map(lambda c: ctx.const(0, "i64"), 1)
        acc, spec = acc_dtype(x.dtype), ctx.spec(0)
        outer, axis, coords = scanned(ctx, x.shape, d)
        e = F(ctx, ctx.read(x, coords, acc))
        best = Reduce(ctx.name("r"), kind, (e.e,), acc, True, ctx.where)
        value = ctx.cons.ref(best.name, acc, ctx.where)
        here = e.do("eq", F(ctx, value)).do("or", e.do("isnan"))
        place = here.pick(F(ctx, ctx.cons.index(coords[d])), -1)
        last = Reduce(ctx.name("r"), "amax", (place.e,), "i64", True, ctx.where)
        values: list[tuple[str, Expr]] = []
        for i, (dtype, result) in enumerate(((x.dtype, value), ("i64", ctx.cons.ref(last.name, "i64", ctx.where)))):
            b = ctx.buffer(spec.shape, dtype, ctx.spec(i).stride)
            values.append((b.name, ctx.finish(result, dtype)))
        stores = tuple(Store(b, coords, v, where=ctx.where) for b, v in values)
        ctx.kernel(outer, (LoopNest((axis,), stores, (best, last)),))
        return Value(values[0][0], spec.shape, x.dtype), Value(values[1][0], spec.shape, "i64")


_best_so_far("cummax", "amax")
_best_so_far("cummin", "amin")
