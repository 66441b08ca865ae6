"""Rows that read elsewhere: embedding, gather, indexing, pooling windows, resizing. Indices read from memory are
checked."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen import index as ix
from bytejit.codegen.loops import DTYPES, FLOATS, Expr, acc_dtype
from bytejit.codegen.lower import Lowering, NoRule, Value
from bytejit.codegen.ops_composite import F
from bytejit.codegen.ops_pointwise import aten
from bytejit.codegen.ops_reduce import count, number
from bytejit.codegen.ops_view import both, within, wrap
from bytejit.codegen.optable import op

WHOLE = ("i64", "i32", "i16", "i8", "u8")
UNROLL = 16               # window elements: larger windows are reductions


def row(name: str, *overloads: str, **fields: Any) -> Callable:
    """Declares a row of kind composite whose lower function is decorated."""
    return lambda fn: op(name, aten(*overloads), "composite", lower=fn, dtypes=frozenset(DTYPES), **fields) and fn


# ---- indices from memory
# ------------------------------------------------------------------------------------------------
@row("embedding", "embedding")
def embedding(ctx: Lowering, weight: Value, at: Value, *_: Any) -> Value:
    n = len(at.shape)

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.read(at, c[:n]), weight.shape[0], "embedding", wrap=False)
        return ctx.read(weight, (i, c[n]))
    return ctx.map(element)


@row("gather", "gather")
def gather(ctx: Lowering, x: Value, dim: int, at: Value, *, sparse_grad: bool = False) -> Value:
    dim = wrap(dim, len(x.shape))
    if not x.shape or not at.shape:
        raise NoRule("gather of 0-dim tensors")

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.load(at, c), x.shape[dim], "gather", wrap=False)
        return ctx.read(x, (*c[:dim], i, *c[dim + 1:]))
    return ctx.map(element)


@row("index_select", "index_select")
def index_select(ctx: Lowering, x: Value, dim: int, at: Value) -> Value:
    dim = wrap(dim, len(x.shape))
    if not x.shape or not at.shape:
        raise NoRule("index_select of 0-dim tensors")

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.load(at, (c[dim],)), x.shape[dim], "index_select", wrap=False)
        return ctx.read(x, (*c[:dim], i, *c[dim + 1:]))
    return ctx.map(element)


def broadcast(*shapes: tuple) -> tuple:
    """The shape that shapes broadcast to; symbolic sizes are no 1."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*full))


def numbers(*sizes: Any) -> None:
    """Raises: NoRule when a size is known only at the call."""
    if not all(isinstance(s, int) for s in sizes):
        raise NoRule("a symbolic size")


@row("index", "index.Tensor", "_unsafe_index.Tensor")
def index_tensor(ctx: Lowering, x: Value, indices: Any) -> Value:
    """x[i, None, j]: whole-number index tensors, broadcast; where they are apart, their dims come first."""
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype not in WHOLE[:2] for d in used) or any(x.shape[d] == 0 for d in used):
        raise NoRule("indexing by a mask")
    shape = broadcast(*(indices[d].shape for d in used))
    first = used[0] if used == list(range(used[0], used[0] + len(used))) else 0
    k = len(shape)

    def element(c: tuple) -> Expr:
        at, rest = c[first:first + k], iter((*c[:first], *c[first + k:]))
        own = []
        for d in range(len(x.shape)):
            own.append(
                ctx.bound(ctx.read(indices[d], at, indices[d].dtype), x.shape[d], "index")
                if d in used
                else next(rest)
            )
        return ctx.read(x, tuple(own))
    return ctx.map(element)


# ---- windows
# --------------------------------------------------------------------------------------------------------------
def pair(v: Any, default: Any = None) -> tuple[int, int]:
    """Two numbers of one, two or (then the default) none."""
    v = default if v is None or v == () or v == [] else v
    return (v, v) if isinstance(v, int) else (v[0], v[-1])


