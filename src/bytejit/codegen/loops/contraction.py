"""A product and a sum within one row are rounded once on a GPU.

So are those in eager's kernels, and what `grid_sample` and resizing make of a coordinate jumps. A product that another row makes
is read from memory while a row is lowered: it is rounded.
"""

from __future__ import annotations

from bytejit.common.dtypes import FLOATS

from .expr import Cons, Expr


def is_product(e: Expr) -> bool:
    return e.kind == "op" and e.name == "mul"


def is_sum_of_product(e: Expr) -> bool:
    return e.kind == "op" and e.name in ("add", "sub") and e.dtype in FLOATS and any(map(is_product, e.args))


def contracted(cons: Cons, e: Expr) -> Expr:
    """a * b + c, a * b - c or c - a * b as one `fma`."""
    left, right = e.args

    def signed(x: Expr) -> Expr:
        return cons.op("neg", (x,), e.dtype, e.where) if e.name == "sub" else x

    if is_product(left):
        return cons.op("fma", (*left.args, signed(right)), e.dtype, e.where)
    a, b = right.args
    return cons.op("fma", (signed(a), b, left), e.dtype, e.where)
