"""Results of element-wise ops: broadcast shape, promoted dtype, and the strides of torch's TensorIterator."""

from __future__ import annotations

import torch

from bytejit.common.pointwise_ops import POINTWISE
from bytejit.common.spec import contiguous_stride
from bytejit.shapes.symbols import hint

from .core import (
    Meta,
    NeedsMeta,
    Number,
    alike,
    channels_last_stride,
    differ,
    is_channels_last,
    is_dense,
    is_one,
    looks_contiguous,
    new,
)

_Tensor = torch.Tensor
_BOOL = torch.bool
_promote = torch.promote_types
_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def broadcast(shapes: list[tuple]) -> tuple:
    """The shape that several broadcast to. Raises RuntimeError with eager's words."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        pad = rank - len(shape)
        for i, size in enumerate(shape):
            have = out[pad + i]
            if is_one(have):
                out[pad + i] = size
            elif not is_one(size) and size != have and size != 1:
                if have != 1:
                    raise RuntimeError(
                        f"The size of tensor a ({have}) must match the size of tensor b ({size}) "
                        f"at non-singleton dimension {pad + i}"
                    )
                out[pad + i] = size
    return tuple(out)


def device_of(metas: list[Meta]) -> torch.device:
    """The result's device: a 0-dim CPU tensor follows the others. Raises NeedsMeta on a mixture that
    eager refuses.
    """
    device = metas[0].device
    for m in metas[1:]:
        if m.device != device:
            if device.type == "cpu" and all(len(x.shape) == 0 for x in metas if x.device.type == "cpu"):
                device = m.device
            elif m.shape or m.device.type != "cpu":
                raise NeedsMeta
    return device


def elementwise_stride(shape: tuple, metas: list[Meta], numbers: bool = False) -> tuple | None:
    """The strides that torch's TensorIterator gives a new result of `shape`; None is contiguous. numbers: some operands are
    numbers, which it takes for tensors of another shape. That is seen in strides of dims of sizes 1 and 0 only."""
    if not (numbers and has_sizes_below_two(shape)) and all(alike(m.shape, shape) for m in metas):
        if all(looks_contiguous(m) for m in metas):
            return None
        if all(is_channels_last(m) for m in metas):
            return channels_last_stride(shape)
        stride = metas[0].stride
        if is_dense(metas[0]) and not any(differ(a, b) for m in metas for a, b in zip(m.stride, stride)):
            return stride
    return permuted_stride(shape, sorted_dims(shape, metas))


def has_sizes_below_two(shape: tuple) -> bool:
    """Whether a size is 1, or 0."""
    return any(type(n) is int and n <= 1 for n in shape)


def sorted_dims(shape: tuple, metas: list[Meta]) -> list[int]:
    """Dims from fastest to slowest, as TensorIterator orders them by the operands' strides."""
    rank = len(shape)
    operands = []
    for m in metas:
        pad = rank - len(m.shape)
        operands.append(
            (0,) * pad
            + tuple(
                0 if is_one(size) and not is_one(shape[pad + i]) else stride
                for i, (size, stride) in enumerate(zip(m.shape, m.stride))
            )
        )
    perm = list(range(rank - 1, -1, -1))
    for i in range(1, rank):
        at = i
        for j in range(i - 1, -1, -1):
            order = _compare(perm[j], perm[at], operands, shape)
            if order > 0:
                perm[j], perm[at] = perm[at], perm[j]
                at = j
            elif order < 0:
                break
    return perm


def _compare(a: int, b: int, operands: list[tuple], shape: tuple) -> int:
    for stride in operands:
        x, y = stride[a], stride[b]
        if x == 0 or y == 0:
            continue
        if differ(x, y):
            return -1 if hint(x) < hint(y) else 1
        if hint(shape[a]) > hint(shape[b]):
            return 1
    return 0


def permuted_stride(shape: tuple, perm: list[int]) -> tuple | None:
    """Dense strides with `perm[0]` fastest; None when that is the contiguous order."""
    if perm == list(range(len(shape) - 1, -1, -1)):
        return None
    stride = [0] * len(shape)
    step = 1
    for dim in perm:
        stride[dim] = step
        step = step * shape[dim]
    return tuple(stride)


def category(dtype: torch.dtype) -> int:
    """Of bools, integers, floats, complex numbers: a number of a higher one raises the dtype of what it meets."""
    if dtype is _BOOL:
        return 0
    if dtype.is_floating_point:
        return 2
    return 3 if dtype.is_complex else 1


def promoted(operands: tuple) -> torch.dtype:
    """torch.result_type over tensors and Python scalars, scalars lowest, then 0-dim tensors."""
    full = zero = scalar = None
    for x in operands:
        if isinstance(x, _Tensor):
            m = x.m
            if m.shape:
                full = m.dtype if full is None or full is m.dtype else _promote(full, m.dtype)
            else:
                zero = m.dtype if zero is None or zero is m.dtype else _promote(zero, m.dtype)
        elif x is not None:
            kind = scalar_dtype(x)
            scalar = kind if scalar is None else _promote(scalar, kind)
    out = full
    for lower in (zero, scalar):
        if lower is not None:
            if out is None:
                out = lower
            elif category(lower) > category(out):
                out = _combine(out, lower)
    return out