class Window:
    """The positions that a pooling window takes around an output point of the last two dims."""

    def __init__(self, ctx: Lowering, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = 1):
        self.ctx, self.x = ctx, x
        self.kernel = pair(kernel)
        self.stride, self.padding, self.dilation = pair(stride, self.kernel), pair(padding), pair(dilation)

    def at(self, c: tuple, k: tuple) -> tuple[tuple, Expr | None]:
        """Coordinates in x of window element k, and whether they are inside (None: always)."""
        own = [c[-2 + i] * self.stride[i] - self.padding[i] + k[i] * self.dilation[i] for i in (0, 1)]
        own = [ix.index(o) for o in own]
        mask = both(self.ctx, *(within(self.ctx, o, 0, s) for o, s in zip(own, self.x.shape[-2:])))
        return (*c[:-2], *own), mask

    def elements(self, c: tuple, outside: float) -> list[tuple[F, Expr | None]]:
        """All elements, `outside` where the window leaves x."""
        ctx, acc, out = self.ctx, acc_dtype(self.x.dtype), []
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                own, mask = self.at(c, (i, j))
                e = ctx.read(self.x, own, acc, mask)
                if mask is not None:                 # a masked load is 0, what is inlined there need not be
                    e = ctx.op("select", mask, e, ctx.const(outside, acc), dtype=acc)
                out.append((F(ctx, e), mask))
        return out


