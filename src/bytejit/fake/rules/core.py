"""The table of shape rules: what frequent ATen ops return, inferred in a few microseconds.

A row is a function with the op's own signature that reads `x.m` of its tensor arguments and returns a `Meta` (or
several).
It raises `NeedsMeta` for what it does not handle; then torch's meta kernel infers, also with eager's error message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch

from bytejit.common.spec import channels_last_stride, contiguous_stride, lies_dense
from bytejit.shapes.symbols import hint

ROWS: dict[str, Callable] = {}
# Where an op has a row in the op table and a rule that is not made of a row: what the rule says that the row does not. A row
# of a library's call has no more than its name, and says nothing.
BESIDE = {
    "sizes": "the row takes the sizes of its result from the node; the rule computes them from the arguments",
    "layout": "the row computes elements, wherever they lie; the rule says how eager's kernel lays them out",
    "results": "the row makes those of several results that are read; the rule says which there are, and their dtypes",
}
REASONS: dict[str, str] = {}  # such an op -> the key of what its rule says
_ids = itertools.count(1)
_Tensor = torch.Tensor
_BOOL = torch.bool
_promote = torch.promote_types
is_inference_mode_enabled = torch.is_inference_mode_enabled


class NeedsMeta(Exception):
    """This row does not handle these arguments."""


class FakeStorage:
    """The identity of a storage. `nbytes` is its size; `written`: how many ops wrote into it; `inference`: its tensors are
    inference tensors.
    """

    __slots__ = ("id", "nbytes", "written", "inference")

    def __init__(self, nbytes: int) -> None:
        self.id = next(_ids)
        self.nbytes = nbytes
        self.written = 0
        self.inference = is_inference_mode_enabled()

    def __repr__(self) -> str:
        return f"FakeStorage(s{self.id}, {self.nbytes} bytes)"


class Meta:
    """What a fake looks like. `offset` and `stride` in elements. Not frozen for speed alone: nobody
    writes into one.
    """

    __slots__ = ("shape", "stride", "offset", "dtype", "device", "store")

    def __init__(
        self, shape: tuple, stride: tuple, offset: Size, dtype: torch.dtype, device: torch.device, store: FakeStorage
    ) -> None:
        self.shape, self.stride, self.offset = shape, stride, offset
        self.dtype, self.device, self.store = dtype, device, store

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.stride}, +{self.offset}, {self.dtype}, {self.device}, {self.store!r})"


class LaidOut(Protocol):
    """Anything with sizes and strides: a `Meta`, a `Spec`."""

    @property
    def shape(self) -> tuple: ...

    @property
    def stride(self) -> tuple: ...


class HasMeta(Protocol):
    """A fake tensor, as a row sees it."""

    m: Meta

    def is_conj(self) -> bool: ...


Size: TypeAlias = int | torch.SymInt
Number = bool | int | float | complex | torch.SymInt | torch.SymFloat
Operand = Any  # a fake tensor, a Number, or None where the op's schema allows it


def row(*names: str, beside: str | None = None) -> Callable:
    """Register a function as the row of ATen ops, as `row("add.Tensor")`, or of ops of the namespace that a name begins with.
    beside: a key of BESIDE, where it stands beside a row of the op table. Raises: ValueError where an op has one."""

    def register(fn: Callable) -> Callable:
        for name in (n if "::" in n else f"aten::{n}" for n in names):
            if name in ROWS:
                raise ValueError(f"{name} has a shape rule: {ROWS[name].__qualname__}")
            ROWS[name] = fn
            if beside is not None:
                REASONS[name] = beside
        return fn

    return register


def numel(shape: tuple) -> int:
    n = 1
    for size in shape:
        n = n * size
    return n


def device_given(device: torch.device | str | int | None, default: torch.device | None) -> torch.device | None:
    """Where a `device` argument puts a tensor: "cuda" is the current GPU; None, the default."""
    if device is None:
        return default
    given = torch.device(device)
    if given.type == "cuda" and given.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    return given


def new(shape: tuple, stride: tuple | None, dtype: torch.dtype, device: torch.device) -> Meta:
    """A new tensor; `stride` None is contiguous."""
    if stride is None:
        stride = contiguous_stride(shape)
    return Meta(shape, stride, 0, dtype, device, FakeStorage(numel(shape) * dtype.itemsize))


def differ(x: Size, y: Size) -> bool:
    """Whether two strides differ, symbolic ones at the sizes at hand and without a condition: where these differ, other
    sizes make them equal only by a dimension of size 1, whose stride says nothing."""
    if isinstance(x, int) and isinstance(y, int):
        return x != y
    return hint(x) != hint(y) or x != y


def is_one(size: Size) -> bool:
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
        if stride != step and size != 1:  # in this order: whether a symbol is 1 is asked only where it matters
            return 0 in m.shape
        step = step * size
    return True


def is_channels_last(m: Meta) -> bool:
    if len(m.shape) not in (4, 5):
        return False
    return all(is_one(size) or not differ(a, b) for size, a, b in zip(m.shape, m.stride, channels_last_stride(m.shape)))


def is_dense(m: LaidOut) -> bool:
    """Non-overlapping and dense: some order of the dims makes it contiguous. For a choice of strides."""
    return lies_dense(m.shape, m.stride, hint, differ)


def memory_order(m: Meta) -> list[int] | None:
    """The dims, outermost first; None where symbols may order them otherwise at other sizes. For a choice of strides."""
    if not is_dense(m) and not all(type(s) is int for s in m.stride):
        return None
    return sorted(range(len(m.shape)), key=lambda d: hint(m.stride[d]), reverse=True)
