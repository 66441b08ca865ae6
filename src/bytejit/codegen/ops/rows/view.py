"""Rows of the ops that move elements without computing: views (index maps, no kernel) and copies along an index map.

A copy (flip, roll, repeat, cat, pad) is one kernel whose loads are mapped; fuse inlines it into its readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value, ir_dtype
from bytejit.codegen.ops.table import Lower, lowers
from bytejit.common.dtypes import DTYPES, acc_dtype
from bytejit.common.spec import contiguous_stride, wrap_dim

from .create import create


def view(name: str, *overloads: str, **fields: Any) -> Callable[[Lower], Lower]:
    """Declares a row of kind view whose lower function is decorated."""
    return lowers("view", name, overloads, **fields)


def reshape_coords(new: tuple, old: tuple, coords: tuple) -> tuple:
    """Coordinates in `old` of a point in `new`, both row-major over the same elements; dims are matched in groups."""
    sizes = {a.parts[0]: s for c, s in zip(coords, new) for a, _ in c.terms if type(a) is ix.AxisVar}
    out: list[Any] = []
    if 0 in new:
        return tuple(ix.ZERO for _ in old)
    for i0, i, j0, j in matched_dims(new, old):
        group, target = new[i0:i], old[j0:j]
        flat = ix.linear(coords[i0:i], contiguous_stride(group)) if group else ix.ZERO
        out.extend(ix.delinear(flat, target, sizes))
    return tuple(out)


def matched_dims(new: tuple, old: tuple) -> list[tuple[int, int, int, int]]:
    """Runs new[i0:i], old[j0:j] of equal products. What cannot be shown equal for every size ends up in one last run."""
    out = []
    i = j = 0
    while i < len(new) or j < len(old):
        i0, j0 = i, j
        a, b = (new[i] if i < len(new) else 1), (old[j] if j < len(old) else 1)
        i, j = i + 1, j + 1
        while a != b and (i < len(new) or j < len(old)):
            if j >= len(old) or i < len(new) and ix.hint(a) < ix.hint(b):
                a, i = a * new[i], i + 1
            else:
                b, j = b * old[j], j + 1
        out.append((i0, min(i, len(new)), j0, min(j, len(old))))
    return out


def clamped(start: Any, size: Any) -> Any:
    """A slice's bound counted from the front. Which case a symbolic one is, its hint says: the graph was made for sizes
    that agree with it."""
    start = start + size if ix.hint(start) < 0 else start
    return 0 if ix.hint(start) < 0 else size if ix.hint(start) > ix.hint(size) else start


@view("reshape", "view", "_unsafe_view", "reshape", "_reshape_alias", "flatten.using_ints", "unflatten.int")
def reshape(ctx: Lowering, x: Value, *_: Any) -> Value:
    shape = ctx.spec().shape
    return ctx.view(x, shape, lambda c: reshape_coords(shape, x.shape, c))


@view("as_strided", "as_strided")
def as_strided(ctx: Lowering, x: Value, size: Any, stride: Any, offset: int | None = None) -> Value:
    """On a value that is its whole contiguous buffer: the flat position is then the memory position."""
    b = ctx.buffers[x.buffer]
    flat = ix.linear(x.map, b.stride) if x.map is not None else None
    if b.kind == "input" or flat is not None or b.stride != contiguous_stride(b.shape):
        raise NoRule("as_strided of a view or an input")
    shape = ctx.spec().shape
    sizes = {f"d{i}": s for i, s in enumerate(shape)}
    return ctx.view(x, shape, lambda c: ix.delinear(ix.linear(c, stride, offset or 0), b.shape, sizes))


# ---- copies ----------------------------------------------------------------------------------------------------------
@view(
    "clone",
    "clone",
    "contiguous",
    "_to_copy",
    "to.dtype",
    "prims.convert_element_type.default",
    "lift_fresh_copy",
    "copy",
    "_conj_physical",
    "resolve_conj",
)
def to_copy(ctx: Lowering, x: Value, source: Any = None, **kw: Any) -> Value:
    """clone, _to_copy, copy: left out when dtype and strides are already right; explicit casts round."""
    target = str(ctx.node.target)
    if target.startswith("aten.copy."):
        x = source
    out = ctx.spec()
    dtype = ir_dtype(out)
    if x.dtype not in DTYPES:
        raise NoRule(f"copy of {x.dtype}")
    if x.dtype == dtype and x.shape == out.shape:
        b = ctx.buffers[x.buffer]
        flat = ctx.as_view(x) if x.map is None else None
        if flat is not None and tuple(b.stride) == tuple(out.stride) and x.buffer not in ctx.shared:
            return Value(x.buffer, x.shape, dtype, x.map, True)
        return ctx.map(lambda c: ctx.read(x, c, dtype))
    return ctx.map(lambda c: ctx.cast(ctx.read(x, c, x.dtype), dtype))


@view("flip", "flip")
def flip(ctx: Lowering, x: Value, dims: Any) -> Value:
    dims = {wrap_dim(d, len(x.shape)) for d in dims}
    return ctx.map(
        lambda c: ctx.load(x, tuple(x.shape[i] - 1 - v if i in dims and x.shape[i] != 1 else v for i, v in enumerate(c)))
    )


@view("roll", "roll")
def roll(ctx: Lowering, x: Value, shifts: Any, dims: Any = ()) -> Value:
    if not dims:  # as one row
        total = ix.size_of(math.prod(x.shape, start=ix.ONE))
        if total == 1:
            return ctx.map(lambda c: ctx.load(x, c))
        row = ctx.view(x, (total,), lambda c: reshape_coords((total,), x.shape, c))
        rolled = ctx.pointwise((total,), x.dtype, lambda c: rolled_at(ctx, row, c, 0, ix.mod(shifts[0], total, {})))
        spec = ctx.spec()
        out = ctx.view(rolled, x.shape, lambda c: reshape_coords(x.shape, (total,), c))
        same = tuple(spec.stride) == contiguous_stride(x.shape)
        return out if same else ctx.map(lambda c: ctx.load(out, c))
    shift: dict[int, int] = {}
    for s, d in zip(shifts, dims):
        d = wrap_dim(d, len(x.shape))
        shift[d] = shift.get(d, 0) + s
    shift = {d: s for d, s in shift.items() if x.shape[d] not in (0, 1)}
    last = len(x.shape) - 1 if len(x.shape) - 1 in shift else None

    def at(c: tuple) -> Expr:
        own = tuple(
            ix.mod(v + ix.mod(-shift[i], x.shape[i], {}), x.shape[i], ctx.sizes) if i in shift and i != last else v
            for i, v in enumerate(c)
        )
        return ctx.load(x, own) if last is None else rolled_at(ctx, x, own, last, ix.mod(shift[last], x.shape[last], {}))

    return ctx.map(at)


def rolled_at(ctx: Lowering, x: Value, c: tuple, dim: int, shift: ix.Index) -> Expr:
    """The element of x rolled by shift along a dim: one of two pieces, which walk memory."""
    first, size = ix.index(c[dim] - shift), x.shape[dim]
    here = within(ctx, first, 0, size)
    if here is None:
        return ctx.load(x, (*c[:dim], first, *c[dim + 1 :]))
    there, work = ctx.op("logical_not", here), acc_dtype(x.dtype)
    return ctx.op(
        "select",
        here,
        ctx.read(x, (*c[:dim], first, *c[dim + 1 :]), work, here),
        ctx.read(x, (*c[:dim], ix.index(first + size), *c[dim + 1 :]), work, there),
        dtype=work,
    )


@view("repeat", "repeat", "tile")
def repeat(ctx: Lowering, x: Value, repeats: Any) -> Value:
    def back(c: tuple) -> Expr:
        own = c[len(c) - len(x.shape) :]
        return ctx.load(x, tuple(ix.ZERO if s == 1 else ix.mod(v, s, ctx.sizes) for s, v in zip(x.shape, own)))

    return ctx.map(back)


def within(ctx: Lowering, v: ix.Index, low: Any, high: Any) -> Expr | None:
    """low <= v < high as a b8 expression; None where the range of v already says so."""
    tests = []
    v = ix.index(v)
    at = ctx.cons.index(v, ctx.where)
    if not ix.at_least(v, low, ctx.sizes):
        tests.append(ctx.op("ge", at, ctx.const(low, "i64")))
    if not ix.at_least(high - 1 - v, 0, ctx.sizes):
        tests.append(ctx.op("lt", at, ctx.const(high, "i64")))
    return both(ctx, *tests)


def both(ctx: Lowering, *tests: Expr | None) -> Expr | None:
    """The conjunction of b8 expressions; None is true."""
    out = None
    for t in tests:
        if t is not None:
            out = t if out is None else ctx.op("and", out, t)
    return out


@view("constant_pad", "constant_pad_nd")
def constant_pad(ctx: Lowering, x: Value, pad: Any, value: float = 0) -> Value:
    n, work = len(x.shape), acc_dtype(x.dtype)
    low = [0] * n
    for k in range(len(pad) // 2):
        low[n - 1 - k] = pad[2 * k]

    def at(c: tuple) -> Expr:
        own = tuple(v - low[i] for i, v in enumerate(c))
        mask = both(ctx, *(within(ctx, v, 0, s) for v, s in zip(own, x.shape)))
        e = ctx.read(x, own, work, mask)
        return e if mask is None else ctx.op("select", mask, e, ctx.const(value, work), dtype=work)

    return ctx.map(at)


PIECES = 16  # of a `cat` on the CPU; more are copied by torch, one after another


@view("cat", "cat", "concat", "concatenate")
def cat(ctx: Lowering, xs: Any, dim: int = 0) -> Value:
    out = ctx.spec()
    dtype = acc_dtype(ir_dtype(out))
    dim = wrap_dim(dim, len(out.shape))
    parts, start = [], 0
    for x in xs:
        if x.shape == (0,) and len(out.shape) != 1 or x.shape[dim] == 0:
            continue
        parts.append((x, start))
        start += x.shape[dim]
    if not parts:
        return ctx.map(lambda c: ctx.const(0, dtype))
    if len(parts) > PIECES and out.device.type == "cpu":
        raise NoRule("many pieces: each element would ask all of them")

    def at(c: tuple) -> Expr:
        value: Expr | None = None
        for x, start in reversed(parts):
            own = tuple(v - start if i == dim else v for i, v in enumerate(c))
            mask = within(ctx, own[dim], 0, x.shape[dim]) if len(parts) > 1 else None
            e = ctx.read(x, own, dtype, mask)
            test = within(ctx, c[dim], 0, start + x.shape[dim])
            value = e if value is None or test is None else ctx.op("select", test, e, value, dtype=dtype)
        assert value is not None  # there is a part
        return value

    return ctx.map(at)


@view("stack", "stack")
def stack(ctx: Lowering, xs: Any, dim: int = 0) -> Value:
    out = ctx.spec()
    dim = wrap_dim(dim, len(out.shape))
    shape = (*out.shape[:dim], 1, *out.shape[dim + 1 :])
    return cat(ctx, [ctx.view(x, shape, lambda c: c[:dim] + c[dim + 1 :]) for x in xs], dim)


# ---- made from nothing -----------------------------------------------------------------------------------------------


def _triangle(ctx: Lowering, x: Value, diagonal: int, upper: bool) -> Value:
    work = acc_dtype(x.dtype)

    def at(c: tuple) -> Expr:
        row, col = ctx.cons.index(c[-2] + diagonal), ctx.cons.index(c[-1])
        keep = ctx.op("ge" if upper else "le", col, row)
        return ctx.op("select", keep, ctx.read(x, c, work), ctx.const(0, work), dtype=work)

    return ctx.map(at)


@create("tril", "tril")
def tril(ctx: Lowering, x: Value, diagonal: int = 0) -> Value:
    return _triangle(ctx, x, diagonal, False)


@create("triu", "triu")
def triu(ctx: Lowering, x: Value, diagonal: int = 0) -> Value:
    return _triangle(ctx, x, diagonal, True)
