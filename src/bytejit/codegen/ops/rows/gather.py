"""Rows that read at indices from memory: embedding, gather, indexing, searchsorted. Indices are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.codegen.ops.table import Lower, lowers
from bytejit.common.spec import wrap_dim

from .composite import F

INDICES = ("i64", "i32")


def row(name: str, *overloads: str, **fields: Any) -> Callable[[Lower], Lower]:
    """Declares a row of kind composite whose lower function is decorated."""
    return lowers("composite", name, overloads, **fields)


# ---- indices from memory ---------------------------------------------------------------------------------------------
@row("embedding", "embedding", refuses=True)
def embedding(ctx: Lowering, weight: Value, at: Value, *_: Any) -> Value:
    n = len(at.shape)

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.read(at, c[:n]), weight.shape[0], "embedding", wrap=False)
        return ctx.read(weight, (i, c[n]))

    return ctx.map(element)


@row("one_hot", "one_hot", refuses=True)
def one_hot(ctx: Lowering, x: Value, num_classes: Any = -1) -> Value:
    n = len(x.shape)

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.read(x, c[:n]), ctx.spec().shape[n], "one_hot", wrap=False)
        return ctx.op("eq", ctx.cons.index(i), ctx.cons.index(c[n]))

    return ctx.map(element)


@row("gather", "gather", refuses=True)
def gather(ctx: Lowering, x: Value, dim: int, at: Value, *, sparse_grad: bool = False) -> Value:
    dim = wrap_dim(dim, len(x.shape))
    if not x.shape or not at.shape:
        raise NoRule("gather of 0-dim tensors")

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.load(at, c), x.shape[dim], "gather", wrap=False)
        return ctx.read(x, (*c[:dim], i, *c[dim + 1 :]))

    return ctx.map(element)


@row("index_select", "index_select", refuses=True)
def index_select(ctx: Lowering, x: Value, dim: int, at: Value) -> Value:
    dim = wrap_dim(dim, len(x.shape))
    if not x.shape or not at.shape:
        raise NoRule("index_select of 0-dim tensors")

    def element(c: tuple) -> Expr:
        i = ctx.bound(ctx.load(at, (c[dim],)), x.shape[dim], "index_select", wrap=False)
        return ctx.read(x, (*c[:dim], i, *c[dim + 1 :]))

    return ctx.map(element)


def broadcast(*shapes: tuple) -> tuple:
    """The shape that shapes broadcast to; a symbolic size counts as other than 1."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*full))


def numbers(*sizes: Any) -> None:
    """Raises: NoRule when a size is known only at the call."""
    if not all(isinstance(s, int) for s in sizes):
        raise NoRule("a symbolic size")


@row("index", "index.Tensor", "_unsafe_index.Tensor", refuses=True)
def index_tensor(ctx: Lowering, x: Value, indices: Any) -> Value:
    """x[i, None, j]: whole-number index tensors, broadcast; where they are apart, their dims come first."""
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].dtype not in INDICES for d in used) or any(x.shape[d] == 0 for d in used):
        raise NoRule("indexing by a mask")
    shape = broadcast(*(indices[d].shape for d in used))
    first = used[0] if used == list(range(used[0], used[0] + len(used))) else 0
    k = len(shape)

    def element(c: tuple) -> Expr:
        at, rest = c[first : first + k], iter((*c[:first], *c[first + k :]))
        own = []
        for d in range(len(x.shape)):
            own.append(ctx.bound(ctx.read(indices[d], at, indices[d].dtype), x.shape[d], "index") if d in used else next(rest))
        return ctx.read(x, tuple(own))

    return ctx.map(element)


# ---- places in sorted rows ----------------------------------------------------------------------------------------
MOST = 1 << 16  # numbers of a sorted row up to which the steps to a place in it are unrolled


@row("searchsorted", "searchsorted.Tensor", refuses=True)
def searchsorted(
    ctx: Lowering,
    rows: Value,
    x: Value,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The place of x in a sorted row (right: after its like): torch's own halving, so that a nan in the row misleads both."""
    n, lead = rows.shape[-1] if rows.shape else 0, rows.shape[:-1]
    right = side == "right" if side is not None else right
    if sorter is not None or rows.dtype != x.dtype or lead and lead != x.shape[:-1]:
        raise NoRule("a sorted row in another order")
    if not isinstance(n, int) or not 0 < n <= MOST:
        raise NoRule("a sorted row of a size known at the call")

    def at(c: tuple) -> Expr:
        v, low, high = F(ctx, ctx.read(x, c)), F(ctx, ctx.const(0, "i64")), F(ctx, ctx.const(n, "i64"))
        own = c[:-1] if lead else ()
        for _ in range(n.bit_length()):
            middle = low + (high - low).do("shr", 1)
            there = middle.do("minimum", n - 1)
            number = F(ctx, ctx.read(rows, (*own, ix.index(ix.Val(there.e, n)))))
            later = number.do("gt" if right else "ge", v).do("or", low.do("ge", high))
            low, high = later.pick(low, middle + 1), later.pick(middle, high)
        return low.e

    return ctx.map(at)


@row("bucketize", "bucketize.Tensor")
def bucketize(ctx: Lowering, x: Value, rows: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(ctx, rows, x, out_int32, right)
