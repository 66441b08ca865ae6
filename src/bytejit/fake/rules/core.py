"""Rows of `fake/tensor.py`: what the frequent ATen ops give, inferred in a few microseconds.

A row is a function with the op's own signature that reads `x.m` of its tensor arguments and returns a `Meta` (or
several).
It raises `NeedsMeta` for what it does not handle; then torch's meta kernel answers, also with eager's error message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from bytejit.common.spec import contiguous_stride
from bytejit.shapes.symbols import hint

ROWS: dict[str, Callable] = {}
_ids = itertools.count(1)
_Tensor = torch.Tensor
_BOOL = torch.bool
_promote = torch.promote_types
is_inference_mode_enabled = torch.is_inference_mode_enabled


class NeedsMeta(Exception):
    """This row does not handle these arguments."""


class Store:
    """The identity of a storage. `nbytes` is its size; `written`: an op wrote into it; `inference`: its tensors are
    inference tensors.
    """

    __slots__ = ("id", "nbytes", "written", "inference")

    def __init__(self, nbytes: int) -> None:
        self.id = next(_ids)
        self.nbytes = nbytes
        self.written = False
        self.inference = is_inference_mode_enabled()

    def __repr__(self) -> str:
        return f"Store(s{self.id}, {self.nbytes} bytes)"


class Meta:
    """What a fake looks like. `offset` and `stride` in elements. Not frozen for speed alone: nobody
    writes into one.
    """

    __slots__ = ("shape", "stride", "offset", "dtype", "device", "store")

    def __init__(self, shape, stride, offset, dtype, device, store) -> None:
        self.shape, self.stride, self.offset = shape, stride, offset
        self.dtype, self.device, self.store = dtype, device, store

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.stride}, +{self.offset}, {self.dtype}, {self.device}, {self.store!r})"


def row(*names: str) -> Callable:
    """Register a function as the row of ATen ops, as `row("add.Tensor")`."""

    def register(fn):
        for name in names:
            ROWS[f"aten::{name}"] = fn
        return fn

    return register


def numel(shape: tuple) -> int:
    n = 1
    for size in shape:
        n = n * size
    return n


def device_given(device: object, default: torch.device | None) -> torch.device | None:
    """Where a `device` argument puts a tensor: "cuda" is the current GPU; None, the default."""
    if device is None:
        return default
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    return device


def new(shape: tuple, stride: tuple | None, dtype: torch.dtype, device: torch.device) -> Meta:
    """A new tensor; `stride` None is contiguous."""
    if stride is None:
        stride = contiguous_stride(shape)
    return Meta(shape, stride, 0, dtype, device, Store(numel(shape) * dtype.itemsize))


def differ(x, y) -> bool:
    """Whether two strides differ, symbolic ones at the sizes at hand and without a condition: where these differ, other
    sizes make them equal only by a dimension of size 1, whose stride says nothing."""
    if isinstance(x, int) and isinstance(y, int):
        return x != y
    return hint(x) != hint(y) or x != y


def is_one(size) -> bool:
    """Whether a size is 1 for sure."""
    return isinstance(size, int) and size == 1


def alike(a: tuple, b: tuple) -> bool:
    """Whether two shapes are equal. A 1 and a symbol are not, and are not asked: they broadcast to the symbol in any case."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if x is not y and (is_one(x) or is_one(y) or x != y):
            return False
    return True


def looks_contiguous(m: Meta) -> bool:
    """`is_contiguous` for a choice of strides, which may be another where a symbolic size is 1: asks nothing of symbols."""
    step = 1
    for size, stride in zip(reversed(m.shape), reversed(m.stride)):
        if type(size) is int and size == 1:
            continue
        if stride != step if type(stride) is type(step) is int else differ(stride, step):
            return 0 in m.shape
        step = step * size
    return True


def is_contiguous(m: Meta) -> bool:
    step = 1
    for size, stride in zip(reversed(m.shape), reversed(m.stride)):
        if is_one(size):
            continue
        if stride != step and size != 1:        # in this order: whether a symbol is 1 is asked only where it matters
            return 0 in m.shape
        step = step * size
    return True


def channels_last_stride(shape: tuple) -> tuple:
    """Strides of torch.channels_last (4 dims) and channels_last_3d (5 dims)."""
    stride = [0] * len(shape)
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        stride[dim] = step
        step = step * (shape[dim] if shape[dim] != 0 else 1)
    return tuple(stride)


def is_channels_last(m: Meta) -> bool:
    if len(m.shape) not in (4, 5):
        return False
    return all(is_one(size) or not differ(a, b) for size, a, b in zip(m.shape, m.stride, channels_last_stride(m.shape)))


def is_dense(m: Meta) -> bool:
    """Non-overlapping and dense: some order of the dims makes it contiguous. For a choice of strides."""
    step = 1
    for stride, size in sorted(((s, n) for s, n in zip(m.stride, m.shape) if not is_one(n)), key=_hints):
        if differ(stride, step):
            return False
        step = step * size
    return True


