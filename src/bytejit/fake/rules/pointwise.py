"""Shape rules of element-wise ops. See `fake/rules/core.py` for what a row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.pointwise_ops import POINTWISE, PointwiseOp

from .core import HasMeta, Meta, NeedsMeta, Number, Operand, alike, new, row
from .elementwise import broadcast, category, device_of, elementwise, like_stride, promoted, scalar_dtype, to_float

_Tensor = torch.Tensor
_BOOL = torch.bool


def _same_dtype(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    return elementwise((x,), x.m.dtype)


def _number(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    if x.m.dtype is _BOOL:
        raise NeedsMeta
    return elementwise((x,), x.m.dtype)


def _real_number(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    if x.m.dtype.is_complex:
        raise NeedsMeta
    return _number(x)


def _float_dtype(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    return elementwise((x,), to_float(x.m.dtype))


def _only_float(x: HasMeta, *rest: Any, **options: Any) -> Meta:
    if not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x,), x.m.dtype)


def _bool_unary(x: HasMeta) -> Meta:
    return elementwise((x,), _BOOL)


def _promoting(x: Operand, y: Operand, **options: Any) -> Meta:
    if options:  # alpha
        raise NeedsMeta
    return elementwise((x, y), promoted((x, y)))


def _no_bools(*operands: Operand) -> None:
    if any(z.m.dtype is _BOOL if isinstance(z, _Tensor) else isinstance(z, (bool, torch.SymBool)) for z in operands):
        raise NeedsMeta


def _numbers(x: Operand, y: Operand, **options: Any) -> Meta:
    """Infers an op of numbers that are no bools: eager refuses some of them."""
    if options:
        raise NeedsMeta
    _no_bools(x, y)
    return elementwise((x, y), promoted((x, y)))


def _number_and_numbers(number: Number, x: HasMeta) -> Meta:
    """Row-major."""
    _no_bools(number, x)
    return new(x.m.shape, None, promoted((number, x)), x.m.device)


def _power(x: Operand, y: Operand) -> Meta:
    """Infers a power. An exponent that is a number is a parameter: the result is laid out as the base alone. A bool to the power
    of Python's True or False is a bool, which torch's meta kernel does not say."""
    if isinstance(y, bool) and isinstance(x, _Tensor) and x.m.dtype is _BOOL:
        return elementwise((x,), _BOOL)
    m = _numbers(x, y)
    return m if isinstance(y, _Tensor) else elementwise((x,), m.dtype)


def _true_divide(x: Operand, y: Operand) -> Meta:
    """Laid out as the operands (torch's meta kernels for some: as what they are computed of)."""
    return elementwise((x, y), to_float(promoted((x, y))))


def _compare_op(x: Operand, y: Operand) -> Meta:
    return elementwise((x, y), _BOOL)


def _bitwise(x: Operand, y: Operand) -> Meta:
    dtype = promoted((x, y))
    if dtype.is_floating_point or dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def _floats_of_two(x: HasMeta, y: Operand) -> Meta:
    """Infers an op of floats. The result is laid out as the operands; in torch's meta kernels as what it is computed of."""
    dtype = promoted((x, y))
    if not dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def as_operands(*operands: Any) -> Meta:
    """Infers an op of tensors of one float dtype and shape on one device."""
    m = operands[0].m
    for y in operands:
        other = y.m if isinstance(y, _Tensor) else None
        if other is None or other.dtype != m.dtype or other.device != m.device or not alike(other.shape, m.shape):
            raise NeedsMeta
    if not m.dtype.is_floating_point:
        raise NeedsMeta
    return elementwise(operands, m.dtype)


def _alike_two(x: HasMeta, y: HasMeta, *numbers: Any, **options: Any) -> Meta:
    return as_operands(x, y)


def _alike_second(x: HasMeta, y: HasMeta, *numbers: Any, **options: Any) -> Meta:
    return as_operands(y, x)


def _positive(x: HasMeta, *numbers: float) -> Meta:
    if any(number <= 0 for number in numbers):
        raise NeedsMeta
    return _only_float(x)


def _whole(x: HasMeta) -> Meta:
    if x.m.dtype.is_floating_point or x.m.dtype.is_complex:
        raise NeedsMeta
    return elementwise((x,), x.m.dtype)


def _three(x: HasMeta, y: Operand, z: Operand, **options: Any) -> Meta:
    if options or not (y.m.dtype.is_floating_point or z.m.dtype.is_floating_point):  # addcdiv of integers is refused
        raise NeedsMeta
    return elementwise((x, y, z), promoted((x, y, z)))


def _divide_mode(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Meta:
    dtype = promoted((x, y))
    if rounding_mode is not None and (dtype is _BOOL or dtype.is_complex):
        raise NeedsMeta
    return elementwise((x, y), to_float(dtype) if rounding_mode is None else dtype)


def _equal(x: HasMeta, y: Operand) -> Meta:
    if x.m.dtype != y.m.dtype or x.m.dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), x.m.dtype)


