"""Constants, indices, operations and reductions as Triton text."""

from __future__ import annotations

import math
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.emit.index_text import IndexPrinter
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Reduce
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import DTYPES, FLOATS, INTS, NARROW, acc_dtype

from .decided import decided


def tl_type(dtype: str) -> str:
    """`tl.float32` of `f32`."""
    return f"tl.{DTYPES[dtype].triton}"


def number(value: Any, dtype: str) -> str:
    """The text of a Python number in Triton. An f32 is rounded here, once, as torch rounds a Python number."""
    if dtype == "b8":
        return "True" if value else "False"
    if dtype not in FLOATS:
        return str(int(value) & 255 if dtype == "u8" else int(value))
    value = float(value)
    if dtype != "f64" and math.isfinite(value):
        value = common.rounded(value)
    if math.isfinite(value):
        return repr(value)
    return 'float("nan")' if math.isnan(value) else 'float("inf")' if value > 0 else 'float("-inf")'


def constant(value: Any, dtype: str, shape: str = "()") -> str:
    """A constant with its dtype: a bare number would take the dtype of the other operand."""
    work = acc_dtype(dtype)
    if work in ("f32", "f64") and value == 0 and math.copysign(1, value) < 0:  # tl.full(-0.0) is +0.0
        bits, whole = (31, "tl.int32") if work == "f32" else (63, "tl.int64")
        text = f"tl.full({shape}, {-(1 << bits)}, {whole}).to({tl_type(work)}, bitcast=True)"
    else:
        text = f"tl.full({shape}, {number(value, work)}, {tl_type(work)})"
    return f"{text}.to({tl_type(dtype)})" if dtype in NARROW else text


class IndexText(IndexPrinter):
    """Indices in Triton, which divides towards zero."""

    def division(self, div: bool, x: ix.Index, d: Any) -> str:
        """Floor division or remainder; the operator where nothing is negative."""
        low, _ = ix.bounds(x, self.sizes)
        if low >= 0:
            return f"(({self(x)}) {'//' if div else '%'} {self(d) if isinstance(d, int) else f'({self(d)})'})"
        text = self(x) if x.terms else f"tl.full((), {x.const}, tl.int64)"  # bj_floordiv and bj_mod need an operand with a dtype
        return f"{'bj_floordiv' if div else 'bj_remainder'}({text}, {self(d)})"


def operation(e: Expr, args: list[str], rows: OpTable, err: str, rough: bool = False) -> str:
    """The text of an op: its row's Triton text with the operands; the rough one where it has one and may be rough."""
    first = e.args[0].dtype if e.args else e.dtype
    if e.name == "to" and first in FLOATS and e.dtype in INTS and e.dtype != "b8":
        return whole_number(args[0], e.dtype)
    text = rows.by_name[e.name].rough if rough and e.dtype == "f32" else None
    text = (text or common.row_text(e, rows, "triton")).format(*args, T=tl_type(e.dtype), A=tl_type(first), attr=e.attr, err=err)
    if not decided(e):
        return text
    return " & ".join([f"({text})", *(f"bj_no_nan({name})" for a, name in zip(e.args, args) if a.kind != "const")])


def whole_number(x: str, dtype: str) -> str:
    """The text of a float as an integer: to 8 bits by way of more, as torch; what is out of range wraps there."""
    wide = "i64" if dtype in ("i64", "u8") else "i32"
    text = f"bj_to_{wide}({x})"
    return text if dtype == wide else f"{text}.to({tl_type(dtype)})"


# ---- reductions ---------------------------------------------------------------------------------------------------
def combine(r: Reduce, a: str, b: str) -> str:
    """The text that combines two partial results; not for argmax, argmin."""
    b8 = r.dtype == "b8"
    return {
        "sum": f"{a} | {b}" if b8 else f"{a} + {b}",
        "prod": f"{a} & {b}" if b8 else f"{a} * {b}",
        "amax": f"bj_maximum({a}, {b})",
        "amin": f"bj_minimum({a}, {b})",
        "logsum": f"bj_logsum_of({a}, {b})",
        "any": f"{a} | {b}",
        "all": f"{a} & {b}",
    }[r.kind]


def fold(r: Reduce, tile: str, axis: int) -> str:
    """The text that combines a tile's partial results to one for each row; not for argmax, argmin."""
    kind = r.kind
    if r.dtype == "b8":
        kind = {"sum": "any", "prod": "all", "amax": "any", "amin": "all"}.get(kind, kind)
    return wrapped(r, f"bj_{kind}({tile}, {axis})")


def scan(r: Reduce, tile: str, axis: int) -> str:
    """The text of a tile's running results."""
    return wrapped(r, f"bj_cum{r.kind}({tile}, {axis})")


def wrapped(r: Reduce, text: str) -> str:
    """The result in its own dtype: Triton's sums of integers of 8 and 16 bits return 32, which do not wrap around."""
    return f"{text}.to({tl_type(r.dtype)})" if r.kind == "sum" and r.dtype in ("i8", "u8", "i16") else text
