"""Rows of operators that compute each element by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real
from bytejit.common.dtypes import INDEX_DTYPES
from bytejit.common.spec import Spec

from .table import EVERY, FLOATS, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten
CHAINS = {  # of one input: ONNX nodes, one after the other; of ints the result is a float
    aten.exp: "Exp",
    aten.log: "Log",
    aten.sqrt: "Sqrt",
    aten.rsqrt: "Sqrt Reciprocal",
    aten.reciprocal: "Reciprocal",
    aten.sin: "Sin",
    aten.cos: "Cos",
    aten.tan: "Tan",
    aten.asin: "Asin",
    aten.acos: "Acos",
    aten.atan: "Atan",
    aten.sinh: "Sinh",
    aten.cosh: "Cosh",
    aten.tanh: "Tanh",
    aten.asinh: "Asinh",
    aten.acosh: "Acosh",
    aten.atanh: "Atanh",
    aten.erf: "Erf",
    aten.sigmoid: "Sigmoid",
}
SAME = {  # of one input, the result of its dtype
    aten.neg: "Neg",
    aten.abs: "Abs",
    aten.floor: "Floor",
    aten.ceil: "Ceil",
    aten.round: "Round",
}
COMPARISONS = {
    "eq": "Equal",
    "ne": "Equal Not",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


def common(*values: Any) -> torch.dtype:
    """The dtype in which torch computes a call with these tensors and numbers."""
    known = [_stand_in(v) for v in values]
    return torch.result_type(*known) if len(known) > 1 else known[0].dtype


def _stand_in(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty((1,) * len(value.shape), dtype=value.dtype, device="meta")
    return 1 if isinstance(value, Index) else 1.0 if isinstance(value, Real) else value


def _chain(kinds: str) -> Callable:
    return lambda w, out, x: w.apply(kinds, w.to(x, out.dtype))


for _op, _kinds in CHAINS.items():
    row(_op.default)(_chain(_kinds))
for _op, _kinds in SAME.items():
    row(_op.default, dtypes=FLOATS | INDEX_DTYPES if _kinds in ("Neg", "Abs") else FLOATS)(_chain(_kinds))


def _comparison(kinds: str) -> Callable:
    first, *rest = kinds.split()

    def write(w: ModelWriter, out: Spec, x: Tensor, other: Any) -> Tensor:
        dtype = common(x, other)
        if dtype is torch.bool and first != "Equal":
            dtype = torch.int32
        made = w.op(first, w.to(x, dtype), w.to(other, dtype), dtype=torch.bool)
        return w.apply(" ".join(rest), made)

    return write


for _name, _kinds in COMPARISONS.items():
    row(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_kinds))


# ---- arithmetic ----------------------------------------------------------------------------------------------------
def numeric(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, if there is arithmetic in it. Raises: Cannot."""
    if dtype is torch.bool:
        raise Cannot("it computes with bools")
    return dtype


def _scaled(w: ModelWriter, x: Any, alpha: Any, dtype: torch.dtype) -> Tensor:
    x = w.to(x, dtype)
    return x if alpha == 1 and not isinstance(alpha, (Index, Real)) else w.op("Mul", x, w.to(alpha, dtype))


@row(aten.add.Tensor, aten.add.Scalar)
def add(w: ModelWriter, out: Spec, x: Any, other: Any, alpha: Any = 1) -> Tensor:
    """x + alpha * other."""
    dtype = numeric(out.dtype)
    return w.op("Add", w.to(x, dtype), _scaled(w, other, alpha, dtype))


@row(aten.sub.Tensor, aten.sub.Scalar)
def sub(w: ModelWriter, out: Spec, x: Any, other: Any, alpha: Any = 1) -> Tensor:
    """x - alpha * other."""
    dtype = numeric(out.dtype)
    return w.op("Sub", w.to(x, dtype), _scaled(w, other, alpha, dtype))


