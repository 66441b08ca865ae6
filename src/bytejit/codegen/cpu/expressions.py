"""Expressions, indices, constants and reductions as C++ text."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.emit.index_text import IndexPrinter
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import Reduce
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import FLOATS, NARROW

# numbers that C++ has no plain literal for
LITERALS = {-(1 << 63): "(-9223372036854775807LL - 1)", (1 << 63) - 1: "9223372036854775807LL", -(1 << 31): "(-2147483647 - 1)"}


def constant(value: Any, dtype: str) -> str:
    """A constant of a dtype. An f32 is rounded here, once, as torch rounds a Python number."""
    if dtype == "b8":
        return "true" if value else "false"
    if dtype in FLOATS:
        value = float(value)
        if dtype != "f64" and math.isfinite(value):
            value = common.rounded(value)
        cast = {"f64": "(f64)", "f32": ""}.get(dtype, f"bj::to<{dtype}>")
        if math.isnan(value):
            text = "BJ_NAN"
        elif math.isinf(value):
            text = "BJ_INF" if value > 0 else "-BJ_INF"
        elif dtype == "f64":
            return f"({value!r})" if math.copysign(1, value) < 0 else repr(value)
        else:
            text = f"{value!r}f"
        return f"{cast}({text})" if cast or text[0] == "-" else text
    value = int(value)
    if dtype == "i64":
        return LITERALS[value] if value == -(1 << 63) else f"({value}LL)" if value < 0 else f"{value}LL"
    if dtype in ("i8", "i16", "u8"):  # C++ deduces a function's type from its operands
        return f"({dtype}){value}" if value >= 0 else f"({dtype})({value})"
    return LITERALS[value] if value == -(1 << 31) else f"({value})" if value < 0 else str(value)


#: ops whose result is one of their operands, but for its sign
CHOICES = frozenset({"abs", "neg", "maximum", "minimum", "fmax", "fmin", "select"})


#: ops that take a float as it is, but for its sign -> the function of numbers of 16 bits (kernels/prelude/base.h)
MOVED = {"abs": "abs", "neg": "negative", "select": "choose"}


def is_exact(value: Any, dtype: str) -> bool:
    """Whether a constant is surely a number of bfloat16 or float16."""
    if dtype == "f16":
        try:
            return struct.unpack("e", struct.pack("e", float(value)))[0] == value
        except OverflowError:
            return False
    return not struct.unpack("I", struct.pack("f", common.rounded(value)))[0] & 0xFFFF


def is_bf16(e: Expr) -> bool:
    """Whether an f32 is surely a number of bfloat16, or nan: its conversion then needs no rounding."""
    sure: set[int] = set()
    for x in walk((e,)):
        if x.kind == "const":
            exact = x.dtype == "f32" and is_exact(x.attr, "bf16")
        elif x.name == "to":
            exact = x.args[0].dtype in ("bf16", "b8", "u8", "i8")
        else:
            values = x.args[1:] if x.name == "select" else x.args
            exact = x.kind == "op" and x.name in CHOICES and all(id(a) in sure for a in values)
        if exact:
            sure.add(id(x))
    return id(e) in sure


def far_text(e: Expr, table: OpTable) -> tuple[str, str] | None:
    """`Op.far` of an expression, for its dtype; None where its text is right for all operands."""
    return table.by_name[e.name].far_text(e.dtype) if e.kind == "op" else None


class IndexText(IndexPrinter):
    """Indices as i64 expressions; axes are variables of their own names. tables: atoms that are read from tables -> text."""

    def __init__(self, sizes: Mapping[str, Any], value: Callable[[Expr], str]) -> None:
        super().__init__(sizes, str, value)
        self.tables: Mapping[ix.Atom, str] = {}

    def atom(self, atom: ix.Atom) -> str:
        return self.tables.get(atom) or super().atom(atom)

    def number(self, n: int) -> str:
        return f"{n}LL" if abs(n) >= 1 << 31 else str(n)

    def factor(self, n: int) -> str:
        return f"{n}LL"

    def division(self, div: bool, x: ix.Index, d: Any) -> str:
        """Floor division or remainder. In unsigned 32-bit arithmetic where both operands fit: the compiler turns that into
        multiplications, which are vectorized."""
        sign = "/" if div else "%"
        low, high = ix.bounds(x, self.sizes)
        if low >= 0 and high < 1 << 32 and isinstance(d, int):
            return f"(i64)((u32)({self(x)}) {sign} {d}u)"
        if low >= 0:
            return f"(({self(x)}) {sign} ({self(d)}))"
        return f"bj::floor_{'div' if div else 'mod'}<i64>({self(x)}, {self(d)})"


class ExprText:
    """Prints one expression. names: id of an expression -> its text. element(buffer, offset): an element of memory. For
    conditions that all lanes share (`NestPrinter.shared_conditions`): rows: id of a masked load -> the element that it reads;
    choices: id of a select -> the local that holds its condition as bits. For rows of float16 (`NestPrinter.read_halves`) rows:
    id of a load or store -> the element of an f32 array that takes its place; widened: ids of these loads. steady: id of a masked
    load -> the local that holds what all lanes read. last: in a step whose last lanes have no element (`LaneLoops`) the text of
    whether a lane has one."""

    def __init__(self, table: OpTable, names: dict[int, str], index: IndexText, element: Any) -> None:
        self.table, self.names, self.index, self.element = table, names, index, element
        self.rows: dict[int, str] = {}
        self.choices: dict[int, str] = {}
        self.steady: dict[int, str] = {}
        self.widened: set[int] = set()
        self.last = ""

    def forget(self) -> None:
        """A nest begins: what other nests declared for their lanes is out of scope, also for expressions that both have."""
        self.rows.clear()
        self.choices.clear()
        self.steady.clear()
        self.widened.clear()

    def inline(self, e: Expr) -> str | None:
        """The text of a constant or index, which needs no statement of its own; None for other expressions."""
        if e.kind == "const":
            return constant(e.attr, e.dtype)
        if e.kind == "index":
            return f"({self.index(e.attr)})"
        return None

    def short(self, e: Expr) -> bool:
        """Whether an integer is an index known to fit 32 bits, which vector units can convert to float."""
        if e.kind != "index":
            return False
        low, high = ix.bounds(ix.index(e.attr), self.index.sizes)
        return -(1 << 31) <= low <= high < 1 << 31

    def read(self, e: Expr) -> str:
        """The element of a load, whatever its mask says."""
        text = self.rows.get(id(e)) or self.element(e.name, e.attr[0])
        return f"bj::truth(&{text})" if e.dtype == "b8" else text

    def is_moved(self, e: Expr, dtype: str) -> bool:
        """Whether an f32 is surely one of some numbers of a dtype of 16 bits, perhaps with another sign. Which one is the same in
        all lanes: conditions on elements of 4 bytes cost more for elements of 2 than conversions."""
        if e.kind == "const":
            return e.dtype == "f32" and is_exact(e.attr, dtype)
        if e.kind != "op" or e.dtype != "f32":
            return False
        if e.name == "to":
            return e.args[0].dtype == dtype and id(e.args[0]) not in self.widened
        if e.name == "select" and id(e) not in self.choices:
            return False
        return e.name in MOVED and all(self.is_moved(a, dtype) for a in (e.args[1:] if e.name == "select" else e.args))

    def moved(self, e: Expr, dtype: str) -> str:
        """The text of such an f32 as a number of 16 bits: nothing is rounded."""
        if e.kind == "const":
            return constant(e.attr, dtype)
        if e.name == "to":
            return self.names[id(e.args[0])]
        args = [self.moved(a, dtype) for a in (e.args[1:] if e.name == "select" else e.args)]
        first = [self.choices[id(e)]] if e.name == "select" else []
        return f"bj::{MOVED[e.name]}({', '.join(first + args)})"

    def __call__(self, e: Expr, far: bool = False, err: str = "&fault") -> str:
        """The right side of a statement. far: for all operands (not vectorized: `Op.far`). err: where an error code goes."""
        if e.kind == "load":
            text = self.steady.get(id(e)) or self.read(e)
            masks = [self.names[id(e.mask)]] if e.mask is not None and id(e) not in self.rows else []
            masks += [self.last] if self.last and id(e) not in self.steady else []
            if masks:
                zero = f"bj::to<{e.dtype}>(0.0f)" if e.dtype in NARROW else f"({e.dtype})0"
                return f"{' & '.join(masks)} ? {text} : {zero}"
            return text
        args = [self.names[id(a)] for a in e.args]
        if id(e) in self.choices:
            return f"bj::choose({self.choices[id(e)]}, {args[1]}, {args[2]})"
        if far and (texts := far_text(e, self.table)):
            return texts[1].format(*args, err=err)
        if e.name in ("to", "narrow") and e.dtype in NARROW and self.is_moved(e.args[0], e.dtype):
            return self.moved(e.args[0], e.dtype)
        if e.name in ("to", "narrow") and e.dtype == "bf16" and e.args[0].dtype == "f32" and is_bf16(e.args[0]):
            return f"bj::cut({args[0]})"
        if e.name == "to" and e.dtype in FLOATS and self.short(e.args[0]):
            args = [f"(i32){args[0]}"]
        first = e.args[0].dtype if e.args else e.dtype
        return common.row_text(e, self.table, "cpp").format(*args, T=e.dtype, A=first, attr=e.attr, err=err)


def identity(r: Reduce) -> str:
    """Returns the text of the value that a reduction starts from."""
    value, dtype = common.identity(r), common.value_dtype(r)
    if dtype == "b8":
        return "true" if value else "false"
    if dtype in FLOATS and math.isinf(value):
        return f"({dtype}){'-' if value < 0 else ''}BJ_INF"
    return f"({dtype}){LITERALS.get(value, value)}"


def combine(r: Reduce, into: str, value: str) -> str:
    """The accumulator `into` after `value` was added to it; not for argmax, argmin."""
    b8 = r.dtype == "b8"
    if r.running and r.kind in ("amax", "amin"):  # of equal elements the later one, as in eager: one comparison an element
        sign = ">=" if r.kind == "amax" else "<="
        return f"({value} {sign} {into}) | ({value} != {value}) ? {value} : {into}"
    return {
        "sum": f"{into} | {value}" if b8 else f"{into} + {value}",
        "prod": f"{into} & {value}" if b8 else f"{into} * {value}",
        "amax": f"bj::maximum<{r.dtype}>({into}, {value})",
        "amin": f"bj::minimum<{r.dtype}>({into}, {value})",
        "logsum": f"bj::logsum<{'f64' if r.dtype == 'f32' else r.dtype}>({into}, {value})",  # a scan: see `accumulator`
        "any": f"{into} | ({value} != 0)",
        "all": f"{into} & ({value} != 0)",
    }[r.kind]
