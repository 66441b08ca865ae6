"""Rows that write to places read from memory: scatter, index_put, index_copy, index_add, index_fill, and slices of tensors that
the program writes into.

    update       one kernel over the elements that are written; the others stay where they are (`Store.over`, passes/inplace.py)
    select       few places: at each point of the result, is it one of them. Fuses with its neighbours

Where several elements go to one place the last one wins on the CPU, any of them on a GPU, as in eager. What adds up does so in
order on the CPU, by atomic additions on a GPU where eager does so too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import LoopNest, Store
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.codegen.ops.writes import goes_back
from bytejit.common.dtypes import acc_dtype
from bytejit.common.spec import wrap_dim

from .composite import F, check_holds
from .gather import broadcast, row
from .view import both, clamped, view, within

AREA = 4  # a write into less than this part (1 / AREA) of a tensor writes its elements in place; else the whole tensor is made
FEW = 4  # places per row, up to which a scatter compares each point with all of them
ADDED = ("f32", "f64", "i32", "i64")
INDICES = ("i64", "i32")


# ---- updates ------------------------------------------------------------------------------------------------------
def update(ctx: Lowering, x: Value, shape: tuple, at: Callable[[tuple], tuple[tuple, Expr]], mode: str = "set") -> Value:
    """x with some elements written: at(coords over `shape`) is (coordinates in x, value). In the memory of x where the program
    writes into that."""
    b, spec = ctx.buffers[x.buffer], ctx.spec()
    if 0 in x.shape:
        raise NoRule("nothing to write to")
    if not (ctx.node in ctx.written and (x.map is None or goes_back(ctx.node))):
        if x.map is not None or b.stride != tuple(spec.stride) or b.shape != x.shape or x.dtype != b.dtype:
            x = ctx.copy(x, spec.stride)
            b = ctx.buffers[x.buffer]
    out = ctx.buffer(b.shape, b.dtype, b.stride)
    axes, coords = ctx.axes(shape)
    own, value = at(coords)
    if x.map is not None:
        own = tuple(ix.substitute(m, {f"d{i}": c for i, c in enumerate(own)}, ctx.sizes) for m in x.map)
    own = tuple(map(ix.index, own))
    apart = {terms[0][0] for c in own if (terms := ix.axis_terms(c)) and len(terms) == 1}
    axes = tuple(a if a.name in apart else replace(a, kind="scan") for a in axes)  # those along which places may meet
    ctx.kernel(
        axes, (LoopNest((), (Store(out.name, own, ctx.finish(value, b.dtype), mode=mode, over=b.name, where=ctx.where),)),)
    )
    ctx.lineage[out.name, x.map] = b.name
    return Value(out.name, x.shape, x.dtype, x.map)


def added(ctx: Lowering, x: Value, sorts: bool = False) -> None:
    """Raises: NoRule where an addition cannot be atomic, or eager's is in an order that ours is not. sorts: eager's on a GPU."""
    if x.dtype not in ADDED:
        raise NoRule(f"adding up {x.dtype}")
    if ctx.home != "cpu" and x.dtype in ("f32", "f64") and (sorts or torch.are_deterministic_algorithms_enabled()):
        raise NoRule("additions in a fixed order")


def indices_of(ctx: Lowering, *at: Value) -> None:
    """Raises: NoRule where index tensors are none of whole numbers, or what wins on a GPU must be fixed."""
    if any(i.dtype not in INDICES for i in at) or ctx.home != "cpu" and torch.are_deterministic_algorithms_enabled():
        raise NoRule("indexing by a mask, or in a fixed order")


# ---- index_put ----------------------------------------------------------------------------------------------------
@row("index_put", "index_put", "_unsafe_index_put", refuses=True)
def index_put(ctx: Lowering, x: Value, indices: Any, values: Value, accumulate: bool = False) -> Value:
    """x[i, :, j] = values, or += of them: whole numbers, broadcast; a mask where a value for each place is not wanted."""
    used = [d for d, i in enumerate(indices) if i is not None]
    if values.dtype != x.dtype:
        raise NoRule("values of another dtype")
    if any(indices[d].dtype == "b8" for d in used):
        return put_by_mask(ctx, x, indices, values, accumulate)
    indices_of(ctx, *(indices[d] for d in used))
    if accumulate:
        added(ctx, x, sorts=True)
    shape = broadcast(*(indices[d].shape for d in used))
    first, k = used[0] if used == list(range(used[0], used[0] + len(used))) else 0, len(shape)
    rest = [n for d, n in enumerate(x.shape) if d not in used]
    whole = (*rest[:first], *shape, *rest[first:])
    if len(values.shape) > len(whole):
        raise NoRule("values of more dims")

    def at(c: tuple) -> tuple[tuple, Expr]:
        here, left = c[first : first + k], iter((*c[:first], *c[first + k :]))
        own = tuple(
            ctx.bound(ctx.read(indices[d], here, indices[d].dtype), n, "index_put") if d in used else next(left)
            for d, n in enumerate(x.shape)
        )
        return own, ctx.read(values, c)

    return update(ctx, x, whole, at, "add" if accumulate else "set")


def put_by_mask(ctx: Lowering, x: Value, indices: Any, values: Value, accumulate: bool) -> Value:
    """x with `values` where a mask is True. The shape of `values` must not depend on how many places that are. Unlike
    torch's own operator it does not wait for a GPU."""
    used = [d for d, i in enumerate(indices) if i is not None]
    first, mask = used[0], indices[used[0]]
    here = slice(first, first + len(mask.shape))
    if len(used) != 1 or mask.dtype != "b8" or mask.shape != x.shape[here] or x.dtype == "b8" and accumulate:
        raise NoRule("indexing by other than one mask")
    given, rest = values.shape, x.shape[here.stop :]
    fits = not first and len(given) <= len(rest) and all(n == 1 or n == m for n, m in zip(given, rest[len(rest) - len(given) :]))
    if not fits and not all(n == 1 for n in given):
        raise NoRule("a value for each place")

    def element(c: tuple) -> Expr:
        own = c[len(c) - len(given) :] if len(given) <= len(c) else given
        at = tuple(ix.index(0) if n == 1 else v for n, v in zip(given, own))
        old, new = ctx.read(x, c, acc_dtype(x.dtype)), ctx.read(values, at, acc_dtype(x.dtype))
        new = (F(ctx, old) + F(ctx, new)).e if accumulate else new
        return ctx.op("select", ctx.read(mask, tuple(c[here]), "b8"), new, old, dtype=acc_dtype(x.dtype))

    return ctx.map(element)