def _tree(parts: list[Any], fn: Callable[[Any, Any], Any]) -> Any:
    """Pairwise combination: short dependency chains, small rounding errors."""
    while len(parts) > 1:
        parts = [fn(*parts[i:i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


@row("max_pool2d", "max_pool2d_with_indices", "max_pool2d")
def max_pool2d(ctx: Lowering, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
               ceil_mode: bool = False) -> Any:
    many = isinstance(ctx.node.meta["spec"], tuple)
    window = Window(ctx, x, kernel, stride, padding, dilation)
    if window.kernel[0] * window.kernel[1] > UNROLL or x.dtype not in FLOATS:
        raise NoRule("a large window")
    values = None
    if not many or ctx.used(0):
        values = ctx.map(
            lambda c: _tree([e for e, _ in window.elements(c, -math.inf)], lambda a, b: a.do("maximum", b)).e,
            0 if many else None,
        )
    if not many:
        return values
    return values, ctx.map(lambda c: _best(ctx, window, c), 1) if ctx.used(1) else None


def _best(ctx: Lowering, window: Window, c: tuple) -> Expr:
    """Flat position in x's last two dims of the window's first greatest element; nan is greatest."""
    width = window.x.shape[-1]
    best = at = None
    for (e, mask), k in zip(
        window.elements(c, -math.inf), [(i, j) for i in range(window.kernel[0]) for j in range(window.kernel[1])]
    ):
        own, _ = window.at(c, k)
        here = F(ctx, ctx.cons.index(own[-2] * width + own[-1]))
        if best is None:
            best, at = e, here
            continue
        better = e.do("gt", best).do("or", e.do("isnan"))
        if mask is not None:
            better = better.do("and", F(ctx, mask))
            at = F(ctx, ctx.op("select", ctx.op("lt", at.e, ctx.const(0, "i64")), here.e, at.e, dtype="i64"))
        best, at = better.pick(e, best), better.pick(here, at)
    return at.e


@row("avg_pool2d", "avg_pool2d")
def avg_pool2d(ctx: Lowering, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor: int | None = None) -> Value:
    window = Window(ctx, x, kernel, stride, padding)
    size = window.kernel[0] * window.kernel[1]
    if size > UNROLL or ceil_mode or x.dtype not in FLOATS:
        raise NoRule("a large window, or one that may leave the padding")

    def element(c: tuple) -> Expr:
        parts = window.elements(c, 0)
        total = _tree([e for e, _ in parts], F.__add__)
        if divisor is not None or count_include_pad or window.padding == (0, 0):
            return (total / float(divisor or size)).e
        one = F(ctx, ctx.const(1.0, total.e.dtype))
        return (total / _tree([one if m is None else F(ctx, m).pick(one, 0.0) for _, m in parts], F.__add__)).e
    return ctx.map(element)


@row("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool2d(ctx: Lowering, x: Value, size: Any) -> Value:
    *lead, height, width = x.shape
    out = ctx.spec().shape[-2:]
    numbers(height, width, *out)
    if 0 in x.shape or height % out[0] or width % out[1] or x.dtype not in FLOATS:
        raise NoRule("windows of different sizes")
    kh, kw, n = height // out[0], width // out[1], len(lead)
    windows = ctx.view(
        x, (*lead, out[0], kh, out[1], kw), lambda c: (*c[:n], c[n] * kh + c[n + 1], c[n + 2] * kw + c[n + 3])
    )
    dims = (n + 1, n + 3)
    total = ctx.reduce(windows, dims, "sum", None, acc_dtype(x.dtype))
    return ctx.map(lambda c: (F(ctx, ctx.read(total, c)) / number(count(windows, dims))).e)


# ---- resizing
# ---------------------------------------------------------------------------------------------------------------
def _factor(size: int, out: int, scale: float | None) -> float:
    """Input pixels an output pixel, as float32, as torch has it."""
    return torch.tensor(1 / scale if scale else size / out, dtype=torch.float32).item()


@row("upsample_nearest2d", "upsample_nearest2d", "upsample_nearest2d.vec")
def upsample_nearest2d(ctx: Lowering, x: Value, size: Any, scales: Any = None, last: Any = None) -> Value:
    """By index arithmetic, where that is what torch's float arithmetic gives at each output position."""
    out = ctx.spec().shape
    vec = str(ctx.node.target).endswith("vec")
    scale = (scales or (None, None)) if vec else (scales, last)
    numbers(*x.shape[-2:], *out[-2:])
    for d in (0, 1):
        n, m = x.shape[-2 + d], out[-2 + d]
        f = torch.tensor(_factor(n, m, scale[d]), dtype=torch.float32)
        there = (torch.arange(m, dtype=torch.float32) * f).floor().clamp(max=n - 1).long()
        if not torch.equal(there, torch.arange(m) * n // m):
            raise NoRule("a scale that rounds")
    return ctx.map(lambda c: ctx.read(x, (*c[:-2], *(
        ix.floordiv(c[d] * x.shape[d], out[d], ctx.sizes) for d in (-2, -1)))))


@row("upsample_bilinear2d", "upsample_bilinear2d", "upsample_bilinear2d.vec")
def upsample_bilinear2d(
    ctx: Lowering, x: Value, size: Any, align: bool, scales: Any = None, last: Any = None
) -> Value:
    out = ctx.spec().shape
    scale = (scales or (None, None)) if str(ctx.node.target).endswith("vec") else (scales, last)
    acc = acc_dtype(x.dtype)
    numbers(*x.shape[-2:], *out[-2:])
    if acc not in ("f32", "f64"):
        raise NoRule("of ints")

    def axis(d: int, c: tuple) -> tuple[ix.Index, ix.Index, F]:
        n, m = x.shape[d], out[d]
        at = F(ctx, ctx.cast(ctx.cons.index(c[d]), acc))
        if align:
            pos = at * ((n - 1) / (m - 1) if m > 1 else 0.0)
        else:
            pos = ((at + 0.5) * (1 / scale[d] if scale[d] else n / m) - 0.5).do("maximum", 0.0)
        low = F(ctx, ctx.cast(pos.e, "i64")).do("minimum", n - 1)
        high = (low + 1).do("minimum", n - 1)
        part = (pos - F(ctx, ctx.cast(low.e, acc))).do("minimum", 1.0)
        return ix.index(ix.Val(low.e, n)), ix.index(ix.Val(high.e, n)), part

    def element(c: tuple) -> Expr:
        (y0, y1, fy), (x0, x1, fx) = axis(-2, c), axis(-1, c)

        def pixel(y: ix.Index, z: ix.Index) -> F:
            return F(ctx, ctx.read(x, (*c[:-2], y, z), acc))
        top = pixel(y0, x0) * (1 - fx) + pixel(y0, x1) * fx
        low = pixel(y1, x0) * (1 - fx) + pixel(y1, x1) * fx
        return (top * (1 - fy) + low * fy).e
    return ctx.map(element)