def _combine(high: torch.dtype, low: torch.dtype) -> torch.dtype:
    """The dtype with an operand of lower priority and higher category. A complex one keeps the precision of the float beside
    it."""
    if low.is_complex and high.is_floating_point:
        return _promote(high, torch.complex32) if high is not torch.bfloat16 else torch.complex64
    return low


def scalar_dtype(x: Number) -> torch.dtype:
    """The dtype that a Python number counts as. Raises: NeedsMeta for what is none."""
    if isinstance(x, (bool, torch.SymBool)):
        return _BOOL
    if isinstance(x, (int, torch.SymInt)):
        return torch.int64
    if isinstance(x, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    if isinstance(x, complex):
        return _promote(torch.get_default_dtype(), torch.complex32)
    raise NeedsMeta


def to_float(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def like_stride(m: Meta) -> tuple | None:
    """Strides of `empty_like(m)`; None is contiguous."""
    return m.stride if is_dense(m) or 0 in m.shape else permuted_stride(m.shape, sorted_dims(m.shape, [m]))


def as_computed(metas: list[Meta], dtype: torch.dtype) -> list[Meta]:
    """The operands as TensorIterator looks at their strides. On the CPU it first copies those of another dtype than it computes
    in, which makes them dense."""

    def stays(m: Meta) -> bool:
        return m.dtype is dtype or m.device.type != "cpu" or (m.dtype.is_complex and not dtype.is_complex) or is_dense(m)

    return [m if stays(m) else new(m.shape, like_stride(m), dtype, m.device) for m in metas]


def elementwise(operands: tuple, dtype: torch.dtype) -> Meta:
    """A new result over tensors (others are ignored), of a dtype known already."""
    metas = [x.m for x in operands if isinstance(x, _Tensor)]
    if any(m.dtype is not dtype for m in metas):
        metas = as_computed(metas, promoted(operands) if dtype is _BOOL else dtype)
    numbers = len(metas) < len(operands) and any(isinstance(x, _NUMBERS) for x in operands)
    if len(metas) == 1:
        m = metas[0]
        if looks_contiguous(m) and not (numbers and has_sizes_below_two(m.shape)):
            return new(m.shape, None, dtype, m.device)
        shape = m.shape
        return new(shape, elementwise_stride(shape, metas, numbers), dtype, m.device)
    if not metas:
        raise NeedsMeta
    first = metas[0].shape
    shape = first if all(alike(m.shape, first) for m in metas) else broadcast([m.shape for m in metas])
    return new(shape, elementwise_stride(shape, metas, numbers), dtype, device_of(metas))


def _laid_out(layout: str, names: str) -> frozenset[str]:
    """Operators by name, and those whose rows say that they are laid out so."""
    rows = (overload for op in POINTWISE.values() if op.layout == layout for overload in op.overloads)
    return frozenset(f"aten::{name}" for name in (*names.split(), *rows))


# What lies in memory as `empty_like` of its first operand, and what is row-major: torch's meta kernels have other strides for
# dims of size 1, and of what is not dense
LIKE_FIRST = _laid_out(
    "copy",
    "flip sort sort.stable randint_like randint_like.low_dtype fill.Scalar fill.Tensor _prelu_kernel empty_like rand_like "
    "randn_like zeros_like ones_like full_like frexp.Tensor binary_cross_entropy index_put _unsafe_index_put",
)
ROW_MAJOR = _laid_out("rows", "tril triu masked_fill.Tensor mvlgamma isin.Tensor_Tensor isin.Tensor_Scalar")
ITERATED = frozenset(
    {"aten::polar", "aten::complex", "aten::rsub.Tensor"}
)  # by TensorIterator, without torch's tag of such operators


def eager_stride(func: torch._ops.OpOverload, args: tuple, shape: tuple, dtype: torch.dtype) -> tuple | None:
    """The strides of a new result of an operator for which there is no row, most on the CPU; None: torch's meta kernel knows."""
    places = zip(func._schema.arguments, args)
    operands = tuple(a for p, a in places if isinstance(a, _Tensor) or isinstance(a, _NUMBERS) and p.type.kind() == "TensorType")
    name = func.name()
    if name == "aten::rsub.Tensor":
        operands = operands[::-1]  # eager subtracts the first operand from the second
    tensors = [a.m for a in operands if isinstance(a, _Tensor)]
    if name == "aten::ldexp.Tensor" and len(tensors) == 2 and tensors[1].dtype.is_floating_point and 0 not in shape:
        x, other = tensors  # a product with powers, which are row-major
        return elementwise_stride(shape, [x, new(other.shape, None, dtype, other.device)]) or contiguous_stride(shape)
    if not tensors or 0 in shape:
        return None
    if name in ROW_MAJOR:
        return contiguous_stride(shape)
    if device_of(tensors).type != "cpu":
        return None
    if name in LIKE_FIRST:
        m = tensors[0]
        return (like_stride(m) or contiguous_stride(shape)) if m.shape == shape else None
    if torch.Tag.pointwise not in func.tags and name not in ITERATED:
        return None
    try:
        made = elementwise(operands, promoted(operands) if name in ITERATED else dtype)
    except NeedsMeta:
        return None
    return made.stride if made.shape == shape else None