# ---- one index tensor along a dim ---------------------------------------------------------------------------------
def _along(
    ctx: Lowering, x: Value, dim: int, at: Value, value: Callable[[tuple], Expr], mode: str, label: str, turn: bool = False
) -> Value:
    """Rows of x at the places of a tensor of one dim (or none)."""
    indices_of(ctx, at)
    if not x.shape:
        raise NoRule(f"{label} of a 0-dim tensor")
    dim = wrap_dim(dim, len(x.shape))
    shape = (*x.shape[:dim], at.shape[0] if at.shape else 1, *x.shape[dim + 1 :])

    def place(c: tuple) -> tuple[tuple, Expr]:
        i = ctx.bound(ctx.load(at, (c[dim],) if at.shape else ()), x.shape[dim], label, wrap=turn)
        return (*c[:dim], i, *c[dim + 1 :]), value(c)

    return update(ctx, x, shape, place, mode)


@row("index_copy", "index_copy", refuses=True)
def index_copy(ctx: Lowering, x: Value, dim: int, at: Value, source: Value) -> Value:
    if len(source.shape) != len(x.shape):
        raise NoRule("index_copy of fewer dims")
    return _along(ctx, x, dim, at, lambda c: ctx.read(source, c), "set", "index_copy")


@row("index_add", "index_add", refuses=True)
def index_add(ctx: Lowering, x: Value, dim: int, at: Value, source: Value, *, alpha: Any = 1) -> Value:
    added(ctx, x)
    if len(source.shape) != len(x.shape) or source.dtype != x.dtype:
        raise NoRule("index_add of fewer dims")

    def value(c: tuple) -> Expr:
        e = F(ctx, ctx.read(source, c))
        return (e * alpha if alpha != 1 else e).e

    return _along(ctx, x, dim, at, value, "add", "index_add")


