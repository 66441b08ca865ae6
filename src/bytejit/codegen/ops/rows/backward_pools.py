"""Gradients of pools: each point of the result sums the gradients of the windows that it lies in, or of which it is the greatest
(`Taps` in backward_moves.py).
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, acc_dtype

from .backward_moves import Taps, gathered, windows
from .composite import F
from .gather import numbers, row
from .pools import UNROLL, spread
from .view import both, within


def _avg_pool_backward(n: int) -> None:
    @row(f"avg_pool{n}d_backward", f"avg_pool{n}d_backward")
    def lower(
        ctx: Lowering,
        g: Value,
        x: Value,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
    ) -> Value:
        if x.dtype not in FLOATS or 0 in g.shape:
            raise NoRule("a pool of whole numbers, or of nothing")
        kernel, padding = spread(kernel, n), spread(padding, n)
        stride = spread(stride, n, kernel)
        whole = count_include_pad and not ceil_mode or not any(padding) and not ceil_mode or divisor is not None
        taps = []
        for d in range(n):
            size, k, s, p = x.shape[d - n], kernel[d], stride[d], padding[d]

            def weight(o: ix.Index, size: Any = size, k: int = k, s: int = s, p: int = p) -> F:
                """1 over the elements of window o that count."""
                first = F(ctx, ctx.cons.index(ix.index(o * s - p)))
                end = (first + k).do("minimum", ix.index(size + p) if p else ix.index(size))
                if not count_include_pad:
                    first, end = first.do("maximum", 0), end.do("minimum", ix.index(size))
                return 1.0 / F(ctx, ctx.cast((end - first).do("maximum", 1).e, acc_dtype(x.dtype)))

            taps.append(windows(ctx, k, s, p, 1, g.shape[d - n], None if whole else weight))
        if not whole:
            return gathered(ctx, g, tuple(x.shape[len(x.shape) - n :]), taps)
        area, work = float(divisor or math.prod(kernel)), acc_dtype(x.dtype)
        scaled = ctx.pointwise(g.shape, work, lambda c: (F(ctx, ctx.read(g, c, work)) / area).e)
        return gathered(ctx, scaled, tuple(x.shape[len(x.shape) - n :]), taps)


_avg_pool_backward(2)
_avg_pool_backward(3)


def adaptive_taps(ctx: Lowering, n: int, m: int, work: str, weights: bool = True) -> Taps:
    """Windows of i * n // m up to (i + 1) * n / m rounded up. Units: n elements, m windows."""
    first = [i * n // m for i in range(m)]
    end = [-(-(i + 1) * n // m) for i in range(m)]
    most = max(sum(a <= i < b for a, b in zip(first, end)) for i in range(n))

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        start = ix.floordiv(ix.index(i * m), n, ctx.sizes)  # the first window that holds i
        found = []
        for k in range(most):
            o = ix.index(start + k)
            low, high = ix.floordiv(ix.index(o * n), m, ctx.sizes), ix.floordiv(ix.index((o + 1) * n + m - 1), m, ctx.sizes)
            inside = None if k == 0 else ctx.op("le", ctx.cons.index(ix.index(low)), ctx.cons.index(ix.index(i)))
            size = F(ctx, ctx.cast(ctx.cons.index(ix.index(high - low)), work))
            weight: Any = (1.0 / float(n // m) if n % m == 0 else 1.0 / size) if weights else None
            found.append((o, inside, weight))
        return found

    return Taps(m, at)


def all_adaptive_taps(ctx: Lowering, g: Value, x: Value, n: int, weights: bool = True) -> list[Taps]:
    """`adaptive_taps` of the last n dimensions. Raises: NoRule."""
    sizes, outs = x.shape[len(x.shape) - n :], g.shape[len(g.shape) - n :]
    numbers(*sizes, *outs)
    if x.dtype not in FLOATS or 0 in g.shape or 0 in x.shape:
        raise NoRule("a pool of whole numbers, or of nothing")
    return [adaptive_taps(ctx, s, o, acc_dtype(x.dtype), weights) for s, o in zip(sizes, outs)]


def _adaptive_avg_pool_backward(n: int) -> None:
    @row(f"adaptive_avg_pool{n}d_backward", f"_adaptive_avg_pool{n}d_backward")
    def lower(ctx: Lowering, g: Value, x: Value) -> Value:
        return gathered(ctx, g, tuple(x.shape[len(x.shape) - n :]), all_adaptive_taps(ctx, g, x, n))


_adaptive_avg_pool_backward(2)
_adaptive_avg_pool_backward(3)


def _chosen(ctx: Lowering, g: Value, x: Value, indices: Value, taps: list[Taps]) -> Value:
    """The gradients of the windows whose greatest element a point was."""
    n, work = len(taps), acc_dtype(g.dtype)
    sizes = x.shape[len(x.shape) - n :]

    def element(c: tuple) -> Expr:
        flat, terms = ix.ZERO, []
        for v, s in zip(c[-n:], sizes):
            flat = flat * s + v
        here = ctx.cons.index(ix.index(flat))
        for one in itertools.product(*(t.at(ix.index(v)) for t, v in zip(taps, c[-n:]))):
            own = (*c[:-n], *(o for o, _, _ in one))
            mask = both(ctx, *(m for _, m, _ in one), *(within(ctx, o, 0, t.out) for (o, _, _), t in zip(one, taps)))
            same = ctx.op("eq", ctx.read(indices, own, "i64", mask), here)
            hit = same if mask is None else ctx.op("and", mask, same)
            e = ctx.read(g, own, work, mask)  # not behind the comparison: neighbours are loaded at once
            terms.append(ctx.op("select", hit, e, ctx.const(0, work), dtype=work))
        return functools.reduce(functools.partial(ctx.op, "add"), terms)

    if math.prod(len(t.at(ix.var("probe"))) for t in taps) > UNROLL:
        raise NoRule("a large window")
    return ctx.map(element)


def _max_pool_backward(n: int) -> None:
    @row(f"max_pool{n}d_backward", f"max_pool{n}d_with_indices_backward")
    def lower(
        ctx: Lowering, g: Value, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Value
    ) -> Value:
        if x.dtype not in FLOATS or 0 in g.shape:
            raise NoRule("a pool of whole numbers, or of nothing")
        kernel = spread(kernel, n)
        dims = zip(kernel, spread(stride, n, kernel), spread(padding, n), spread(dilation, n), g.shape[len(g.shape) - n :])
        return _chosen(ctx, g, x, indices, [windows(ctx, *d) for d in dims])


_max_pool_backward(2)
_max_pool_backward(3)


def _adaptive_max_pool_backward(n: int) -> None:
    @row(f"adaptive_max_pool{n}d_backward", f"adaptive_max_pool{n}d_backward")
    def lower(ctx: Lowering, g: Value, x: Value, indices: Value) -> Value:
        return _chosen(ctx, g, x, indices, all_adaptive_taps(ctx, g, x, n, False))


_adaptive_max_pool_backward(2)
_adaptive_max_pool_backward(3)
