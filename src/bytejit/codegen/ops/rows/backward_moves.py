"""Gradients of ops that move elements: parts of a tensor, windows, pads, embeddings; of pools: backward_pools.py. Each point of
the result sums the gradients of all that was read from it, so no two threads write one place.

A pool or a pad treats each dim on its own: an element `o` of the result reads elements of x with a weight each. `Taps` says
which `o` may have read a given element of x; the sum over those is the gradient along that dim.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import LibraryIsBetter, Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.common.dtypes import FLOATS, acc_dtype
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import wrap_dim

from .composite import F
from .gather import row
from .moves import Columns, on_diagonal
from .pools import UNROLL, WIDE, in_order
from .scatter import INDICES, update
from .view import both, clamped, view, within

FEW = 3  # elements that a CPU reads at once: masked elements of a row are read one by one


def masked(ctx: Lowering, g: Value, own: tuple, mask: Expr | None, dtype: str) -> Expr:
    """The element of g at `own` where the mask holds, else 0."""
    e = ctx.read(g, own, dtype, mask)
    return e if mask is None else ctx.op("select", mask, e, ctx.const(0, dtype), dtype=dtype)


# ---- parts of a tensor --------------------------------------------------------------------------------------------
def _part(ctx: Lowering, g: Value, own: Callable[[tuple], tuple[tuple, Expr | None]]) -> Value:
    """g at own(c) = (coordinates, whether there is one), 0 elsewhere."""
    work = acc_dtype(g.dtype)
    return ctx.map(lambda c: masked(ctx, g, *own(c), work))


@view("slice_backward", "slice_backward")
def slice_backward(ctx: Lowering, g: Value, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Value:
    dim = wrap_dim(dim, len(sizes))
    start, count = clamped(start, sizes[dim]), g.shape[dim]
    if 0 in g.shape:
        return ctx.map(lambda c: ctx.const(0, acc_dtype(g.dtype)))

    def own(c: tuple) -> tuple[tuple, Expr | None]:
        v = ix.index(c[dim] - start)
        mask = within(ctx, v, 0, (count - 1) * step + 1)
        if step != 1:
            rest = ix.mod(v + step * sizes[dim], step, ctx.sizes)
            mask = both(ctx, mask, ctx.op("eq", ctx.cons.index(rest), ctx.const(0, "i64")))
            v = ix.floordiv(v, step, ctx.sizes)
        return (*c[:dim], v, *c[dim + 1 :]), mask

    return _part(ctx, g, own)


@view("select_backward", "select_backward")
def select_backward(ctx: Lowering, g: Value, sizes: Any, dim: int, i: Any) -> Value:
    dim = wrap_dim(dim, len(sizes))
    i = i + sizes[dim] if ix.hint(i) < 0 else i

    def own(c: tuple) -> tuple[tuple, Expr | None]:
        here = None if sizes[dim] == 1 else ctx.op("eq", ctx.cons.index(ix.index(c[dim])), ctx.const(i, "i64"))
        return c[:dim] + c[dim + 1 :], here

    return _part(ctx, g, own)


@view("diagonal_backward", "diagonal_backward")
def diagonal_backward(ctx: Lowering, g: Value, sizes: Any, offset: int, a: int, b: int) -> Value:
    a, b = wrap_dim(a, len(sizes)), wrap_dim(b, len(sizes))
    if g.shape[-1] == 0:
        return ctx.map(lambda c: ctx.const(0, acc_dtype(g.dtype)))

    def own(c: tuple) -> tuple[tuple, Expr | None]:
        here, i = on_diagonal(ctx, ix.index(c[a]), ix.index(c[b]), offset)
        return (*(v for d, v in enumerate(c) if d not in (a, b)), i), here

    return _part(ctx, g, own)


# ---- dims on their own --------------------------------------------------------------------------------------------
@light_dataclass(frozen=True)
class Taps:
    """Which elements of a result of `out` elements along a dim read element i of x: at(i) is their places (places outside of
    range(out) count as none), each with whether it did (None: it did), and the weight (None: 1)."""

    out: Any
    at: Callable[[ix.Index], list[tuple[ix.Index, Expr | None, Any]]]


def gathered(ctx: Lowering, g: Value, size: tuple, taps: list[Taps]) -> Value:
    """The gradient of x, whose last dims have `size`, dim by dim where all at once would be many elements."""
    n, work = len(taps), acc_dtype(g.dtype)
    probe = [len(t.at(ix.var("probe"))) if s != 1 else len(t.at(ix.ZERO)) for t, s in zip(taps, size)]
    if max(probe, default=1) > WIDE:
        raise NoRule("a large window")
    if math.prod(probe) > (FEW if ctx.home == "cpu" else UNROLL // 2 if n == 3 else UNROLL):
        for d in range(n - 1):
            shape = (*g.shape[: d - n], size[d], *g.shape[len(g.shape) + d - n + 1 :])
            g = in_order(ctx, shape, work, functools.partial(_total, ctx, g, taps={d - n: taps[d]}))
        return ctx.map(lambda c: _total(ctx, g, c, {-1: taps[-1]}))
    return ctx.map(lambda c: _total(ctx, g, c, {d - n: t for d, t in enumerate(taps)}))


def _total(ctx: Lowering, g: Value, c: tuple, taps: dict[int, Taps]) -> Expr:
    """The sum over the places that the taps of some dims say."""
    work, total = acc_dtype(g.dtype), None
    found = [[(d, *tap) for tap in t.at(ix.index(c[d]))] for d, t in taps.items()]
    for one in itertools.product(*found):
        own, mask, weight = list(c), None, None
        for d, place, here, w in one:
            mask = both(ctx, mask, here, within(ctx, place, 0, taps[d].out))
            own[d] = place
            weight = w if weight is None else weight if w is None else weight * w
        e = F(ctx, ctx.read(g, tuple(own), work, mask))
        e = e if mask is None else F(ctx, mask).pick(e, 0.0)
        e = e if weight is None else e * weight  # finite, also where the mask is false
        total = e if total is None else total + e
    return total.e if total is not None else ctx.const(0.0, work)


def windows(ctx: Lowering, k: int, stride: int, padding: int, dilation: int, out: Any, weight: Callable | None = None) -> Taps:
    """Windows of k elements, every stride-th; element j of window o is element o * stride - padding + j * dilation of x."""

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        found = []
        if dilation == 1:  # the last window that begins at i or before, and those before it
            last = ix.floordiv(i + padding, stride, ctx.sizes)
            for back in range(-(-k // stride)):
                o = ix.index(last - back)
                inside = None
                if back * stride + stride > k:  # the window may end before i
                    inside = ctx.op("lt", ctx.cons.index(ix.index(i + padding - o * stride)), ctx.const(k, "i64"))
                found.append((o, inside, None if weight is None else weight(o)))
            return found
        for j in range(k):
            v = ix.index(i + padding - j * dilation)
            hit = None
            if stride != 1:
                hit = ctx.op("eq", ctx.cons.index(ix.mod(v + dilation * k * stride, stride, ctx.sizes)), ctx.const(0, "i64"))
            o = ix.floordiv(v, stride, ctx.sizes)
            found.append((o, hit, None if weight is None else weight(o)))
        return found

    return Taps(out, at)


@view("unfold_backward", "unfold_backward")
def unfold_backward(ctx: Lowering, g: Value, sizes: Any, dim: int, size: int, step: int) -> Value:
    """g has the windows along `dim` and their elements along the last."""
    dim, work = wrap_dim(dim, len(sizes)), acc_dtype(g.dtype)
    if not sizes or -(-size // max(step, 1)) > UNROLL or 0 in g.shape:
        raise NoRule("a large window, or none")
    taps = windows(ctx, size, step, 0, 1, g.shape[dim])

    def element(c: tuple) -> Expr:
        terms = []
        for o, inside, _ in taps.at(ix.index(c[dim])):
            mask = both(ctx, inside, within(ctx, o, 0, g.shape[dim]))
            own = (*c[:dim], o, *c[dim + 1 :], ix.index(c[dim] - o * step))
            terms.append(masked(ctx, g, own, mask, work))
        return functools.reduce(functools.partial(ctx.op, "add"), terms)

    return ctx.map(element)


@view("col2im", "col2im")
def col2im(ctx: Lowering, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    """x has a column for each window. Each pixel is the sum over the windows that contain it."""
    cols, work = Columns(kernel, dilation, padding, stride, tuple(size)), acc_dtype(x.dtype)
    dims = list(zip(cols.kernel, cols.stride, cols.padding, cols.dilation, cols.across))
    taps = [windows(ctx, *d) for d in dims]
    if math.prod(len(t.at(ix.var("probe"))) for t in taps) > UNROLL:
        raise NoRule("a large window")

    def along(d: int, i: ix.Index) -> list[tuple[ix.Index, ix.Index, Expr | None]]:
        """(window, which of its elements, whether it is one) for all windows along a dim that have element i."""
        _, s, p, dilation, count = dims[d]
        found = []
        for k, (o, inside, _) in enumerate(taps[d].at(i)):
            j = ix.index(k) if dilation != 1 else ix.index(i + p - o * s)
            found.append((o, j, both(ctx, inside, within(ctx, o, 0, count))))
        return found

    def element(c: tuple) -> Expr:
        terms = []
        for (y, i, above), (z, j, beside) in itertools.product(along(0, ix.index(c[-2])), along(1, ix.index(c[-1]))):
            column = (c[-3] * cols.kernel[0] + i) * cols.kernel[1] + j
            own = (*c[:-3], column, ix.linear([y, z], (cols.across[1], 1)))
            terms.append(masked(ctx, x, own, both(ctx, above, beside), work))
        return functools.reduce(functools.partial(ctx.op, "add"), terms)

    return ctx.map(element)


# ---- pads ---------------------------------------------------------------------------------------------------------
def _mirrored(ctx: Lowering, n: Any, low: int, high: int) -> Taps:
    """An element is read in its place and, near an end, once more behind that."""

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        found: list[tuple[ix.Index, Expr | None, Any]] = [(ix.index(i + low), None, None)]
        if low > 0:
            found.append((ix.index(low - i), ctx.op("gt", ctx.cons.index(ix.index(i)), ctx.const(0, "i64")), None))
        if high > 0:
            last = ctx.op("lt", ctx.cons.index(ix.index(i)), ctx.const(ix.size_of(ix.index(n) - 1), "i64"))
            found.append((ix.index(low + 2 * (n - 1) - i), last, None))
        return found

    return Taps(n + low + high, at)


def _held(ctx: Lowering, n: Any, low: int, high: int) -> Taps:
    """The elements at the ends are read for each place behind them too."""

    def at(i: ix.Index) -> list[tuple[ix.Index, Expr | None, Any]]:
        here = ctx.cons.index(ix.index(i))
        found: list[tuple[ix.Index, Expr | None, Any]] = [(ix.index(i + low), None, None)]
        first, last = (ctx.op("eq", here, ctx.const(v, "i64")) for v in (0, ix.size_of(ix.index(n) - 1)))
        found += [(ix.index(k), first, None) for k in range(low)]
        return found + [(ix.index(n + low + k), last, None) for k in range(high)]

    return Taps(n + low + high, at)


def _pad_backward(name: str, taps: Callable, *overloads: str) -> None:
    @view(name, *overloads)
    def lower(ctx: Lowering, g: Value, x: Value, pad: Any) -> Value:
        n = len(pad) // 2
        if g.dtype not in FLOATS or not all(isinstance(p, int) for p in pad):
            raise NoRule("a pad of whole numbers, or of a size known at the call")
        dims = [(x.shape[d], *pad[2 * (-d - 1) : 2 * (-d - 1) + 2]) for d in range(-n, 0)]
        return gathered(ctx, g, tuple(x.shape[len(x.shape) - n :]), [taps(ctx, *d) for d in dims])


_pad_backward("reflection_pad_backward", _mirrored, *(f"reflection_pad{n}d_backward" for n in (1, 2, 3)))
_pad_backward("replication_pad_backward", _held, *(f"replication_pad{n}d_backward" for n in (1, 2, 3)))


# ---- embedding ----------------------------------------------------------------------------------------------------
@row("embedding_backward", "embedding_dense_backward", refuses=True)
def embedding_backward(ctx: Lowering, g: Value, at: Value, rows: Any, padding: int, by_frequency: bool) -> Value:
    """Tokens are added up in their order on the CPU. On a GPU a table of a few rows is a sum for each, and torch's kernel does
    others: both the same each time."""
    if by_frequency or at.dtype not in INDICES or 0 in g.shape or g.dtype not in FLOATS:
        raise NoRule("an embedding scaled by frequency")
    if ctx.home != "cpu":
        if not isinstance(rows, int) or not 0 < rows <= FEW_ROWS:
            raise LibraryIsBetter("on a GPU")
        return _sums_of_tokens(ctx, g, at, rows, padding)
    spec, work, n = ctx.spec(), acc_dtype(g.dtype), len(at.shape)
    zeros = ctx.pointwise(spec.shape, work, lambda c: ctx.const(0.0, work))

    def place(c: tuple) -> tuple[tuple, Expr]:
        token = ctx.read(at, c[:n], "i64")
        value = ctx.read(g, c, work)
        if padding >= 0:
            value = ctx.op("select", ctx.op("eq", token, ctx.const(padding, "i64")), ctx.const(0.0, work), value, dtype=work)
        return (ctx.bound(token, rows, "embedding", wrap=False), c[n]), value

    made = update(ctx, zeros, g.shape, place, "add")
    return made if g.dtype == work else ctx.map(lambda c: ctx.read(made, c))


FEW_ROWS = 4  # of a table whose gradient is a sum over all tokens for each: they are read so often


def _sums_of_tokens(ctx: Lowering, g: Value, at: Value, rows: int, padding: int) -> Value:
    """The gradient of a table of a few rows: for each the sum of what its tokens got."""
    work, n = acc_dtype(g.dtype), len(at.shape)
    every = ctx.view(g, (rows, *g.shape), lambda c: c[1:])
    zero = ctx.const(0.0, work)

    def of_row(c: tuple) -> Expr:
        row = ctx.cons.index(ix.index(c[0]), ctx.where)
        mine = ctx.op("eq", ctx.read(at, c[1 : n + 1], "i64"), row)
        if padding >= 0:
            mine = ctx.op("and", mine, ctx.op("ne", row, ctx.const(padding, "i64")))
        return ctx.op("select", mine, ctx.read(g, c[1:], work), zero, dtype=work)

    made = ctx.reduce(every, tuple(range(1, n + 1)), "sum", of_row, work)
    return made if g.dtype == work else ctx.map(lambda c: ctx.read(made, c))