@row("index_fill", "index_fill.int_Scalar", "index_fill.int_Tensor", refuses=True)
def index_fill(ctx: Lowering, x: Value, dim: int, at: Value, value: Any) -> Value:
    check_holds(x, value)
    work = acc_dtype(x.dtype)
    return _along(ctx, x, dim, at, lambda c: ctx.read(value, (), work), "set", "index_fill", turn=True)


# ---- scatter ------------------------------------------------------------------------------------------------------
def _scattered(ctx: Lowering, x: Value, dim: int, at: Value, value: Callable[..., Expr], mode: str) -> Value:
    """x, with value(c) written at c; along dim the place is at[c]."""
    indices_of(ctx, at)
    if not x.shape or len(at.shape) != len(x.shape):
        raise NoRule("scatter of 0-dim tensors, or of nothing")
    dim = wrap_dim(dim, len(x.shape))
    n = at.shape[dim]
    few = isinstance(n, int) and n <= FEW and x.shape[dim] != 1  # where only one place is, none is asked for
    if mode == "set" and few and ctx.node not in ctx.written and 0 not in at.shape:
        return _asked(ctx, x, dim, at, value)

    def place(c: tuple) -> tuple[tuple, Expr]:
        i = ctx.bound(ctx.load(at, c), x.shape[dim], "scatter", wrap=False)
        return (*c[:dim], i, *c[dim + 1 :]), value(c)

    return update(ctx, x, at.shape, place, mode)


def _asked(ctx: Lowering, x: Value, dim: int, at: Value, value: Callable[..., Expr]) -> Value:
    """The same, at each point of x: the last of few places that is this one."""
    work = acc_dtype(x.dtype)

    def element(c: tuple) -> Expr:
        e = ctx.read(x, c, work)
        inside = both(ctx, *(within(ctx, v, 0, n) for d, (v, n) in enumerate(zip(c, at.shape)) if d != dim))
        for k in range(at.shape[dim]):
            own = (*c[:dim], ix.index(k), *c[dim + 1 :])
            i = ctx.bound(ctx.load(at, own, inside), x.shape[dim], "scatter", wrap=False)
            hit = both(ctx, inside, ctx.op("eq", ctx.cons.index(ix.index(c[dim])), ctx.cons.index(i)))
            assert hit is not None
            e = ctx.op("select", hit, value(own, inside), e, dtype=work)
        return e

    return ctx.map(element)


@row("scatter_src", "scatter.src", refuses=True)
def scatter_src(ctx: Lowering, x: Value, dim: int, at: Value, src: Value) -> Value:
    if src.dtype != x.dtype:
        raise NoRule("scatter of another dtype")
    return _scattered(ctx, x, dim, at, lambda c, mask=None: ctx.cast(ctx.load(src, c, mask), acc_dtype(x.dtype)), "set")


@row("scatter_value", "scatter.value", refuses=True)
def scatter_value(ctx: Lowering, x: Value, dim: int, at: Value, value: Any) -> Value:
    return _scattered(ctx, x, dim, at, lambda c, mask=None: ctx.const(value, acc_dtype(x.dtype)), "set")


