"""Gradients of resizing: of each pixel, what the points of the result that were computed from it say.

Along a dim of n pixels and m points the points that read pixel i lie around i * m / n. How far around is counted for all pixels
when the graph is made; which of those do read it, and with which weight, the forward pass's own formula says.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, acc_dtype

from .backward_moves import Taps, gathered
from .composite import F
from .gather import row
from .resize import Between, nearest_source

ROUNDING = 1e-3  # pixels: how far the positions of eager's floats may be from those counted with
MOST = 1 << 16  # points of a dim: they are counted one by one


def taps_between(found: Between, d: int, reach: int, pixels: Callable[[int, ix.Index], list[tuple[F, F]]]) -> Taps:
    """Along dim d. pixels(d, point): what the point reads, and weights; reach: those lie less than so many pixels from it."""
    ctx, n, m = found.ctx, found.sizes[d], found.out[d]
    surely, maybe = (read_by_points(found, d, reach + slack) for slack in (-ROUNDING, ROUNDING))
    first, count, every = around(n, m, maybe)

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        own, listed = F(ctx, ctx.cast(ctx.cons.index(i), "i32")), []
        for k in range(count):
            o = ix.index(ix.floordiv(i * m, n, ctx.sizes) + first + k)
            hits = [(p.do("eq", own), w) for p, w in pixels(d, o)]
            weight = functools.reduce(operator.add, (hit.pick(w, 0.0) for hit, w in hits))
            mask = None if every and surely == maybe else functools.reduce(lambda a, b: a.do("or", b), (hit for hit, _ in hits)).e
            listed.append((o, mask, weight))
        return listed

    return Taps(m, at)


def read_by_points(found: Between, d: int, reach: float) -> list[tuple[int, ...]]:
    """The pixels that each point along dim d reads: those nearer than `reach`; past an end, the last."""
    n, step = found.sizes[d], found.factor(d)
    reads = []
    for o in range(found.out[d]):
        pos = o * step if found.align else (o + 0.5) * step - 0.5
        own = range(math.floor(pos - reach) + 1, math.ceil(pos + reach))
        reads.append(tuple(sorted({min(max(i, 0), n - 1) for i in own})))
    return reads


def around(n: int, m: int, reads: list[tuple[int, ...]]) -> tuple[int, int, bool]:
    """Which points of the result read a pixel. reads: the pixels that each point reads. Returns (first, count, every):
    pixel i is read only by points from i * m // n + first on, at most `count` of them. every: all of these points (that
    exist) read it."""
    points: list[list[int]] = [[] for _ in range(n)]
    for o, own in enumerate(reads):
        for i in own:
            points[i].append(o)
    first = min((own[0] - i * m // n for i, own in enumerate(points) if own), default=0)
    last = max((own[-1] - i * m // n for i, own in enumerate(points) if own), default=first)
    whole = ([o for o in range(i * m // n + first, i * m // n + last + 1) if 0 <= o < m] for i in range(n))
    return first, last - first + 1, all(own == o for own, o in zip(points, whole))


def checked(g: Value, sizes: Any, out: tuple) -> None:
    """Raises: NoRule."""
    if g.dtype not in FLOATS or not all(isinstance(v, int) and 0 < v <= MOST for v in (*sizes, *out)):
        raise NoRule("resized to a size known at the call, or of ints")


def _between(n: int, name: str, reach: int, cubic: bool) -> None:
    @row(f"{name}_backward", f"{name}_backward")
    def lower(ctx: Lowering, g: Value, out: Any, sizes: Any, align: bool, *scales: Any) -> Value:
        checked(g, sizes[-n:], g.shape[-n:])
        found = Between(ctx, tuple(sizes[-n:]), g.shape[-n:], acc_dtype(g.dtype), align, scales)
        pixels = found.cubic if cubic else found.linear
        return gathered(ctx, g, tuple(sizes[-n:]), [taps_between(found, d, reach, pixels) for d in range(n)])


def _nearest(n: int, exact: bool) -> None:
    name = f"_upsample_nearest_exact{n}d" if exact else f"upsample_nearest{n}d"

    @row(f"{name.strip('_')}_backward", f"{name}_backward")
    def lower(ctx: Lowering, g: Value, out: Any, sizes: Any, *scales: Any) -> Value:
        size, points = tuple(sizes[-n:]), g.shape[-n:]
        checked(g, size, points)
        sources = (nearest_source(size[d], points[d], scale, exact) for d, scale in enumerate((*scales, *(None,) * n)[:n]))
        return gathered(ctx, g, size, [_copies(ctx, size[d], points[d], source) for d, source in enumerate(sources)])


def _copies(ctx: Lowering, n: int, m: int, source: tuple[int, int, int]) -> Taps:
    """Point o along a dim is a copy of pixel (a * o + b) // c."""
    a, b, c = source
    first, count, every = around(n, m, [((a * o + b) // c,) for o in range(m)])

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        listed: list[tuple[ix.Index, Expr | None, Any]] = []
        for k in range(count):
            o = ix.index(ix.floordiv(i * m, n, ctx.sizes) + first + k)
            read = ctx.cons.index(ix.index(ix.floordiv(o * a + b, c, ctx.sizes)))
            listed.append((o, None if every else ctx.op("eq", read, ctx.cons.index(i)), None))
        return listed

    return Taps(m, at)


_between(1, "upsample_linear1d", 1, False)
_between(2, "upsample_bilinear2d", 1, False)
_between(3, "upsample_trilinear3d", 1, False)
_between(2, "upsample_bicubic2d", 2, True)
for _n in (1, 2, 3):
    _nearest(_n, False)
    _nearest(_n, True)