def memory_order(m: Meta) -> list[int] | None:
    """The dims, outermost first; None where symbols may order them otherwise at other sizes. For a choice of strides."""
    if not is_dense(m) and not all(type(s) is int for s in m.stride):
        return None
    return sorted(range(len(m.shape)), key=lambda d: hint(m.stride[d]), reverse=True)


def _hints(pair: tuple) -> tuple:
    return hint(pair[0]), hint(pair[1])


def wrap_dim(dim: int, rank: int) -> int:
    span = rank or 1
    if not -span <= dim < span:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {dim})")
    return dim + span if dim < 0 else dim


# --- element-wise ---------------------------------------------------------------------------------


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


def elementwise_stride(shape: tuple, metas: list[Meta]) -> tuple | None:
    """The strides that torch's TensorIterator gives a new result of `shape`; None is contiguous."""
    if all(alike(m.shape, shape) for m in metas):
        if all(looks_contiguous(m) for m in metas):
            return None
        if all(is_channels_last(m) for m in metas):
            return channels_last_stride(shape)
        stride = metas[0].stride
        if is_dense(metas[0]) and not any(differ(a, b) for m in metas for a, b in zip(m.stride, stride)):
            return stride
    return permuted_stride(shape, sorted_dims(shape, metas))


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


_SCALAR = {bool: torch.bool, int: torch.int64, float: None, complex: None}


def _category(dtype: torch.dtype) -> int:
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
            kind = _scalar_dtype(x)
            scalar = kind if scalar is None else _promote(scalar, kind)
    out = full
    for lower in (zero, scalar):
        if lower is not None:
            if out is None:
                out = lower
            elif _category(lower) > _category(out):
                out = _combine(out, lower)
    return out


def _combine(high: torch.dtype, low: torch.dtype) -> torch.dtype:
    """A lower-priority operand of a higher category: a complex one keeps the precision of the float it meets."""
    if low.is_complex and high.is_floating_point:
        return _promote(high, torch.complex32) if high is not torch.bfloat16 else torch.complex64
    return low


def _scalar_dtype(x) -> torch.dtype:
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


def elementwise(operands: tuple, dtype: torch.dtype) -> Meta:
    """A new result over tensors (others are ignored), of a dtype known already."""
    metas = [x.m for x in operands if isinstance(x, _Tensor)]
    if len(metas) == 1:
        m = metas[0]
        if looks_contiguous(m):
            return new(m.shape, None, dtype, m.device)
        shape = m.shape
        return new(shape, elementwise_stride(shape, metas), dtype, m.device)
    if not metas:
        raise NeedsMeta
    first = metas[0].shape
    shape = first if all(alike(m.shape, first) for m in metas) else broadcast([m.shape for m in metas])
    return new(shape, elementwise_stride(shape, metas), dtype, device_of(metas))


def _same_dtype(x, *rest, **options) -> Meta:
    return elementwise((x,), x.m.dtype)


def _float_dtype(x, *rest, **options) -> Meta:
    return elementwise((x,), to_float(x.m.dtype))


def _only_float(x, *rest, **options) -> Meta:
    if not x.m.dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x,), x.m.dtype)


def _bool_unary(x) -> Meta:
    return elementwise((x,), _BOOL)


def _promoting(x, y, **options) -> Meta:
    return elementwise((x, y), promoted((x, y)))


def _arith(x, y, **options) -> Meta:
    if "alpha" in options:
        raise NeedsMeta
    return elementwise((x, y), promoted((x, y)))


def _minus(x, y, **options) -> Meta:
    dtype = promoted((x, y))
    if dtype is _BOOL or options:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def _true_divide(x, y) -> Meta:
    return elementwise((x, y), to_float(promoted((x, y))))


def _divide_mode(x, y, *, rounding_mode=None) -> Meta:
    dtype = promoted((x, y))
    return elementwise((x, y), to_float(dtype) if rounding_mode is None else dtype)


def _compare_op(x, y) -> Meta:
    return elementwise((x, y), _BOOL)


def _bitwise(x, y) -> Meta:
    dtype = promoted((x, y))
    if dtype.is_floating_point or dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), dtype)


def _three(x, y, z, **options) -> Meta:
    if options or not (y.m.dtype.is_floating_point or z.m.dtype.is_floating_point):     # addcdiv of integers is refused
        raise NeedsMeta
    return elementwise((x, y, z), promoted((x, y, z)))


def _in_place(x, *operands, **options) -> Meta:
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
for _name in (
    "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt "
    "sigmoid erf erfc erfinv reciprocal lgamma digamma special_i0e sinc"
).split():
    ROWS[f"aten::{_name}"] = _float_dtype