def _chosen(condition: Operand, x: HasMeta, y: Operand) -> Meta:
    if condition.m.dtype is not _BOOL:
        raise NeedsMeta
    return elementwise((condition, x, y), promoted((x, y)))


def _bounded(x: HasMeta, *bounds: Any, **named: Any) -> Meta:
    numbers = (*bounds, *named.values())
    dtype = promoted((x, *numbers))
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not _BOOL:
        info = torch.iinfo(dtype)
        if any(type(n) is int and not info.min <= n <= info.max for n in numbers):
            raise NeedsMeta  # torch 2.15 raises for some
    return elementwise((x,), dtype)


def _present(x: HasMeta, low: Operand | None = None, high: Operand | None = None) -> Meta:
    present = tuple(t for t in (x, low, high) if t is not None)
    if any(t.m.device != x.m.device for t in present):  # eager takes no number of the CPU's here
        raise RuntimeError("Expected all tensors to be on the same device")
    dtype = promoted(present)
    if dtype is _BOOL or dtype.is_complex:
        raise NeedsMeta
    return elementwise(present, dtype)


def _masked(x: HasMeta, mask: Operand, value: Any) -> Meta:
    """Row-major."""
    if mask.m.dtype is not _BOOL or broadcast([x.m.shape, mask.m.shape]) != x.m.shape:
        raise NeedsMeta
    return new(x.m.shape, None, x.m.dtype, x.m.device)


def _loss(grad: Operand, x: HasMeta, y: Operand, *numbers: Any) -> Meta:
    """Laid out as the input of the loss."""
    return elementwise((x,), _loss_by_rows(grad, x, y).dtype)


def _loss_by_rows(grad: Operand, x: HasMeta, y: Operand, *numbers: Any) -> Meta:
    """Row-major."""
    m, g = x.m, grad.m
    if not m.dtype.is_floating_point or g.dtype != m.dtype or g.device != m.device or not alike(y.m.shape, m.shape):
        raise NeedsMeta
    if g.shape and not alike(g.shape, m.shape):  # neither one number nor one for each element
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device)


def _on_cpu(x: HasMeta, y: Operand, *numbers: Any) -> Meta:
    """Infers an op of floats on the CPU."""
    if x.m.device.type != "cpu" or not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return _promoting(x, y)


def _in_place(x: HasMeta, *operands: Any, **options: Any) -> Meta:
    """`x.op_(y)`: the result must fit into x. Raises NeedsMeta for anything that eager may refuse."""
    m = x.m
    for y in (*operands, *options.values()):
        if isinstance(y, _Tensor):
            other = y.m
            if not alike(other.shape, m.shape) and broadcast([m.shape, other.shape]) != m.shape:
                raise NeedsMeta
            if other.dtype != m.dtype:
                raise NeedsMeta
        elif y is not None and category(scalar_dtype(y)) > category(m.dtype):
            raise NeedsMeta
    return m


def _number_in_place(x: HasMeta, *operands: Any, **options: Any) -> Meta:
    """Infers as `_in_place` does an op that eager refuses for bools."""
    if x.m.dtype is _BOOL or any(isinstance(y, (bool, torch.SymBool)) for y in operands):
        raise NeedsMeta
    return _in_place(x, *operands, **options)


# (operands, result, of, leads) of a row of `common/pointwise_ops.py` -> its rule
RULES: dict[tuple, Callable[..., Meta]] = {
    (1, "same", "any", 0): _same_dtype,
    (1, "same", "numbers", 0): _number,
    (1, "same", "real", 0): _real_number,
    (1, "same", "floats", 0): _only_float,
    (1, "same", "positive", 0): _positive,
    (1, "same", "whole", 0): _whole,
    (1, "float", "any", 0): _float_dtype,
    (1, "bool", "any", 0): _bool_unary,
    (2, "same", "any", 0): _promoting,
    (2, "same", "numbers", 0): _numbers,
    (2, "same", "whole", 0): _bitwise,
    (2, "same", "floats", 0): _floats_of_two,
    (2, "same", "alike", 0): _alike_two,
    (2, "same", "alike", 1): _alike_second,
    (2, "float", "any", 0): _true_divide,
    (2, "bool", "any", 0): _compare_op,
    (3, "same", "floats", 0): _three,
    (3, "same", "alike", 0): as_operands,
    (1, "same", "bounded", 0): _bounded,
    (2, "rounded", "any", 0): _divide_mode,
    (2, "same", "equal", 0): _equal,
    (2, "same", "cpu", 0): _on_cpu,
    (3, "same", "chosen", 0): _chosen,
    (3, "same", "present", 0): _present,
    (3, "same", "loss", 0): _loss,
}
# those of results that are row-major, whatever the operands are (torch's meta kernels say otherwise for some)
BY_ROWS: dict[tuple, Callable[..., Meta]] = {
    (2, "same", "numbers", 0): _number_and_numbers,
    (2, "same", "masked", 0): _masked,
    (3, "same", "loss", 0): _loss_by_rows,
}


