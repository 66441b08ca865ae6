"""ATen's operators that compute each element by itself: a row each. Shape rules and the op table derive from the rows.

An operator whose shape rule is one of these kinds has its overloads here and nowhere else: `fake/rules/pointwise.py` makes the
rule, and the row of the op table (`codegen/ops/rows/`) of this name takes overloads, operands and dtype rule from here.
"""

from __future__ import annotations

from bytejit.common.light_dataclass import light_dataclass

from .math_functions import MATH_FUNCTIONS


@light_dataclass(frozen=True)
class PointwiseOp:
    """name: of its row in the op table. overloads: as ATen writes them, without "aten." and ".default". operands: how many may
    be tensors; numbers behind them are parameters. places: where the operands stand, if not in front.

    result: the dtype of the result: "same" as the operands' common dtype, "float" (integers become floats), "bool",
    "rounded" ("same" where the call names a rounding mode, else "float").
    of: which operands the rule serves: "any", "numbers" (no bools), "real" (neither bools nor complex numbers), "floats",
    "positive" (floats, with parameters above 0: eager refuses others), "whole" (integers and bools), "alike" (of one float
    dtype), "equal" (of one dtype), "bounded" (parameters count for the dtype), "present" (operands may be None), "chosen" (by
    the first, of bools), "masked" (by the second, of bools, which fits into the first), "loss" (the gradient of a loss, its
    input and its target), "cpu" (floats, on the CPU). For others torch's meta kernel infers or raises.
    leads: the operand that the result is laid out as, where their layouts differ. layout: how the result lies in memory:
    "operands" (as TensorIterator has it), "copy" (as `empty_like` of the first, which keeps strides of dims of size 1), "rows"
    (row-major).
    choices: what a named argument may be, where it is a text; eager refuses others.
    """

    name: str
    overloads: tuple[str, ...]
    operands: int = 1
    result: str = "same"
    of: str = "any"
    leads: int = 0
    layout: str = "operands"
    places: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()


def _both(*names: str) -> dict[str, tuple[str, ...]]:
    """Operators of two operands, the second of which may be a number: name -> overloads."""
    return {name: (f"{name}.Tensor", f"{name}.Scalar") for name in names}


_ALONE = "neg floor ceil round trunc relu threshold"
_ALONE_FLOATS = "silu mish softplus hardswish hardsigmoid leaky_relu elu hardshrink frac"
_TO_FLOAT = "rsqrt reciprocal sinc deg2rad rad2deg"
_TO_BOOL = "logical_not isnan isinf isposinf isneginf isfinite signbit"
_FORMS = ("none", "tanh")  # of gelu
_GRADIENTS = "silu sigmoid tanh hardtanh hardsigmoid mish hardswish softplus logit"  # of a gradient and x (or y)

_ROWS = (
    *(PointwiseOp(n, (n,), of="numbers") for n in _ALONE.split()),
    PointwiseOp("abs", ("abs",), of="real"),
    PointwiseOp("nan_to_num", ("nan_to_num",), layout="copy"),
    PointwiseOp("sign", ("sign", "sgn")),
    PointwiseOp("not", ("bitwise_not",), of="whole"),
    *(PointwiseOp(n, (n,), of="floats") for n in _ALONE_FLOATS.split()),
    PointwiseOp("hardtanh", ("hardtanh",), of="floats", layout="copy"),
    PointwiseOp("gelu", ("gelu",), of="floats", choices=_FORMS),
    *(PointwiseOp(n, (n,), of="bounded") for n in ("clamp", "clamp_min", "clamp_max")),
    *(PointwiseOp(n, (n,), of="positive") for n in ("celu", "softshrink")),
    *(PointwiseOp(n, (n,), result="float") for n in (*(f.name for f in MATH_FUNCTIONS), *_TO_FLOAT.split())),
    *(PointwiseOp(n, (n,), result="bool") for n in _TO_BOOL.split()),
    *(PointwiseOp(n, (n,), 2) for n in ("maximum", "minimum", "fmax", "fmin")),
    *(PointwiseOp(n, overloads, 2) for n, overloads in _both("add", "mul").items()),
    *(PointwiseOp(n, overloads, 2, of="numbers") for n, overloads in _both("sub", "remainder", "fmod").items()),
    PointwiseOp("rsub", ("rsub.Scalar",), 2, of="numbers"),
    PointwiseOp("floordiv", ("floor_divide", "floor_divide.Scalar"), 2, of="numbers"),
    PointwiseOp("pow_any", ("pow.Tensor_Tensor", "pow.Tensor_Scalar"), 2, of="numbers"),
    PointwiseOp("pow_of_number", ("pow.Scalar",), 2, of="numbers", layout="rows"),
    PointwiseOp("heaviside", ("heaviside",), 2, of="equal"),
    PointwiseOp("where", ("where.self",), 3, of="chosen"),
    PointwiseOp("masked_fill", ("masked_fill.Scalar",), 2, of="masked", layout="rows"),
    PointwiseOp("clamp_tensor", ("clamp.Tensor",), 3, of="present"),
    PointwiseOp("and", ("bitwise_and.Tensor", "bitwise_and.Scalar"), 2, of="whole"),
    PointwiseOp("or", ("bitwise_or.Tensor", "bitwise_or.Scalar"), 2, of="whole"),
    PointwiseOp("xor", ("bitwise_xor.Tensor", "bitwise_xor.Scalar"), 2, of="whole"),
    *(PointwiseOp(n, (n,), 2, of="floats") for n in ("logaddexp", "hypot", "nextafter")),
    PointwiseOp("div", ("div.Tensor", "div.Scalar", "true_divide.Tensor"), 2, "float"),
    PointwiseOp("div_mode", ("div.Tensor_mode", "div.Scalar_mode"), 2, "rounded", choices=("floor", "trunc")),
    PointwiseOp("atan2", ("atan2",), 2, "float"),
    PointwiseOp("copysign", ("copysign.Tensor", "copysign.Scalar"), 2, "float"),
    PointwiseOp("xlogy", ("xlogy.Tensor",), 2, "float"),
    *(PointwiseOp(n, overloads, 2, "bool") for n, overloads in _both("lt", "le", "gt", "ge", "eq", "ne").items()),
    *(PointwiseOp(n, (n,), 2, "bool") for n in ("logical_and", "logical_or", "logical_xor")),
    *(PointwiseOp(n, (n,), 3, of="floats") for n in ("addcmul", "addcdiv")),
    PointwiseOp("lerp", ("lerp.Tensor",), 3, of="alike"),
    *(PointwiseOp(f"{n}_backward", (f"{n}_backward",), 2, of="alike") for n in _GRADIENTS.split()),
    PointwiseOp("gelu_backward", ("gelu_backward",), 2, of="alike", choices=_FORMS),
    PointwiseOp("elu_backward", ("elu_backward",), 2, of="alike", places=(0, 5)),
    PointwiseOp("native_dropout_backward", ("native_dropout_backward",), 2, of="cpu"),
    *(
        PointwiseOp(f"{n}_loss_backward", (f"{n}_loss_backward",), 3, of="loss", layout="rows")
        for n in ("mse", "smooth_l1", "huber")
    ),
    PointwiseOp("binary_cross_entropy_backward", ("binary_cross_entropy_backward",), 3, of="loss"),
    PointwiseOp("shrink_backward", ("hardshrink_backward", "softshrink_backward"), 2, of="alike"),
    *(PointwiseOp(f"{n}_backward", (f"{n}_backward",), 2, of="alike", leads=1) for n in ("threshold", "leaky_relu")),
)
POINTWISE = {row.name: row for row in _ROWS}
