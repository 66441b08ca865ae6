"""What a guard checks of a tensor, and its check as Python text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bytejit.common.dtypes import short_dtype
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.overriding import overrides, unasked
from bytejit.common.spec import contiguous_stride

from .references import Ref, SourcePrinter


@light_dataclass(frozen=True, slots=True)
class TensorCheck:
    """What must hold of a tensor. None means: not checked.

    Shapes and strides in elements. A size -n is symbolic: n or more. A None inside the stride is not checked; a stride
    -1-k is the size of dimension k times the stride that is wanted there. No stride is checked where a symbolic size is 1.
    """

    type: type = torch.Tensor
    dtype: torch.dtype | None = None
    shape: tuple | None = None
    stride: tuple | None = None
    device: torch.device | None = None
    requires_grad: bool | None = None
    conj: bool = False
    neg: bool = False

    @staticmethod
    def of(
        tensor: torch.Tensor, requires_grad: bool = True, shape: tuple | None = None, stride: tuple | None = None
    ) -> TensorCheck:
        """The check for a strided tensor; `shape` and `stride` where sizes of it are symbolic.

        `requires_grad=False` leaves that flag unchecked: right where the trace ran with gradients off.
        """
        shape = tuple(tensor.shape) if shape is None else shape
        stride = tuple(tensor.stride()) if stride is None else stride
        return TensorCheck(
            type(tensor),
            tensor.dtype,
            shape,
            stride,
            tensor.device,
            tensor.requires_grad if requires_grad else None,
            conj=tensor.is_conj(),
            neg=tensor.is_neg(),
        )

    def with_sizes(self, shape: tuple, stride: tuple) -> TensorCheck:
        """A copy with another shape and stride."""
        return replace(self, shape=shape, stride=stride)

    def __repr__(self) -> str:
        shape = "?" if self.shape is None else ",".join(str(s) if s >= 0 else f"{-s}+" for s in self.shape)
        text = f"{'any' if self.dtype is None else short_dtype(self.dtype)}[{shape}]"
        plain = (  # contiguous; of a symbolic size the stride before it follows
            self.shape is not None
            and self.stride is not None
            and all(a in (None, b, -2 - i) for i, (a, b) in enumerate(zip(self.stride, contiguous_stride(self.shape))))
        )
        if self.stride is not None and not plain:
            text += f"({','.join('?' if s is None else str(s) for s in self.stride)})"
        if self.device is not None and self.device.type != "cpu":
            text += f"@{self.device}"
        if self.requires_grad is not None:
            text += " grad" if self.requires_grad else " no grad"
        return text if self.type is torch.Tensor else f"{self.type.__name__} {text}"


def identity(at: SourcePrinter, obj: Any) -> str:
    """Right side of an `is`."""
    if obj is None or obj is True or obj is False or obj is Ellipsis:
        return repr(obj)
    return at.ref(obj) if isinstance(obj, Ref) else at.bind(obj)


def _dims(text: str, values: tuple) -> list[str]:
    return [f"len({text}) == {len(values)}"] + [
        f"{text}[{i}] == {v}" if v >= 0 else f"{text}[{i}] >= {-v}" for i, v in enumerate(values)
    ]


def _steps(x: str, shape: tuple | None, values: tuple) -> list[str]:
    """Checks of strides of which some follow from sizes, are not checked, or not where the size is 1."""

    def wanted(i: int) -> str:
        v = values[i]
        return f"{x}.stride({i})" if v is None else str(v) if v >= 0 else f"{x}.shape[{-1 - v}] * {wanted(-1 - v)}"

    parts = [(i, f"{x}.stride({i}) == {wanted(i)}") for i, v in enumerate(values) if v is not None]
    return [f"({x}.shape[{i}] == 1 or {part})" if shape and shape[i] == -1 else part for i, part in parts]


def _contiguous(shape: tuple | None, stride: tuple) -> bool:
    """Whether `is_contiguous()` is equivalent to checking the strides of a tensor of this shape; some strides are not checked."""
    if shape is None or any(s < 1 for s in shape):
        return False
    return all(a == b if n > 1 else a is None for n, a, b in zip(shape, stride, contiguous_stride(shape), strict=True))


def neg_possible(check: TensorCheck) -> bool:
    """Whether a tensor with these strides can be a lazily negated view: those are x.conj().imag, of even strides."""
    if check.dtype is not None and not (check.dtype.is_floating_point or check.dtype.is_complex):
        return False
    if check.shape is None or check.stride is None:
        return True
    long = [st for s, st in zip(check.shape, check.stride) if s > 1 or s < 0]
    return 0 in check.shape or all(st is None or st < 0 or st % 2 == 0 for st in long)


def check_of(c: TensorCheck) -> Callable[[torch.Tensor], bool]:
    """The check as a function: of a tensor whose attributes an override would be told of."""
    at = SourcePrinter()
    parts = tensor_checks(at, "x", c, told=True)
    return eval(f"lambda x: {' and '.join(parts)}", at.env)


def tensor_checks(at: SourcePrinter, x: str, c: TensorCheck, told: bool = False) -> list[str]:
    """The parts of a tensor's check, cheapest and likeliest to fail first. `x` must be a name."""
    if not told and overrides(c.type):
        return [f"type({x}) is {identity(at, Ref(c.type))}", f"{at.bind(unasked(check_of(c)))}({x})"]
    parts = [f"type({x}) is {identity(at, Ref(c.type))}"]
    if c.shape is not None:
        dynamic = any(s < 0 for s in c.shape)
        parts += _dims(f"{x}.shape", c.shape) if dynamic else [f"{x}.shape == {at.bind(c.shape)}"]
    if c.dtype is not None:
        parts.append(f"{x}.dtype is {at.bind(c.dtype)}")
    if c.requires_grad is not None:
        parts.append(f"{x}.requires_grad" if c.requires_grad else f"not {x}.requires_grad")
    # an oneDNN tensor has shape and strides like any other
    parts.append(f"{x}.layout is {at.bind(torch.strided)}")
    if c.device is not None:
        parts.append(f"{x}.is_cpu" if c.device.type == "cpu" else f"{x}.device == {at.bind(c.device)}")
    if c.stride is not None:
        if _contiguous(c.shape, c.stride):
            parts.append(f"{x}.is_contiguous()")  # is cheaper
        elif any(s is None or s < 0 for s in c.stride):
            parts += _steps(x, c.shape, c.stride)
        else:
            parts.append(f"{x}.stride() == {at.bind(c.stride)}")
    if c.dtype is None or c.dtype.is_complex:
        parts.append(f"{x}.is_conj()" if c.conj else f"not {x}.is_conj()")
    if c.neg or neg_possible(c):
        parts.append(f"{x}.is_neg()" if c.neg else f"not {x}.is_neg()")
    return parts