@row("scatter_add", "scatter_add", refuses=True)
def scatter_add(ctx: Lowering, x: Value, dim: int, at: Value, src: Value) -> Value:
    added(ctx, x)
    return _scattered(ctx, x, dim, at, lambda c: ctx.load(src, c), "add")


@row("scatter_reduce", "scatter_reduce.two", refuses=True)
def scatter_reduce(ctx: Lowering, x: Value, dim: int, at: Value, src: Value, reduce: str, *, include_self: bool = True) -> Value:
    if reduce != "sum" or not include_self:
        raise NoRule("another reduction than sums")
    return scatter_add(ctx, x, dim, at, src)


# ---- windows ------------------------------------------------------------------------------------------------------
def _window(
    ctx: Lowering,
    x: Value,
    src: Value,
    into: Callable[[tuple], tuple],
    own: Callable[[tuple], tuple],
    mask: Callable[[tuple], Expr | None],
) -> Value:
    """Write src into a window of x; point c of src goes to into(c) of x. There are three ways. If src is that window of x
    already, written in place, nothing is computed. If the window is a small part of x, a kernel over the points of src
    writes it. Else a kernel over the points of x reads src at own(coords) where mask(coords) holds, and x elsewhere."""
    there = ctx.view(replace(x, buffer=src.buffer), src.shape, into)
    before = src.buffer
    while (before, src.map) in ctx.lineage:
        before = ctx.lineage[before, src.map]
    if src.map is not None and src.map == there.map and before == x.buffer != src.buffer:
        ctx.lineage[src.buffer, x.map] = x.buffer
        return replace(x, buffer=src.buffer)
    whole = ctx.buffers[x.buffer].shape if x.map is not None and goes_back(ctx.node) else x.shape
    if ctx.node in ctx.written and AREA * points(src.shape) <= points(whole):
        return update(ctx, x, src.shape, lambda c: (into(c), ctx.read(src, c)))
    work = acc_dtype(x.dtype)

    def at(c: tuple) -> Expr:
        m = mask(c)
        e = ctx.read(src, own(c), work, m)
        return e if m is None else ctx.op("select", m, e, ctx.read(x, c, work), dtype=work)

    return ctx.map(at)


def points(shape: tuple) -> int:
    """Elements, by the hints."""
    return math.prod(map(ix.hint, shape))


@view("slice_scatter", "slice_scatter")
def slice_scatter(ctx: Lowering, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    dim = wrap_dim(dim, len(x.shape))
    start = clamped(0 if start is None else start, x.shape[dim])
    size, count = x.shape[dim], src.shape[dim]
    if count == 0:
        return ctx.map(lambda c: ctx.load(x, c))

    def mask(c: tuple) -> Expr | None:
        inside = within(ctx, c[dim], start, start + (count - 1) * step + 1)
        if step == 1:
            return inside
        rest = ix.mod(c[dim] - start + step * size, step, ctx.sizes)
        return both(ctx, inside, ctx.op("eq", ctx.cons.index(rest), ctx.const(0, "i64")))

    def own(c: tuple) -> tuple:
        at = c[dim] - start if step == 1 else ix.floordiv(c[dim] - start, step, ctx.sizes)
        return (*c[:dim], at, *c[dim + 1 :])

    return _window(ctx, x, src, lambda c: (*c[:dim], c[dim] * step + start, *c[dim + 1 :]), own, mask)


@view("select_scatter", "select_scatter")
def select_scatter(ctx: Lowering, x: Value, src: Value, dim: int, i: int) -> Value:
    dim = wrap_dim(dim, len(x.shape))
    i = i + x.shape[dim] if ix.hint(i) < 0 else i
    return _window(
        ctx,
        x,
        src,
        lambda c: (*c[:dim], ix.index(i), *c[dim:]),
        lambda c: c[:dim] + c[dim + 1 :],
        lambda c: None if x.shape[dim] == 1 else ctx.op("eq", ctx.cons.index(c[dim]), ctx.const(i, "i64")),
    )
