"""ATen's operators that compute each element by itself: a row each. Shape rules and the op table derive from the rows.

An operator whose shape rule is one of these kinds has its overloads here and nowhere else: `fake/rules/pointwise.py` makes the
rule, and the row of the op table (`codegen/ops/`) of this name takes overloads, operands and dtype rule from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from .math_functions import MATH_FUNCTIONS


@dataclass(frozen=True)
class PointwiseOp:
    """name: of its row in the op table. overloads: as ATen writes them, without "aten." and ".default". operands: how many may
    be tensors; numbers behind them are parameters.

    result: the dtype of the result: "same" as the operands' common dtype, "float" (integers become floats), "bool".
    of: which operands the rule serves: "any", "numbers" (no bools), "real" (neither bools nor complex numbers), "floats",
    "positive" (floats, with parameters above 0: eager refuses others), "whole" (integers and bools), "alike" (of one float
    dtype). For others torch's meta kernel infers or raises. leads: the operand that the result is laid out as, where their
    layouts differ. copies: the result is laid out as `empty_like` of the operand, which keeps strides of dims of size 1.
    """

    name: str
    overloads: tuple[str, ...]
    operands: int = 1
    result: str = "same"
    of: str = "any"
    leads: int = 0
    copies: bool = False


def _both(*names: str) -> dict[str, tuple[str, ...]]:
    """Operators of two operands, the second of which may be a number: name -> overloads."""
    return {name: (f"{name}.Tensor", f"{name}.Scalar") for name in names}


_ALONE = "neg floor ceil round trunc relu threshold"
_ALONE_FLOATS = "silu mish softplus hardswish hardsigmoid hardtanh leaky_relu elu hardshrink frac"
_TO_FLOAT = "rsqrt reciprocal sinc deg2rad rad2deg"
_TO_BOOL = "logical_not isnan isinf isposinf isneginf isfinite signbit"
_GRADIENTS = "gelu silu sigmoid tanh hardtanh hardsigmoid mish hardswish softplus logit"  # of a gradient and x (or y)

_ROWS = (
    *(PointwiseOp(n, (n,), of="numbers") for n in _ALONE.split()),
    PointwiseOp("abs", ("abs",), of="real"),
    PointwiseOp("nan_to_num", ("nan_to_num",), copies=True),
    PointwiseOp("sign", ("sign", "sgn")),
    PointwiseOp("not", ("bitwise_not",), of="whole"),
    *(PointwiseOp(n, (n,), of="floats", copies=n == "hardtanh") for n in _ALONE_FLOATS.split()),
    *(PointwiseOp(n, (n,), of="positive") for n in ("celu", "softshrink")),
    *(PointwiseOp(n, (n,), result="float") for n in (*(f.name for f in MATH_FUNCTIONS), *_TO_FLOAT.split())),
    *(PointwiseOp(n, (n,), result="bool") for n in _TO_BOOL.split()),
    *(PointwiseOp(n, (n,), 2) for n in ("maximum", "minimum", "fmax", "fmin")),
    *(PointwiseOp(n, overloads, 2) for n, overloads in _both("add", "mul").items()),
    *(PointwiseOp(n, overloads, 2, of="numbers") for n, overloads in _both("sub", "remainder", "fmod").items()),
    PointwiseOp("rsub", ("rsub.Scalar",), 2, of="numbers"),
    PointwiseOp("floordiv", ("floor_divide", "floor_divide.Scalar"), 2, of="numbers"),
    PointwiseOp("pow_any", ("pow.Tensor_Tensor", "pow.Tensor_Scalar"), 2, of="numbers"),
    PointwiseOp("and", ("bitwise_and.Tensor", "bitwise_and.Scalar"), 2, of="whole"),
    PointwiseOp("or", ("bitwise_or.Tensor", "bitwise_or.Scalar"), 2, of="whole"),
    PointwiseOp("xor", ("bitwise_xor.Tensor", "bitwise_xor.Scalar"), 2, of="whole"),
    *(PointwiseOp(n, (n,), 2, of="floats") for n in ("logaddexp", "hypot", "nextafter")),
    PointwiseOp("div", ("div.Tensor", "div.Scalar", "true_divide.Tensor"), 2, "float"),
    PointwiseOp("atan2", ("atan2",), 2, "float"),
    PointwiseOp("copysign", ("copysign.Tensor", "copysign.Scalar"), 2, "float"),
    PointwiseOp("xlogy", ("xlogy.Tensor",), 2, "float"),
    *(PointwiseOp(n, overloads, 2, "bool") for n, overloads in _both("lt", "le", "gt", "ge", "eq", "ne").items()),
    *(PointwiseOp(n, (n,), 2, "bool") for n in ("logical_and", "logical_or", "logical_xor")),
    *(PointwiseOp(n, (n,), 3, of="floats") for n in ("addcmul", "addcdiv")),
    PointwiseOp("lerp", ("lerp.Tensor",), 3, of="alike"),
    *(PointwiseOp(f"{n}_backward", (f"{n}_backward",), 2, of="alike") for n in _GRADIENTS.split()),
    PointwiseOp("shrink_backward", ("hardshrink_backward", "softshrink_backward"), 2, of="alike"),
    *(PointwiseOp(f"{n}_backward", (f"{n}_backward",), 2, of="alike", leads=1) for n in ("threshold", "leaky_relu")),
)
POINTWISE = {row.name: row for row in _ROWS}
