"""Rows of pooling: windows of one, two or three dims, unrolled; large ones dim by dim, or as reductions."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.common.dtypes import FLOATS, acc_dtype
from bytejit.common.spec import contiguous_stride

from .composite import F
from .gather import numbers, row
from .reduce import count, number
from .view import both, within

UNROLL = 16  # window elements: larger windows are taken dim by dim
WIDE = 32  # along one dim: wider windows are reductions


def spread(v: Any, n: int, default: Any = None) -> tuple[int, ...]:
    """A list of one or n numbers as n numbers; `default` where it is empty."""
    v = default if v is None or v == () or v == [] else v
    return (v,) * n if isinstance(v, int) else tuple(v) if len(v) == n else (v[0],) * n


def pair(v: Any, default: Any = None) -> tuple[int, ...]:
    """A list of one or two numbers as two."""
    return spread(v, 2, default)


class Window:
    """The positions that a pooling window takes around an output point of the last n dims."""

    def __init__(self, ctx: Lowering, x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1):
        self.ctx, self.x, self.n = ctx, x, n
        self.kernel = spread(kernel, n)
        self.stride, self.padding, self.dilation = spread(stride, n, self.kernel), spread(padding, n), spread(dilation, n)

    def places(self) -> list[tuple[int, ...]]:
        """The window's elements."""
        return list(itertools.product(*map(range, self.kernel)))

    def at(self, c: tuple, k: tuple) -> tuple[tuple, Expr | None]:
        """Coordinates in x of window element k, and whether they are inside (None: always)."""
        n = self.n
        own = [ix.index(c[i - n] * self.stride[i] - self.padding[i] + k[i] * self.dilation[i]) for i in range(n)]
        mask = both(self.ctx, *(within(self.ctx, o, 0, s) for o, s in zip(own, self.x.shape[-n:])))
        return (*c[:-n], *own), mask

    def elements(self, c: tuple, outside: float) -> list[tuple[F, Expr | None]]:
        """All elements, `outside` where the window leaves x."""
        ctx, acc, out = self.ctx, acc_dtype(self.x.dtype), []
        for k in self.places():
            own, mask = self.at(c, k)
            e = ctx.read(self.x, own, acc, mask)
            if mask is not None:  # a masked load is 0, what is inlined there need not be
                e = ctx.op("select", mask, e, ctx.const(outside, acc), dtype=acc)
            out.append((F(ctx, e), mask))
        return out

    def count(self, c: tuple) -> F:
        """Elements of the window that lie in x or its padding."""
        factors = []
        for i in range(self.n):
            rest = F(
                self.ctx,
                self.ctx.cons.index(ix.index(self.x.shape[i - self.n] + 2 * self.padding[i] - c[i - self.n] * self.stride[i])),
            )
            factors.append(rest.do("minimum", self.kernel[i]))
        return functools.reduce(operator.mul, factors)

    def inside(self, c: tuple) -> F:
        """Elements of the window that lie in x."""
        factors = []
        for i in range(self.n):
            first = F(self.ctx, self.ctx.cons.index(ix.index(c[i - self.n] * self.stride[i] - self.padding[i])))
            end = (first + self.kernel[i]).do("minimum", ix.index(self.x.shape[i - self.n]))
            factors.append(end - first.do("maximum", 0))
        return functools.reduce(operator.mul, factors)

    def along(self, d: int, x: Value) -> Window:
        """The same window along one dim, one element of the others, over x."""

        def only(v: tuple, rest: int) -> tuple:
            return tuple(k if j == d else rest for j, k in enumerate(v))

        return Window(
            self.ctx, x, self.n, only(self.kernel, 1), only(self.stride, 1), only(self.padding, 0), only(self.dilation, 1)
        )

    def most(self, c: tuple) -> Expr:
        """The greatest element; nan is greatest."""
        return _tree([e for e, _ in self.elements(c, -math.inf)], lambda a, b: a.do("maximum", b)).e


