"""Rows that interpolate: nearest, linear and cubic resizing, sampling at the points of a grid."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.common.dtypes import acc_dtype

from .composite import F
from .gather import numbers, row
from .moves import place
from .view import both

CUBIC = -0.75  # torch's constant of cubic convolution


def scales_of(ctx: Lowering, given: tuple, n: int) -> tuple:
    """The scale of each of the last n dims, None where the sizes say it."""
    if str(ctx.node.target).endswith("vec"):
        return tuple(given[0]) if given and given[0] else (None,) * n
    return (*given, *(None,) * n)[:n]


# ---- nearest ------------------------------------------------------------------------------------------------------
def _factor(size: int, out: int, scale: float | None) -> float:
    """Input pixels an output pixel, as float32, as torch has it."""
    return torch.tensor(1 / scale if scale else size / out, dtype=torch.float32).item()


def nearest_source(size: int, out: int, scale: float | None, exact: bool) -> tuple[int, int, int]:
    """(a, b, c): point i of the result is pixel (a * i + b) // c. Raises: NoRule, where torch's floats say otherwise."""
    a, b, c = (2 * size, size, 2 * out) if exact else (size, 0, out)
    f, at = torch.tensor(_factor(size, out, scale), dtype=torch.float32), torch.arange(out, dtype=torch.float32)
    there = ((at + 0.5 if exact else at) * f).floor().clamp(max=size - 1).long()
    if not torch.equal(there, (a * torch.arange(out) + b) // c):
        raise NoRule("a scale that rounds")
    return a, b, c


def _nearest(n: int, exact: bool) -> None:
    name = f"_upsample_nearest_exact{n}d" if exact else f"upsample_nearest{n}d"

    @row(name.strip("_"), name, f"{name}.vec")
    def lower(ctx: Lowering, x: Value, size: Any, *scales: Any) -> Value:
        """By index arithmetic, where that is what torch's float arithmetic gives at each output position."""
        out = ctx.spec().shape
        numbers(*x.shape[-n:], *out[-n:])
        sources = [nearest_source(x.shape[d], out[d], scale, exact) for d, scale in enumerate(scales_of(ctx, scales, n), -n)]

        def element(c: tuple) -> Expr:
            own = (ix.floordiv(ix.index(v) * a + b, k, ctx.sizes) for v, (a, b, k) in zip(c[-n:], sources))
            return ctx.read(x, (*c[:-n], *own))

        return ctx.map(element)


for _n in (1, 2, 3):
    _nearest(_n, False)
    _nearest(_n, True)


# ---- linear, cubic ------------------------------------------------------------------------------------------------
class Between:
    """Where the points of a result lie along each of the last n dims of an input, computed as eager does. sizes, out: of those
    dims, of the input and of the result."""

    def __init__(self, ctx: Lowering, sizes: tuple, out: tuple, acc: str, align: bool, scales: tuple):
        self.ctx, self.sizes, self.out, self.acc, self.align = ctx, sizes, out, acc, align
        self.scales = scales_of(ctx, scales, len(sizes))
        numbers(*sizes, *out)
        if acc not in ("f32", "f64"):
            raise NoRule("of ints")
        if any(n == m and s not in (None, 1) for n, m, s in zip(sizes, out, self.scales)):
            raise NoRule("a scale that keeps a size")  # which dims eager copies then is up to its kernels

    def factor(self, d: int) -> float:
        """Pixels of the input a pixel of the result, along dim d of n."""
        n, m, scale = self.sizes[d], self.out[d], self.scales[d]
        if self.align:
            return (n - 1) / (m - 1) if m > 1 else 0.0
        return 1 / scale if scale else n / m

    def position(self, d: int, i: ix.Index, low: bool) -> F:
        """The position of point i along dim d of n; low: not before the first pixel."""
        at = F(self.ctx, self.ctx.cast(self.ctx.cons.index(i), self.acc))
        if self.align:
            return at * self.factor(d)
        pos = (at + 0.5) * self.factor(d) - 0.5
        return pos.do("maximum", 0.0) if low else pos

    def linear(self, d: int, i: ix.Index) -> list[tuple[F, F]]:
        """The two pixels around point i, and their weights."""
        ctx, n, pos = self.ctx, self.sizes[d], self.position(d, i, True)
        low = F(ctx, ctx.cast(pos.e, "i32")).do("minimum", n - 1)  # i32: vector units turn floats into those
        high = (low + 1).do("minimum", n - 1) if n != self.out[d] else low  # else a nan would spread
        part = (pos - F(ctx, ctx.cast(low.e, self.acc))).do("minimum", 1.0)
        return [(low, 1 - part), (high, part)]

    def cubic(self, d: int, i: ix.Index) -> list[tuple[F, F]]:
        """The four pixels around point i, and their weights."""
        ctx, n, pos = self.ctx, self.sizes[d], self.position(d, i, False)
        low = pos.do("floor")
        first = F(ctx, ctx.cast(low.e, "i32"))
        places = ((first + (k - 1)).do("maximum", 0).do("minimum", n - 1) for k in range(4))
        return list(zip(places, weights(pos - low)))

    def read(self, d: int, pixels: list[tuple[F, F]]) -> list[tuple[ix.Index, F]]:
        """The same, as coordinates."""
        return [(place(self.ctx.cast(i.e, "i64"), self.sizes[d]), w) for i, w in pixels]


def between(ctx: Lowering, x: Value, n: int, align: bool, scales: tuple) -> Between:
    """Returns it for the result that is made of x."""
    return Between(ctx, x.shape[-n:], ctx.spec().shape[-n:], acc_dtype(x.dtype), align, scales)


def weights(t: F) -> list[F]:
    """Returns the weights of cubic convolution, t after the second of four pixels."""

    def near(v: F) -> F:
        return (v * (CUBIC + 2) - (CUBIC + 3)) * v * v + 1

    def far(v: F) -> F:
        return ((v * CUBIC - 5 * CUBIC) * v + 8 * CUBIC) * v - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _linear(n: int, name: str) -> None:
    @row(name, name, f"{name}.vec")
    def lower(ctx: Lowering, x: Value, size: Any, align: bool, *scales: Any) -> Value:
        found = between(ctx, x, n, align, scales)

        def element(c: tuple) -> Expr:
            ends = [found.read(d, found.linear(d, ix.index(c[d - n]))) for d in range(n)]

            def blend(own: tuple) -> F:
                if len(own) == n:
                    return F(ctx, ctx.read(x, (*c[:-n], *own), found.acc))
                (low, near), (high, part) = ends[len(own)]
                return blend((*own, low)) * near + blend((*own, high)) * part

            return blend(()).e

        return ctx.map(element)


for _n, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    _linear(_n, _name)


@row("upsample_bicubic2d", "upsample_bicubic2d", "upsample_bicubic2d.vec")
def bicubic(ctx: Lowering, x: Value, size: Any, align: bool, *scales: Any) -> Value:
    found = between(ctx, x, 2, align, scales)

    def element(c: tuple) -> Expr:
        rows, columns = (found.read(d, found.cubic(d, ix.index(c[d - 2]))) for d in (0, 1))
        lines = []
        for y, wy in rows:
            line = [F(ctx, ctx.read(x, (*c[:-2], y, z), found.acc)) * wx for z, wx in columns]
            lines.append(functools.reduce(operator.add, line) * wy)
        return functools.reduce(operator.add, lines).e

    return ctx.map(element)


# ---- sampling -----------------------------------------------------------------------------------------------------
ZEROS, BORDER, REFLECTION = range(3)


class Grid:
    """Where the points of a grid (numbers from -1 to 1) lie among the pixels of x."""

    def __init__(self, ctx: Lowering, x: Value, padding: int, align: bool):
        self.ctx, self.x, self.padding, self.align = ctx, x, padding, align

    def position(self, v: F, n: int) -> F:
        """A number of the grid as a position in a dim of n pixels."""
        pos = (v + 1) * ((n - 1) / 2) if self.align else ((v + 1) * n - 1) * 0.5
        if self.padding == REFLECTION:
            pos = self.reflected(pos, *((0, 2 * (n - 1)) if self.align else (-1, 2 * n - 1)))
        if self.padding != ZEROS:
            return pos.do("fmax", 0.0).do("fmin", float(n - 1))
        if self.ctx.device() == "cpu":
            return pos
        # no number of a pixel: a GPU leaves these points out, while a CPU multiplies a zero with their weight, nan
        return pos.do("abs").do("lt", float(1 << 31)).pick(pos, -100.0)

    def reflected(self, pos: F, low2: int, high2: int) -> F:
        """A position reflected at low2 / 2 and high2 / 2 as often as it takes."""
        if low2 == high2:
            return pos * 0.0
        low, span = low2 / 2, (high2 - low2) / 2
        off = (pos - low).do("abs")
        rest, turns = off.do("fmod", span), (off / span).do("floor")
        even = turns.do("fmod", 2.0).do("eq", 0.0)
        return even.pick(rest + low, span - rest + low)

    def pixel(self, c: tuple, y: F, z: F) -> F:
        """The pixel of whole positions; zero outside."""
        ctx, acc, own, tests = self.ctx, acc_dtype(self.x.dtype), [], []
        for v, n in ((y, self.x.shape[-2]), (z, self.x.shape[-1])):
            tests += [v.do("ge", 0.0).e, v.do("le", float(n - 1)).e]
            i = ctx.cast(v.do("fmax", 0.0).do("fmin", float(n - 1)).e, "i32")
            own.append(place(ctx.cast(i, "i64"), n))
        e = F(ctx, ctx.read(self.x, (*c[:2], *own), acc))
        inside = both(ctx, *tests)
        return e if self.padding != ZEROS or inside is None else F(ctx, inside).pick(e, 0.0)


@row("grid_sampler_2d", "grid_sampler_2d", "cudnn_grid_sampler")
def grid_sampler(ctx: Lowering, x: Value, grid: Value, mode: int = 0, padding: int = 0, align: bool = True) -> Value:
    """Bilinear or nearest."""
    numbers(*x.shape[-2:])
    if mode > 1 or 0 in x.shape or ir_dtype(ctx.spec()) not in ("f32", "f64"):
        raise NoRule("cubic, or of nothing, or of few bits")
    found = Grid(ctx, x, padding, align)

    def positions(k: int) -> Value:
        at = lambda c: found.position(F(ctx, ctx.read(grid, (*c, ix.index(k)))), x.shape[-1 - k]).e
        return ctx.pointwise(grid.shape[:-1], grid.dtype, at)

    across, down = positions(0), positions(1)  # once for all channels

    def element(c: tuple) -> Expr:
        z, y = (F(ctx, ctx.read(v, (c[0], *c[2:]))) for v in (across, down))
        if mode == 1:
            return found.pixel(c, y.do("round"), z.do("round")).e
        y0, z0 = y.do("floor"), z.do("floor")
        y1, z1 = y0 + 1, z0 + 1
        top, low, left, right = y1 - y, y - y0, z1 - z, z - z0
        return (
            found.pixel(c, y0, z0) * (top * left)
            + found.pixel(c, y0, z1) * (top * right)
            + found.pixel(c, y1, z0) * (low * left)
            + found.pixel(c, y1, z1) * (low * right)
        ).e

    return ctx.map(element)


@row("affine_grid", "affine_grid_generator")
def affine_grid(ctx: Lowering, theta: Value, size: Any, align: bool) -> Value:
    """The numbers from -1 to 1 of a regular grid, rotated and moved by theta."""
    n = len(size) - 2
    numbers(*size[2:])
    acc = acc_dtype(theta.dtype)

    def number(v: ix.Index, m: int) -> F:
        at = F(ctx, ctx.cast(ctx.cons.index(ix.index(v)), acc))
        if m <= 1:
            return at * 0.0
        line = at * (2 / (m - 1)) - 1
        return line if align else line * ((m - 1) / m)

    def element(c: tuple) -> Expr:
        total = F(ctx, ctx.read(theta, (c[0], c[-1], ix.index(n)), acc))
        for k in range(n):  # x is the last dim
            total = total + F(ctx, ctx.read(theta, (c[0], c[-1], ix.index(k)), acc)) * number(c[n - k], size[2 + n - 1 - k])
        return total.e

    return ctx.map(element)