@row(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(w: ModelWriter, out: Spec, x: Any, other: Any, alpha: Any = 1) -> Tensor:
    """other - alpha * x."""
    return sub(w, out, other, x, alpha)


@row(aten.mul.Tensor, aten.mul.Scalar)
def mul(w: ModelWriter, out: Spec, x: Any, other: Any) -> Tensor:
    """x * other; for bools: x and other."""
    if out.dtype is torch.bool:
        return w.op("And", w.to(x, torch.bool), w.to(other, torch.bool))
    return w.op("Mul", w.to(x, out.dtype), w.to(other, out.dtype))


@row(aten.div.Tensor, aten.div.Scalar)
def div(w: ModelWriter, out: Spec, x: Any, other: Any) -> Tensor:
    """x / other, a float."""
    return w.op("Div", w.to(x, out.dtype), w.to(other, out.dtype))


@row(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(w: ModelWriter, out: Spec, x: Any, other: Any, rounding_mode: str | None = None) -> Tensor:
    """x / other, rounded, of integers. Raises: Cannot for floats, which torch rounds in several steps."""
    if rounding_mode is None:
        return div(w, out, x, other)
    if rounding_mode == "trunc" and not out.dtype.is_floating_point:
        return w.op("Div", w.to(x, out.dtype), w.to(_divisor(other), out.dtype))
    if rounding_mode == "floor" and not out.dtype.is_floating_point:
        return floor_divide(w, out, x, other)
    raise Cannot("it is a rounded quotient of floats")


def _divisor(other: Any) -> Any:
    """An integer divisor. Raises: Cannot where it may be zero, for which torch raises."""
    if isinstance(other, int) and other != 0:
        return other
    raise Cannot("its integer divisor may be zero")


@row(aten.floor_divide.default)
def floor_divide(w: ModelWriter, out: Spec, x: Any, other: Any) -> Tensor:
    """The floor of x / other, of integers."""
    if out.dtype.is_floating_point:
        raise Cannot("it is a rounded quotient of floats")
    x, d = w.to(x, numeric(out.dtype)), w.to(_divisor(other), out.dtype)
    return w.op("Div", w.op("Sub", x, w.op("Mod", x, d)), d)  # Mod has the divisor's sign


@row(aten.remainder.Scalar)
def remainder(w: ModelWriter, out: Spec, x: Any, other: Any) -> Tensor:
    """The remainder with the divisor's sign, of integers."""
    if out.dtype.is_floating_point:
        raise Cannot("it is a remainder of floats")
    return w.op("Mod", w.to(x, numeric(out.dtype)), w.to(_divisor(other), out.dtype))


@row(aten.pow.Tensor_Scalar)
def pow_scalar(w: ModelWriter, out: Spec, x: Tensor, exponent: Any) -> Tensor:
    """A tensor to the power of a number. Frequent powers are written as torch computes them."""
    x = w.to(x, numeric(out.dtype))
    if exponent == 2:
        return w.op("Mul", x, x)
    if exponent == 3:
        return w.op("Mul", w.op("Mul", x, x), x)
    if not out.dtype.is_floating_point:
        raise Cannot("it is a power of integers")
    chains = {0.5: "Sqrt", -0.5: "Sqrt Reciprocal", -1: "Reciprocal"}
    if exponent in chains:
        return w.apply(chains[exponent], x)
    return w.op("Pow", x, exponent)


@row(aten.pow.Tensor_Tensor, dtypes=FLOATS)
def pow_tensor(w: ModelWriter, out: Spec, x: Tensor, exponent: Tensor) -> Tensor:
    """A tensor to the power of a tensor."""
    return w.op("Pow", w.to(x, out.dtype), w.to(exponent, out.dtype))


def either(w: ModelWriter, condition: Tensor, a: Any, b: Any, dtype: torch.dtype) -> Tensor:
    """`a` where the condition holds, else `b`."""
    return w.op("Where", w.to(condition, torch.bool), w.to(a, dtype), w.to(b, dtype), dtype=dtype)


@row(aten.maximum.default, dtypes=FLOATS | INDEX_DTYPES)
def maximum(w: ModelWriter, out: Spec, x: Tensor, y: Tensor) -> Tensor:
    """The larger element; nan where one of them is nan."""
    return w.op("Max", w.to(x, out.dtype), w.to(y, out.dtype))


@row(aten.minimum.default, dtypes=FLOATS | INDEX_DTYPES)
def minimum(w: ModelWriter, out: Spec, x: Tensor, y: Tensor) -> Tensor:
    """The smaller element; nan where one of them is nan."""
    return w.op("Min", w.to(x, out.dtype), w.to(y, out.dtype))


@row(aten.clamp.default, dtypes=FLOATS | INDEX_DTYPES)
def clamp(w: ModelWriter, out: Spec, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x, kept between two numbers."""
    x = w.to(x, out.dtype)
    x = x if min is None else w.op("Max", x, min)
    return x if max is None else w.op("Min", x, max)


@row(aten.clamp_min.default, dtypes=FLOATS | INDEX_DTYPES)
def clamp_min(w: ModelWriter, out: Spec, x: Tensor, min: Any) -> Tensor:
    """x, but not below a number."""
    return clamp(w, out, x, min)


@row(aten.clamp_max.default, dtypes=FLOATS | INDEX_DTYPES)
def clamp_max(w: ModelWriter, out: Spec, x: Tensor, max: Any) -> Tensor:
    """x, but not above a number."""
    return clamp(w, out, x, None, max)


@row(aten.sign.default, dtypes=FLOATS)
def sign(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """-1, 0 or 1. Torch's sign of nan is 0."""
    return either(w, w.op("IsNaN", x, dtype=torch.bool), 0, w.op("Sign", x), out.dtype)


@row(aten.trunc.default, dtypes=FLOATS)
def trunc(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """x, rounded toward zero."""
    return either(w, w.op("Less", x, 0, dtype=torch.bool), w.op("Ceil", x), w.op("Floor", x), out.dtype)


@row(aten.log2.default)
def log2(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """log(x) / log(2)."""
    return w.op("Mul", w.op("Log", w.to(x, out.dtype)), 1 / math.log(2))


@row(aten.isnan.default, dtypes=FLOATS | {torch.bool})
def isnan(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """Whether an element is nan."""
    return w.op("IsNaN", x, dtype=torch.bool)


@row(aten.isinf.default, dtypes=FLOATS | {torch.bool})
def isinf(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """Whether an element is infinite."""
    return w.op("IsInf", x, dtype=torch.bool)


# ---- logic ---------------------------------------------------------------------------------------------------------
@row(aten.logical_not.default)
def logical_not(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """Whether an element is zero."""
    return w.op("Not", w.to(x, torch.bool))


@row(aten.bitwise_not.default, dtypes=frozenset({torch.bool}))
def bitwise_not(w: ModelWriter, out: Spec, x: Tensor) -> Tensor:
    """The opposite of each bool."""
    return w.op("Not", x)


def _logic(kind: str) -> Callable:
    return lambda w, out, x, y: w.op(kind, w.to(x, torch.bool), w.to(y, torch.bool))


for _name, _kind in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
    row(getattr(aten, f"logical_{_name}").default)(_logic(_kind))
    _bitwise = getattr(aten, f"bitwise_{_name}")
    row(_bitwise.Tensor, _bitwise.Scalar, dtypes=frozenset({torch.bool}))(_logic(_kind))


@row(aten.where.self)
def where(w: ModelWriter, out: Spec, condition: Tensor, x: Any, y: Any) -> Tensor:
    """The first value where the condition holds, else the second."""
    return either(w, condition, x, y, out.dtype)


@row(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(w: ModelWriter, out: Spec, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`value` where the mask holds."""
    return either(w, mask, value, x, out.dtype)


# ---- dtypes and copies ---------------------------------------------------------------------------------------------
@row(aten._to_copy.default, dtypes=EVERY)
def to_copy(w: ModelWriter, out: Spec, x: Tensor, **settings: Any) -> Tensor:
    """`x` in another dtype."""
    if settings.get("device") not in (None, out.device) or x.dtype.is_floating_point and out.dtype in UNSIGNED:
        raise Cannot("it copies to another device, or converts floats to small integers")
    return w.op("Identity", x) if x.dtype is out.dtype else w.to(x, out.dtype)


UNSIGNED = (torch.uint8, torch.int8, torch.int16)


@row(aten.clone.default, aten.lift_fresh_copy.default, dtypes=EVERY)
def clone(w: ModelWriter, out: Spec, x: Tensor, memory_format: Any = None) -> Tensor:
    """A copy of `x`."""
    return w.op("Identity", x)