def _tree(parts: list[Any], fn: Callable[[Any, Any], Any]) -> Any:
    """Pairwise combination: short dependency chains, small rounding errors."""
    while len(parts) > 1:
        parts = [fn(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def _max_pool(n: int, *overloads: str) -> None:
    @row(f"max_pool{n}d", *overloads)
    def lower(
        ctx: Lowering, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        many = isinstance(ctx.node.meta["spec"], tuple)
        window = Window(ctx, x, n, kernel, stride, padding, dilation)
        large = math.prod(window.kernel) > UNROLL
        if x.dtype not in FLOATS or max(window.kernel) > UNROLL or large and many and ctx.used(1):
            raise NoRule("a large window")
        values, i = None, 0 if many else None
        if not many or ctx.used(0):
            values = _dim_by_dim(ctx, window, i) if large else ctx.map(window.most, i)
        if not many:
            return values
        return values, _positions(ctx, window) if ctx.used(1) else None


def in_order(ctx: Lowering, shape: tuple, dtype: str, fn: Callable[[tuple], Expr], i: int | None = None) -> Value:
    """`Lowering.pointwise` over as many dims as the node's own spec (or its i-th result's) has, which lie in memory in its
    order."""
    like = ctx.spec(i).stride
    order = sorted(range(len(shape)), key=lambda d: -ix.hint(like[d]))
    dense = dict(zip(order, contiguous_stride(tuple(shape[d] for d in order))))
    return ctx.pointwise(shape, dtype, fn, tuple(dense[d] for d in range(len(shape))))


def _dim_by_dim(ctx: Lowering, window: Window, i: int | None) -> Value:
    """The greatest element of a large window: first of each row of the window, then of these results."""
    x, n, spec = window.x, window.n, ctx.spec(i)
    for d in reversed(range(n)):
        row_ = window.along(d, x)
        if d == 0:
            return ctx.map(row_.most, i)
        shape = (*x.shape[: d - n], spec.shape[d - n], *x.shape[len(x.shape) + d - n + 1 :])
        x = in_order(ctx, shape, ir_dtype(spec), row_.most, i)
    return x


_max_pool(2, "max_pool2d_with_indices", "max_pool2d")
_max_pool(3, "max_pool3d_with_indices", "max_pool3d")


def _positions(ctx: Lowering, window: Window) -> Value:
    """The flat positions in x's last dims of the windows' greatest elements. Stored is where each lies within its window, in 8
    bits: a gradient computes the position from that, and need not read the elements again."""
    spec, n = ctx.spec(1), window.n
    places = ctx.pointwise(spec.shape, "u8", lambda c: _best(ctx, window, c), spec.stride)

    units = [_flat(window, tuple(window.dilation[d] * (i == d) for i in range(n))) for d in range(n)]
    steps, bits = [ix.size_of(unit) for unit in units], _bits(window.kernel)
    # in 32 bits where all fit: AVX2 has neither shifts nor products of 64
    most = sum(mask * step for (_, mask), step in zip(bits, steps) if isinstance(step, int))
    wide = "i32" if all(isinstance(step, int) for step in steps) and most < 1 << 31 else "i64"

    def position(c: tuple) -> Expr:
        packed, within = F(ctx, ctx.cast(ctx.read(places, c, "u8"), "i32")), F(ctx, ctx.const(0, wide))
        for (shift, mask), step in zip(bits, steps):
            part = ctx.cast(packed.do("shr", shift).do("and", mask).e, wide)
            within = within + F(ctx, part) * F(ctx, ctx.const(step, wide))
        flat = F(ctx, ctx.cons.index(_flat(window, window.at(c, (0,) * n)[0][-n:])))
        return (flat + F(ctx, ctx.cast(within.e, "i64"))).e

    return ctx.map(position, 1)


def _bits(kernel: tuple[int, ...]) -> list[tuple[int, int]]:
    """How a place within a window is packed into one number: for each dim, by how many bits it is shifted, and its mask."""
    widths = [(k - 1).bit_length() for k in kernel]
    return [(sum(widths[d + 1 :]), (1 << w) - 1) for d, w in enumerate(widths)]


def _packed(kernel: tuple[int, ...], place: tuple[int, ...]) -> int:
    return sum(k << shift for k, (shift, _) in zip(place, _bits(kernel)))


def _best(ctx: Lowering, window: Window, c: tuple) -> Expr:
    """The place of the window's first greatest element, packed; nan is greatest. Elements outside are -inf, never greater than
    another: where all are, the first one inside stands."""
    best, at = None, _first_inside(ctx, window, c)
    for (e, _), k in zip(window.elements(c, -math.inf), window.places()):
        if best is None:
            best = e
            continue
        better = e.do("gt", best).do("or", e.do("isnan"))
        best, at = better.pick(e, best), better.pick(_number(ctx, _packed(window.kernel, k)), at)
    return ctx.cast(at.e, "u8")


def _number(ctx: Lowering, value: int) -> F:
    """In 32 bits: as many lanes as the elements."""
    return F(ctx, ctx.const(value, "i32"))


def _first_inside(ctx: Lowering, window: Window, c: tuple) -> F:
    """The place of the first element that lies in x, packed."""
    total, n = _number(ctx, 0), window.n
    for d, own in enumerate(window.at(c, (0,) * n)[0][-n:]):
        behind = _number(ctx, 0)
        for k in range(1, window.kernel[d]):
            before = own + (k - 1) * window.dilation[d]
            if ix.at_least(before, 0, ctx.sizes):
                break
            outside = F(ctx, ctx.op("lt", ctx.cons.index(before), ctx.const(0, "i64")))
            place = tuple(k if i == d else 0 for i in range(n))
            behind = outside.pick(_number(ctx, _packed(window.kernel, place)), behind)
        total = total + behind
    return total


def _flat(window: Window, place: tuple) -> ix.Index:
    """A position in x's last dims as one number."""
    flat = ix.ZERO
    for v, size in zip(place, window.x.shape[-window.n :]):
        flat = flat * size + v
    return ix.index(flat)


def _avg_pool(n: int) -> None:
    @row(f"avg_pool{n}d", f"avg_pool{n}d")
    def lower(
        ctx: Lowering,
        x: Value,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Value:
        window = Window(ctx, x, n, kernel, stride, padding)
        size, work = math.prod(window.kernel), acc_dtype(x.dtype)
        if x.dtype not in FLOATS:
            raise NoRule("of whole numbers")
        if size > UNROLL:
            sums = _sums(ctx, window)
            whole = not ceil_mode and (count_include_pad or not any(window.padding))  # no window is cut

            def mean(c: tuple) -> Expr:
                total = F(ctx, ctx.read(sums, c, work))
                count = window.count(c) if count_include_pad else window.inside(c)
                return (total / (float(divisor or size) if divisor is not None or whole else F(ctx, ctx.cast(count.e, work)))).e

            return ctx.map(mean)

        def element(c: tuple) -> Expr:
            parts = window.elements(c, 0)
            total = _added(parts)
            if ceil_mode and divisor is None and count_include_pad:
                return (total / F(ctx, ctx.cast(window.count(c).e, total.e.dtype))).e
            if divisor is not None or count_include_pad or not any(window.padding) and not ceil_mode:
                return (total / float(divisor or size)).e
            one = F(ctx, ctx.const(1.0, total.e.dtype))
            return (total / _tree([one if m is None else F(ctx, m).pick(one, 0.0) for _, m in parts], F.__add__)).e

        return ctx.map(element)


def _sums(ctx: Lowering, window: Window) -> Value:
    """The sums of large windows, dim by dim, the last first."""
    x, n, work = window.x, window.n, acc_dtype(window.x.dtype)
    for d in reversed(range(n)):
        k = window.kernel[d]
        if k == 1 and window.stride[d] == 1 and window.padding[d] == 0:
            continue
        shape = (*x.shape[: d - n], ctx.spec().shape[d - n], *x.shape[len(x.shape) + d - n + 1 :])
        if k > WIDE:
            x = _long_sums(ctx, x, d - n, k, window.stride[d], window.padding[d], shape)
        else:
            x = in_order(ctx, shape, work, functools.partial(_total, window.along(d, x)))
    return x


def _total(window: Window, c: tuple) -> Expr:
    """The sum of a window."""
    return _added(window.elements(c, 0)).e


def _added(parts: list[tuple[F, Expr | None]]) -> F:
    """The sum of elements."""
    return _tree([e for e, _ in parts], F.__add__)


def _long_sums(ctx: Lowering, x: Value, dim: int, k: int, stride: int, padding: int, shape: tuple) -> Value:
    """The sums of windows of k elements along one dim, counted from the end. shape: of the result."""
    work, size = acc_dtype(x.dtype), x.shape[dim]

    def element(c: tuple) -> Expr:
        own = [*c[:-1]]
        own[dim] = ix.index(c[dim - 1] * stride - padding + c[-1])
        inside = within(ctx, own[dim], 0, size)
        e = ctx.read(x, tuple(own), work, inside)
        return e if inside is None else ctx.op("select", inside, e, ctx.const(0.0, work), dtype=work)

    return ctx.reduce(Value(x.buffer, (*shape, k), x.dtype), (len(shape),), "sum", element, work)


_avg_pool(2)
_avg_pool(3)


@row("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool2d(ctx: Lowering, x: Value, size: Any) -> Value:
    *lead, height, width = x.shape
    out = ctx.spec().shape[-2:]
    numbers(height, width, *out)
    if 0 in x.shape or x.dtype not in FLOATS:
        raise NoRule("of nothing, or of whole numbers")
    if height % out[0] or width % out[1]:
        return _uneven(ctx, x, (height, width), out)
    kh, kw, n = height // out[0], width // out[1], len(lead)
    windows = ctx.view(x, (*lead, out[0], kh, out[1], kw), lambda c: (*c[:n], c[n] * kh + c[n + 1], c[n + 2] * kw + c[n + 3]))
    dims = (n + 1, n + 3)
    total = ctx.reduce(windows, dims, "sum", None, acc_dtype(x.dtype))
    return ctx.map(lambda c: (F(ctx, ctx.read(total, c)) / number(count(windows, dims))).e)


def _uneven(ctx: Lowering, x: Value, size: tuple, out: tuple) -> Value:
    """Windows of i*n//m up to (i + 1)*n/m rounded up."""
    acc = acc_dtype(x.dtype)
    longest = [max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in zip(size, out)]
    if math.prod(longest) > UNROLL:
        raise NoRule("a large window")

    def element(c: tuple) -> Expr:
        first = [ix.floordiv(c[d] * n, m, ctx.sizes) for d, n, m in zip((-2, -1), size, out)]
        parts = []
        for k in itertools.product(*map(range, longest)):
            own = [ix.index(f + j) for f, j in zip(first, k)]
            mask = both(
                ctx,
                *(
                    None if j == 0 else ctx.op("lt", ctx.cons.index(v * m), ctx.cons.index((c[d] + 1) * n))
                    for d, v, j, n, m in zip((-2, -1), own, k, size, out)
                ),
            )
            e = F(ctx, ctx.read(x, (*c[:-2], *own), acc, mask))
            one = F(ctx, ctx.const(1.0, acc))
            parts.append((e, one) if mask is None else (F(ctx, mask).pick(e, 0.0), F(ctx, mask).pick(one, 0.0)))
        return (_tree([e for e, _ in parts], F.__add__) / _tree([one for _, one in parts], F.__add__)).e

    return ctx.map(element)