for _name in "gelu silu mish softplus hardswish hardsigmoid elu celu log_sigmoid".split():
    ROWS[f"aten::{_name}"] = _only_float
for _name in "logical_not isnan isinf isposinf isneginf signbit".split():
    ROWS[f"aten::{_name}"] = _bool_unary
for _name in "add mul".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _arith
ROWS["aten::sub.Tensor"] = ROWS["aten::sub.Scalar"] = ROWS["aten::rsub.Scalar"] = _minus
ROWS["aten::div.Tensor"] = ROWS["aten::div.Scalar"] = ROWS["aten::atan2"] = _true_divide
ROWS["aten::div.Tensor_mode"] = ROWS["aten::div.Scalar_mode"] = _divide_mode
for _name in "maximum minimum fmax fmin floor_divide".split():
    ROWS[f"aten::{_name}"] = _promoting
for _name in (
    "remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar floor_divide.Scalar pow.Tensor_Tensor"
).split():
    ROWS[f"aten::{_name}"] = _promoting
for _name in "eq ne lt le gt ge".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _compare_op
for _name in "logical_and logical_or logical_xor".split():
    ROWS[f"aten::{_name}"] = _compare_op
for _name in "bitwise_and bitwise_or bitwise_xor".split():
    ROWS[f"aten::{_name}.Tensor"] = ROWS[f"aten::{_name}.Scalar"] = _bitwise
for _name in "addcmul addcdiv lerp.Tensor".split():
    ROWS[f"aten::{_name}"] = _three
def _float_in_place(x, *operands, **options) -> Meta:
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
def _abs(x) -> Meta:
    dtype = x.m.dtype
    return elementwise((x,), dtype.to_real() if dtype.is_complex else dtype)


@row("pow.Scalar")
def _pow_of_number(base, x) -> Meta:
    """Row-major, whatever x is (torch's meta kernel says otherwise)."""
    return new(x.m.shape, None, promoted((base, x)), x.m.device)


@row("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "copysign.Tensor", "copysign.Scalar",
     "special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def _float_of_two(x, y) -> Meta:
    """Laid out as the operands (torch's meta kernels: as what they are computed of)."""
    return elementwise((x, y), to_float(promoted((x, y))))


@row("logaddexp", "logaddexp2")
def _floats_of_two(x, y) -> Meta:
    """Of floats: laid out as the operands."""
    dtype = promoted((x, y))
    if not dtype.is_floating_point:
        raise NeedsMeta
    return elementwise((x, y), dtype)


@row("heaviside")
def _heaviside(x, y) -> Meta:
    if x.m.dtype != y.m.dtype or x.m.dtype.is_complex:
        raise NeedsMeta
    return elementwise((x, y), x.m.dtype)


@row("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal(mean, std=1.0, *, generator=None) -> Meta:
    """Row-major, whatever the operands are."""
    metas = [x.m for x in (mean, std) if isinstance(x, _Tensor)]
    if not all(m.dtype.is_floating_point for m in metas):
        raise NeedsMeta
    return new(broadcast([m.shape for m in metas]), None, metas[0].dtype, device_of(metas))


@row("pow.Tensor_Scalar")
def _pow_scalar(x, exponent) -> Meta:
    return elementwise((x,), promoted((x, exponent)))


@row("where.self")
def _where(condition, x, y) -> Meta:
    if condition.m.dtype is not _BOOL:
        raise NeedsMeta
    return elementwise((condition, x, y), promoted((x, y)))


@row("clamp", "clamp_min", "clamp_max")
def _clamp(x, *bounds, **named) -> Meta:
    numbers = (*bounds, *named.values())
    dtype = promoted((x, *numbers))
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not _BOOL:
        info = torch.iinfo(dtype)
        if any(type(n) is int and not info.min <= n <= info.max for n in numbers):
            raise NeedsMeta         # torch 2.15 raises for some
    return elementwise((x,), dtype)


@row("clamp.Tensor")
def _clamp_tensor(x, low=None, high=None) -> Meta:
    present = tuple(t for t in (x, low, high) if t is not None)
    if any(t.m.device != x.m.device for t in present):          # eager takes no number of the CPU's here
        raise RuntimeError("Expected all tensors to be on the same device")
    return elementwise(present, promoted(present))


@row("masked_fill.Scalar")
def _masked_fill(x, mask, value) -> Meta:
    if mask.m.dtype is not _BOOL:
        raise NeedsMeta
    shape = broadcast([x.m.shape, mask.m.shape])
    if shape != x.m.shape or not is_contiguous(x.m):
        raise NeedsMeta
    return new(shape, None, x.m.dtype, x.m.device)


@row("copy_")
def _copy(x, src, non_blocking=False) -> Meta:
    if broadcast([x.m.shape, src.m.shape]) != x.m.shape:
        raise NeedsMeta
    return x.m
