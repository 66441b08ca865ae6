"""Shape rules of element-wise ops. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.math_functions import MATH_FUNCTIONS

from .core import ROWS, HasMeta, Meta, NeedsMeta, Operand, alike, is_contiguous, new, row
from .elementwise import broadcast, device_of, elementwise, promoted, to_float

_Tensor = torch.Tensor
_BOOL = torch.bool


def _same_dtype(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    return elementwise((x,), x.m.dtype)


def _float_dtype(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    return elementwise((x,), to_float(x.m.dtype))


def _only_float(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    if not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x,), x.m.dtype)


def _bool_unary(x: HasMeta) -> Meta:
    return elementwise((x,), _BOOL)


def _promoting(x: Operand, y: Operand, **options: Any) -> Meta:
    return elementwise((x, y), promoted((x, y)))


def _arith(x: Operand, y: Operand, **options: Any) -> Meta:
    if "alpha" in options:
        raise NeedsMeta
    return elementwise((x, y), promoted((x, y)))


def _minus(x: Operand, y: Operand, **options: Any) -> Meta:
    dtype = promoted((x, y))
    if dtype is _BOOL or options:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def _true_divide(x: Operand, y: Operand) -> Meta:
    return elementwise((x, y), to_float(promoted((x, y))))


def _divide_mode(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Meta:
    dtype = promoted((x, y))
    return elementwise((x, y), to_float(dtype) if rounding_mode is None else dtype)


def _compare_op(x: Operand, y: Operand) -> Meta:
    return elementwise((x, y), _BOOL)


def _bitwise(x: Operand, y: Operand) -> Meta:
    dtype = promoted((x, y))
    if dtype.is_floating_point or dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def _three(x: HasMeta, y: Operand, z: Operand, **options: Any) -> Meta:
    if options or not (y.m.dtype.is_floating_point or z.m.dtype.is_floating_point):  # addcdiv of integers is refused
        raise NeedsMeta
    return elementwise((x, y, z), promoted((x, y, z)))


def _in_place(x: HasMeta, *operands: Any, **options: Any) -> Meta:
    """`x.op_(y)`: the result must fit into x. Raises NeedsMeta for anything that eager may refuse."""
    m = x.m
    for y in operands:
        if isinstance(y, _Tensor):
            other = y.m
            if not alike(other.shape, m.shape) and broadcast([m.shape, other.shape]) != m.shape:
                raise NeedsMeta
            if other.dtype != m.dtype:
                raise NeedsMeta
        elif isinstance(y, (float, complex)) and not m.dtype.is_floating_point:
            raise NeedsMeta
        elif isinstance(y, str):
            raise NeedsMeta
    return m


for _name in "neg relu floor ceil round trunc sign sgn bitwise_not hardtanh threshold leaky_relu nan_to_num".split():
    ROWS[f"aten::{_name}"] = _same_dtype
for _name in (*(f.name for f in MATH_FUNCTIONS), "rsqrt", "reciprocal", "special_i0e", "sinc"):
    ROWS[f"aten::{_name}"] = _float_dtype
for _name in "silu mish softplus hardswish hardsigmoid elu celu log_sigmoid".split():
    ROWS[f"aten::{_name}"] = _only_float


@row("gelu")
def _gelu(x: HasMeta, *, approximate: str = "none") -> Meta:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return _only_float(x)


for _name in "logical_not isnan isinf isposinf isneginf signbit".split():
    ROWS[f"aten::{_name}"] = _bool_unary
for _name in "add mul".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _arith
ROWS["aten::sub.Tensor"] = ROWS["aten::sub.Scalar"] = ROWS["aten::rsub.Scalar"] = _minus
ROWS["aten::div.Tensor"] = ROWS["aten::div.Scalar"] = ROWS["aten::atan2"] = _true_divide
ROWS["aten::div.Tensor_mode"] = ROWS["aten::div.Scalar_mode"] = _divide_mode
for _name in "maximum minimum fmax fmin floor_divide".split():
    ROWS[f"aten::{_name}"] = _promoting
for _name in ("remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar floor_divide.Scalar pow.Tensor_Tensor").split():
    ROWS[f"aten::{_name}"] = _promoting
for _name in "eq ne lt le gt ge".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _compare_op
for _name in "logical_and logical_or logical_xor".split():
    ROWS[f"aten::{_name}"] = _compare_op
for _name in "bitwise_and bitwise_or bitwise_xor".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _bitwise
for _name in "addcmul addcdiv lerp.Tensor".split():
    ROWS[f"aten::{_name}"] = _three


def _float_in_place(x: HasMeta, *operands: Any, **options: Any) -> Meta:
    """As `_in_place`, of what gives floats: eager refuses to write those into whole numbers."""
    if not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return _in_place(x, *operands, **options)


for _name in (
    "add_.Tensor sub_.Tensor mul_.Tensor add_.Scalar sub_.Scalar mul_.Scalar relu_ neg_ "
    "clamp_ clamp_min_ clamp_max_ hardtanh_ zero_ fill_.Scalar addcmul_"
).split():
    ROWS[f"aten::{_name}"] = _in_place
for _name in "div_.Tensor div_.Scalar sigmoid_ tanh_ exp_ sqrt_ silu_ addcdiv_".split():
    ROWS[f"aten::{_name}"] = _float_in_place


@row("abs")
def _abs(x: HasMeta) -> Meta:
    dtype = x.m.dtype
    return elementwise((x,), dtype.to_real() if dtype.is_complex else dtype)


@row("pow.Scalar")
def _pow_of_number(base: Operand, x: HasMeta) -> Meta:
    """Row-major, whatever x is (torch's meta kernel says otherwise)."""
    return new(x.m.shape, None, promoted((base, x)), x.m.device)


@row(
    "xlogy.Tensor",
    "xlogy.Scalar_Self",
    "xlogy.Scalar_Other",
    "copysign.Tensor",
    "copysign.Scalar",
    "special_xlog1py",
    "special_xlog1py.self_scalar",
    "special_xlog1py.other_scalar",
)
def _float_of_two(x: HasMeta, y: Operand) -> Meta:
    """Laid out as the operands (torch's meta kernels: as what they are computed of)."""
    return elementwise((x, y), to_float(promoted((x, y))))


@row("logaddexp", "logaddexp2")
def _floats_of_two(x: HasMeta, y: Operand) -> Meta:
    """Of floats: laid out as the operands."""
    dtype = promoted((x, y))
    if not dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x, y), dtype)


