"""Rows that copy elements to other places: reflecting, replicating and circular pads, shuffles of channels, diagonals, windows
as columns. Each is one pointwise kernel whose loads are mapped; fuse inlines it into its readers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.common.dtypes import acc_dtype
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import contiguous_stride, wrap_dim

from .composite import F
from .pools import pair
from .view import both, view, within


# ---- pads ---------------------------------------------------------------------------------------------------------
def place(e: Expr, size: Any) -> ix.Index:
    """A computed coordinate, known to lie in range(size)."""
    return ix.index(ix.Val(e, size))


@light_dataclass(frozen=True)
class Turn:
    """Where a pad reads outside of range(n): low(v, n) before it, high(v, n) past it; anywhere(ctx, v, n) says both and the
    places inside as one computed coordinate."""

    low: Callable[[ix.Index, Any], ix.Index]
    high: Callable[[ix.Index, Any], ix.Index]
    anywhere: Callable[[Lowering, ix.Index, Any], ix.Index]


def mirrored(ctx: Lowering, v: ix.Index, n: Any) -> ix.Index:
    """v, which leaves range(n) by less than n on either side, reflected or repeated at the ends."""
    last = ctx.const(ix.size_of(ix.index(n) - 1), "i64")
    low = F(ctx, ctx.cons.index(v)).do("abs")
    return place(F(ctx, ctx.op("sub", last, (F(ctx, last) - low).do("abs").e)).e, n)


def held(ctx: Lowering, v: ix.Index, n: Any) -> ix.Index:
    """v, kept within range(n)."""
    low = F(ctx, ctx.cons.index(v)).do("maximum", 0)
    return place(ctx.op("minimum", low.e, ctx.const(ix.size_of(ix.index(n) - 1), "i64")), n)


def around(ctx: Lowering, v: ix.Index, n: Any) -> ix.Index:
    """v, which leaves range(n) by n at most, wrapped around."""
    return ix.mod(v + n, n, ctx.sizes)


def padded(ctx: Lowering, x: Value, pad: Any, turn: Turn) -> Value:
    """x with places around it. On the CPU the innermost dim is read by pieces, which walk memory; elsewhere, and in the other
    dims, at one computed place."""
    n, low, high = len(x.shape), {}, {}
    for k in range(len(pad) // 2):
        if pad[2 * k] != 0 or pad[2 * k + 1] != 0:
            low[n - 1 - k], high[n - 1 - k] = pad[2 * k], pad[2 * k + 1]
    inner = n - 1 if ctx.home == "cpu" and n - 1 in low else None
    work = acc_dtype(x.dtype)

    def at(c: tuple) -> Expr:
        own = [turn.anywhere(ctx, ix.index(v - low[i]), x.shape[i]) if i in low and i != inner else v for i, v in enumerate(c)]
        if inner is None:
            return ctx.load(x, tuple(own))
        v, size = ix.index(c[inner] - low[inner]), x.shape[inner]
        here, zero, end = ctx.cons.index(v), ctx.const(0, "i64"), ctx.const(size, "i64")
        e = ctx.read(x, (*own[:-1], v), work, within(ctx, v, 0, size))
        for some, test, there in (
            (ix.hint(low[inner]) > 0, ctx.op("lt", here, zero), turn.low),
            (ix.hint(high[inner]) > 0, ctx.op("ge", here, end), turn.high),
        ):
            if some:
                e = ctx.op("select", test, ctx.read(x, (*own[:-1], ix.index(there(v, size))), work, test), e, dtype=work)
        return e

    return ctx.map(at)


MIRRORED = Turn(lambda v, n: -v, lambda v, n: 2 * (n - 1) - v, mirrored)
HELD = Turn(lambda v, n: ix.ZERO, lambda v, n: ix.index(n - 1), held)
AROUND = Turn(lambda v, n: v + n, lambda v, n: v - n, around)


def _pad(name: str, turn: Turn, *overloads: str) -> None:
    view(name, *overloads)(lambda ctx, x, pad: padded(ctx, x, pad, turn))


_pad("reflection_pad", MIRRORED, "reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
_pad("replication_pad", HELD, "replication_pad1d", "replication_pad2d", "replication_pad3d")
_pad("circular_pad", AROUND, "_pad_circular")


# ---- channels into squares and back -------------------------------------------------------------------------------
@view("pixel_shuffle", "pixel_shuffle")
def pixel_shuffle(ctx: Lowering, x: Value, r: int) -> Value:
    def at(c: tuple) -> Expr:
        (y, i), (z, j) = ((ix.floordiv(v, r, ctx.sizes), ix.mod(v, r, ctx.sizes)) for v in c[-2:])
        return ctx.load(x, (*c[:-3], c[-3] * (r * r) + i * r + j, y, z))

    return ctx.map(at)


@view("pixel_unshuffle", "pixel_unshuffle")
def pixel_unshuffle(ctx: Lowering, x: Value, r: int) -> Value:
    def at(c: tuple) -> Expr:
        part = ix.mod(c[-3], r * r, ctx.sizes)
        y = c[-2] * r + ix.floordiv(part, r, ctx.sizes)
        return ctx.load(x, (*c[:-3], ix.floordiv(c[-3], r * r, ctx.sizes), y, c[-1] * r + ix.mod(part, r, ctx.sizes)))

    return ctx.map(at)


@view("channel_shuffle", "channel_shuffle", "native_channel_shuffle")
def channel_shuffle(ctx: Lowering, x: Value, groups: int) -> Value:
    each = ix.size_of(ix.floordiv(x.shape[1], groups, {}))
    return ctx.map(
        lambda c: ctx.load(x, (c[0], ix.mod(c[1], groups, ctx.sizes) * each + ix.floordiv(c[1], groups, ctx.sizes), *c[2:]))
    )


# ---- diagonals ----------------------------------------------------------------------------------------------------
def on_diagonal(ctx: Lowering, row: ix.Index, column: ix.Index, offset: int) -> tuple[Expr, ix.Index]:
    """Whether a point is on a diagonal, and where it is there."""
    here = ctx.op("eq", ctx.cons.index(ix.index(column - row)), ctx.const(offset, "i64"))
    return here, ix.index(row - max(-offset, 0))


def _others(c: tuple, *dims: int) -> tuple:
    return tuple(v for i, v in enumerate(c) if i not in dims)


@view("diag_embed", "diag_embed")
def diag_embed(ctx: Lowering, x: Value, offset: int = 0, a: int = -2, b: int = -1) -> Value:
    n, work = len(ctx.spec().shape), acc_dtype(x.dtype)
    a, b = wrap_dim(a, n), wrap_dim(b, n)

    def at(c: tuple) -> Expr:
        here, i = on_diagonal(ctx, c[a], c[b], offset)
        return ctx.op("select", here, ctx.read(x, (*_others(c, a, b), i), work, here), ctx.const(0, work), dtype=work)

    return ctx.map(at)


@view("diagonal_scatter", "diagonal_scatter")
def diagonal_scatter(ctx: Lowering, x: Value, src: Value, offset: int = 0, a: int = 0, b: int = 1) -> Value:
    n, work = len(x.shape), acc_dtype(x.dtype)
    a, b = wrap_dim(a, n), wrap_dim(b, n)
    if src.shape[-1] == 0:
        return ctx.map(lambda c: ctx.load(x, c))

    def at(c: tuple) -> Expr:
        here, i = on_diagonal(ctx, c[a], c[b], offset)
        return ctx.op("select", here, ctx.read(src, (*_others(c, a, b), i), work, here), ctx.read(x, c, work), dtype=work)

    return ctx.map(at)


@view("as_strided_scatter", "as_strided_scatter")
def as_strided_scatter(ctx: Lowering, x: Value, src: Value, size: Any, stride: Any, offset: Any = None) -> Value:
    """x, one stretch of memory, with src written to the places of a window that has none twice."""
    b, first, work = ctx.buffers[x.buffer], offset or 0, acc_dtype(x.dtype)
    if x.map is not None or b.stride != contiguous_stride(b.shape) or b.shape != x.shape:
        raise NoRule("a write through strides")
    if not all(isinstance(n, int) for n in (*size, *stride, first)) or 0 in size:
        raise NoRule("a symbolic stride, or a window of nothing")
    dims = sorted((d for d, n in enumerate(size) if n > 1), key=lambda d: -stride[d])
    reach = [1 + sum((size[e] - 1) * stride[e] for e in dims[i:]) for i in range(len(dims) + 1)]
    if any(stride[d] < reach[i + 1] for i, d in enumerate(dims)):
        raise NoRule("a window that has places twice")

    def at(c: tuple) -> Expr:
        v = ix.index(ix.linear(c, b.stride) - first)
        own, left, mask = [ix.ZERO] * len(size), v, within(ctx, v, 0, reach[0])
        for i, d in enumerate(dims):
            own[d] = ix.index(ix.floordiv(left, stride[d], ctx.sizes))
            left = ix.index(ix.mod(left, stride[d], ctx.sizes))
            if reach[i + 1] < stride[d]:
                mask = both(ctx, mask, ctx.op("lt", ctx.cons.index(left), ctx.const(reach[i + 1], "i64")))
        e = ctx.read(src, tuple(own), work, mask)
        return e if mask is None else ctx.op("select", mask, e, ctx.read(x, c, work), dtype=work)

    return ctx.map(at)


@view("trace", "trace")
def trace(ctx: Lowering, x: Value) -> Value:
    n = min(x.shape)
    acc = acc_dtype(ir_dtype(ctx.spec()))
    total = ctx.reduce(ctx.view(x, (n,), lambda c: (c[0], c[0])), (0,), "sum", None, acc)
    return ctx.map(lambda c: ctx.read(total, c))


# ---- flipped and rolled -------------------------------------------------------------------------------------------
@view("rot90", "rot90")
def rot90(ctx: Lowering, x: Value, k: int = 1, dims: Any = (0, 1)) -> Value:
    a, b = (wrap_dim(d, len(x.shape)) for d in dims)

    def at(c: tuple) -> Expr:
        own = list(c)
        if k % 4 in (1, 3):
            own[a], own[b] = c[b], c[a]
        for d in {1: (b,), 2: (a, b), 3: (a,)}.get(k % 4, ()):
            own[d] = x.shape[d] - 1 - own[d] if x.shape[d] != 1 else own[d]
        return ctx.load(x, tuple(own))

    return ctx.map(at)


# ---- windows as columns -------------------------------------------------------------------------------------------
class Columns:
    """The arithmetic of `im2col` and `col2im`: which pixel element (i, j) of the window at (y, x) is."""

    def __init__(self, kernel: Any, dilation: Any, padding: Any, stride: Any, size: tuple):
        self.kernel, self.dilation = pair(kernel), pair(dilation)
        self.padding, self.stride, self.size = pair(padding), pair(stride), size
        self.across = tuple(self.count(d) for d in (0, 1))

    def count(self, d: int) -> Any:
        """Windows along a dim."""
        room = self.size[d] + 2 * self.padding[d] - self.dilation[d] * (self.kernel[d] - 1) - 1
        return ix.size_of(ix.floordiv(room, self.stride[d], {}) + 1)


@view("im2col", "im2col")
def im2col(ctx: Lowering, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    cols, work = Columns(kernel, dilation, padding, stride, x.shape[-2:]), acc_dtype(x.dtype)

    def at(c: tuple) -> Expr:
        channel, i, j = ix.delinear(c[-2], (x.shape[-3], *cols.kernel), ctx.sizes)
        y, z = ix.delinear(c[-1], cols.across, ctx.sizes)
        own = [ix.index(w * s - p + k * d) for w, s, p, k, d in zip((y, z), cols.stride, cols.padding, (i, j), cols.dilation)]
        mask = both(ctx, *(within(ctx, v, 0, n) for v, n in zip(own, cols.size)))
        e = ctx.read(x, (*c[:-2], channel, *own), work, mask)
        return e if mask is None else ctx.op("select", mask, e, ctx.const(0, work), dtype=work)

    return ctx.map(at)


# ---- elements by their number -------------------------------------------------------------------------------------
@view("take", "take", refuses=True)
def take(ctx: Lowering, x: Value, at: Value) -> Value:
    """x[i] with x as one row."""
    total = ix.size_of(math.prod(x.shape, start=ix.ONE))
    if total == 0:
        raise NoRule("take from nothing")

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.load(at, c), total, "take")
        return ctx.load(x, ix.delinear(i, x.shape, ctx.sizes) if len(x.shape) != 1 else (i,))

    return ctx.map(element)