def _copying(rule: Callable[..., Meta]) -> Callable[..., Meta]:
    """The rule of an op that writes into `empty_like` of its operand."""

    def copied(x: HasMeta, *rest: Any, **options: Any) -> Meta:
        m = rule(x, *rest, **options)
        return new(m.shape, like_stride(x.m), m.dtype, m.device)

    return copied


def _choosing(rule: Callable[..., Meta], choices: tuple[str, ...]) -> Callable[..., Meta]:
    """The rule of an op that eager refuses for other texts than these."""

    def chosen(*operands: Any, **options: Any) -> Meta:
        for value in options.values():
            if value is not None and value not in choices:
                raise NeedsMeta
        return rule(*operands, **options)

    return chosen


def _at_places(rule: Callable[..., Meta], places: tuple[int, ...]) -> Callable[..., Meta]:
    """The rule of an op whose operands stand among other arguments."""
    return lambda *arguments: rule(*[arguments[i] for i in places])


def rule_of(op: PointwiseOp) -> Callable[..., Meta]:
    """The shape rule of a row."""
    rules = BY_ROWS if op.layout == "rows" else RULES
    rule = _power if op.name == "pow_any" else rules[op.operands, op.result, op.of, op.leads]
    if op.layout == "copy":
        rule = _copying(rule)
    if op.choices:
        rule = _choosing(rule, op.choices)
    return _at_places(rule, op.places) if op.places else rule


for _op in POINTWISE.values():
    row(*_op.overloads)(rule_of(_op))
row("special_i0e")(_float_dtype)  # what follows has no row in the op table
row("xlogy.Scalar_Self", "xlogy.Scalar_Other")(_true_divide)
row("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")(_true_divide)
row("logaddexp2")(_floats_of_two)


def _float_in_place(x: HasMeta, *operands: Any, **options: Any) -> Meta:
    """Infers as `_in_place` does an op that computes floats: eager refuses to write those into whole numbers."""
    if not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return _in_place(x, *operands, **options)


row("add_.Tensor", "mul_.Tensor", "add_.Scalar", "mul_.Scalar", "zero_")(_in_place)
row("sub_.Tensor", "sub_.Scalar", "relu_", "neg_", "clamp_", "clamp_min_", "clamp_max_", "addcmul_")(_number_in_place)
for _name in "div_.Tensor div_.Scalar sigmoid_ tanh_ exp_ sqrt_ silu_ hardtanh_ addcdiv_".split():
    row(_name)(_float_in_place)


@row("fill_.Scalar")
def _fill(x: HasMeta, value: Operand) -> Meta:
    if isinstance(value, complex) and not x.m.dtype.is_complex:
        raise NeedsMeta
    return x.m


@row("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal(mean: Operand, std: Operand = 1.0, *, generator: torch.Generator | None = None) -> Meta:
    """Row-major, whatever the operands are."""
    metas = [x.m for x in (mean, std) if isinstance(x, _Tensor)]
    if not all(m.dtype.is_floating_point for m in metas):
        raise NeedsMeta
    return new(broadcast([m.shape for m in metas]), None, metas[0].dtype, device_of(metas))


@row("copy_")
def _copy(x: HasMeta, src: HasMeta, non_blocking: bool = False) -> Meta:
    if broadcast([x.m.shape, src.m.shape]) != x.m.shape:
        raise NeedsMeta
    return x.m


@row("log_sigmoid_forward", beside="layout")
def _log_sigmoid(x: HasMeta) -> tuple:
    """The CPU's kernel reads a contiguous copy, and is followed in that."""
    m = x.m
    if m.device.type != "cpu" or not m.dtype.is_floating_point:
        raise NeedsMeta
    return new(m.shape, None, m.dtype, m.device), new(m.shape, None, m.dtype, m.device)