@row("heaviside")
def _heaviside(x: HasMeta, y: Operand) -> Meta:
    if x.m.dtype != y.m.dtype or x.m.dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), x.m.dtype)


@row("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal(mean: Operand, std: Operand = 1.0, *, generator: torch.Generator | None = None) -> Meta:
    """Row-major, whatever the operands are."""
    metas = [x.m for x in (mean, std) if isinstance(x, _Tensor)]
    if not all(m.dtype.is_floating_point for m in metas):
        raise NeedsMeta
    return new(broadcast([m.shape for m in metas]), None, metas[0].dtype, device_of(metas))


@row("pow.Tensor_Scalar")
def _pow_scalar(x: HasMeta, exponent: Operand) -> Meta:
    return elementwise((x,), promoted((x, exponent)))


@row("where.self")
def _where(condition: Operand, x: HasMeta, y: Operand) -> Meta:
    if condition.m.dtype is not _BOOL:
        raise NeedsMeta
    return elementwise((condition, x, y), promoted((x, y)))


@row("clamp", "clamp_min", "clamp_max")
def _clamp(x: HasMeta, *bounds: Any, **named: Any) -> Meta:
    numbers = (*bounds, *named.values())
    dtype = promoted((x, *numbers))
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not _BOOL:
        info = torch.iinfo(dtype)
        if any(type(n) is int and not info.min <= n <= info.max for n in numbers):
            raise NeedsMeta  # torch 2.15 raises for some
    return elementwise((x,), dtype)


@row("clamp.Tensor")
def _clamp_tensor(x: HasMeta, low: Operand | None = None, high: Operand | None = None) -> Meta:
    present = tuple(t for t in (x, low, high) if t is not None)
    if any(t.m.device != x.m.device for t in present):  # eager takes no number of the CPU's here
        raise RuntimeError("Expected all tensors to be on the same device")
    return elementwise(present, promoted(present))


@row("masked_fill.Scalar")
def _masked_fill(x: HasMeta, mask: Operand, value: Any) -> Meta:
    if mask.m.dtype is not _BOOL:
        raise NeedsMeta
    shape = broadcast([x.m.shape, mask.m.shape])
    if shape != x.m.shape or not is_contiguous(x.m):
        raise NeedsMeta
    return new(shape, None, x.m.dtype, x.m.device)


@row("copy_")
def _copy(x: HasMeta, src: HasMeta, non_blocking: bool = False) -> Meta:
    if broadcast([x.m.shape, src.m.shape]) != x.m.shape:
        raise NeedsMeta
    return x.m
