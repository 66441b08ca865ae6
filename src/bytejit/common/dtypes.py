"""One table of dtypes: how torch, C++, Triton and bytejit's own text spell each."""

from __future__ import annotations

import math

import torch

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Dtype:
    """name: in text, in the loop IR and in C++ (kernels/prelude). kind: float, int, bool or complex. triton: Triton's
    type of an element; pointer: of a pointer to it; "" where Triton has none. onnx: the number of ONNX's type of an element."""

    name: str
    torch: torch.dtype
    kind: str
    triton: str = ""
    pointer: str = ""
    onnx: int = 0


TABLE = (
    Dtype("f64", torch.float64, "float", "float64", "*fp64", 11),
    Dtype("f32", torch.float32, "float", "float32", "*fp32", 1),
    Dtype("f16", torch.float16, "float", "float16", "*fp16", 10),
    Dtype("bf16", torch.bfloat16, "float", "bfloat16", "*bf16", 16),
    Dtype("i64", torch.int64, "int", "int64", "*i64", 7),
    Dtype("i32", torch.int32, "int", "int32", "*i32", 6),
    Dtype("i16", torch.int16, "int", "int16", "*i16", 5),
    Dtype("i8", torch.int8, "int", "int8", "*i8", 3),
    Dtype("u8", torch.uint8, "int", "uint8", "*u8", 2),
    Dtype("b8", torch.bool, "bool", "int1", "*i1", 9),  # in a byte
    Dtype("c64", torch.complex64, "complex"),
    Dtype("c128", torch.complex128, "complex"),
)
SHORT = {d.torch: d.name for d in TABLE}  # how a dtype is printed
DTYPES = {d.name: d for d in TABLE if d.triton}  # those that kernels compute
BY_POINTER = {d.pointer: d.torch for d in DTYPES.values()}
ONNX = {d.torch: d.onnx for d in TABLE if d.onnx}
SIZES = {n: d.torch.itemsize for n, d in DTYPES.items()}  # Units: bytes of an element in memory
FLOATS = frozenset(n for n, d in DTYPES.items() if d.kind == "float")
INTS = frozenset(n for n, d in DTYPES.items() if d.kind == "int")
NARROW = frozenset({"f16", "bf16"})  # computed in f32: loads are widened by `to`, stores narrowed by `narrow`
# the same sets of torch's dtypes
FLOAT_DTYPES = frozenset(DTYPES[n].torch for n in FLOATS)
INT_DTYPES = frozenset(DTYPES[n].torch for n in INTS)
NARROW_DTYPES = frozenset(DTYPES[n].torch for n in NARROW)
WIDE_DTYPES = FLOAT_DTYPES - NARROW_DTYPES
COMPLEX_DTYPES = frozenset(d.torch for d in TABLE if d.kind == "complex")
INDEX_DTYPES = frozenset({torch.int64, torch.int32})  # of tensors of indices


def short_dtype(dtype: torch.dtype) -> str:
    """`f32` for torch.float32; a dtype without a short name prints as torch names it."""
    return SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """torch.float32 for `f32`. Raises: KeyError for a dtype that kernels do not compute."""
    return DTYPES[name].torch


def itemsize(name: str) -> int:
    """Bytes of one stored element. Raises: KeyError for a dtype that kernels do not compute."""
    return SIZES[name]


def acc_dtype(name: str) -> str:
    """The dtype that an element is computed in: f32 for f16 and bf16, itself otherwise."""
    return "f32" if name in NARROW else name


def holds_all(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether torch converts each number of one dtype to another."""
    if other is torch.bool or other is dtype:
        return True
    limits = torch.finfo(other) if other.is_floating_point else torch.iinfo(other)
    return holds(dtype, limits.min) and holds(dtype, limits.max)


def holds(dtype: torch.dtype, value: int | float | complex) -> bool:
    """Whether torch converts a number to a dtype: unsigned dtypes take negative integers whose absolute value they can hold."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    if isinstance(value, complex):
        return value.imag == 0 and holds(dtype, value.real)
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    least = limits.min or (-limits.max if type(value) is int else 0)
    return value == value and least <= value <= limits.max
