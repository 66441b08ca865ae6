"""What rows of the table write with: ONNX nodes, constants, inputs for sizes. Does not import onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real
from bytejit.common.dtypes import ONNX
from bytejit.common.light_dataclass import light_dataclass


class Cannot(Exception):
    """A call cannot be written in ONNX. The message says why; users see it in `bytejit.counters["externs"]`."""


@light_dataclass(frozen=True)
class Tensor:
    """A value of the ONNX graph. known: its shape; None for a value between the nodes of one row, whose shape no row needs."""

    name: str
    dtype: torch.dtype
    known: tuple | None = None

    @property
    def shape(self) -> tuple:
        """The shape. Raises: AssertionError if it is not known."""
        assert self.known is not None, self.name
        return self.known


@light_dataclass(frozen=True)
class OnnxNode:
    """A node of the ONNX graph. A missing input is "". attributes: numbers, texts, lists of numbers."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]


@dataclass
class ModelWriter:
    """Collects the nodes of one model. ops: in order; constants: by name; sizes: size or float of the call -> the name of the
    model's input that it becomes."""

    ops: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: dict[Index | Real, str] = field(default_factory=dict)
    known: dict[tuple, Tensor] = field(default_factory=dict)
    count: int = 0

    def name(self) -> str:
        """A name that no other value of the model has."""
        self.count += 1
        return f"v{self.count}"

    # ---- nodes -------------------------------------------------------------------------------------------------------
    def op(self, kind: str, *inputs: Any, dtype: torch.dtype | None = None, **attributes: Any) -> Tensor:
        """A node with one result. inputs: tensors, numbers (of the first tensor's dtype), None (left out); dtype: of the
        result where it is not the first tensor's."""
        return self.several(kind, [dtype], *inputs, **attributes)[0]

    def several(self, kind: str, dtypes: Sequence[torch.dtype | None], *inputs: Any, **attributes: Any) -> list[Tensor]:
        """A node with results of these dtypes."""
        first = next((x.dtype for x in inputs if isinstance(x, Tensor)), torch.float32)
        given = ["" if x is None else x.name if isinstance(x, Tensor) else self.scalar(x, first).name for x in inputs]
        while given and not given[-1]:
            given.pop()
        made = [Tensor(self.name(), dtype or first) for dtype in dtypes]
        self.ops.append(OnnxNode(kind, tuple(given), tuple(t.name for t in made), tuple(attributes.items())))
        return made

    # ---- constants ---------------------------------------------------------------------------------------------------
    def constant(self, values: Any, dtype: torch.dtype) -> Tensor:
        """A constant tensor; equal constants are stored once."""
        made = torch.tensor(values, dtype=dtype)
        key = (dtype, tuple(made.shape), repr(values))
        if key not in self.known:
            name = f"c{len(self.constants)}"
            self.constants[name] = made
            self.known[key] = Tensor(name, dtype, tuple(made.shape))
        return self.known[key]

    def scalar(self, value: Any, dtype: torch.dtype) -> Tensor:
        """A 0-dim tensor. value: a number, or a size or float that is known only at the call."""
        if isinstance(value, (Index, Real)):
            return self.to(self.op("Squeeze", self.size(value)), dtype)
        if not isinstance(value, (bool, int, float)):
            raise Cannot(f"an argument is a {type(value).__name__}, not a number")
        return self.constant(value, dtype)

    def size(self, value: Index | Real) -> Tensor:
        """The model's input for a size or float that is known only at the call: a tensor of one element."""
        dtype = torch.float64 if isinstance(value, Real) else torch.int64
        return Tensor(self.sizes.setdefault(value, f"size{len(self.sizes)}"), dtype, (1,))

    def ints(self, values: Iterable[Any]) -> Tensor:
        """A 1-dim tensor of integers, some of which may be sizes that are known only at the call."""
        values = list(values)
        if not any(isinstance(v, Index) for v in values):
            return self.constant([int(v) for v in values], torch.int64)
        parts = [self.size(v) if isinstance(v, Index) else self.constant([v], torch.int64) for v in values]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    # ---- what many rows do -------------------------------------------------------------------------------------------
    def to(self, x: Any, dtype: torch.dtype) -> Tensor:
        """`x`, a tensor or a number, converted to a dtype."""
        if not isinstance(x, Tensor):
            return self.scalar(x, dtype)
        if x.dtype is dtype:
            return x
        made = self.op("Cast", x, dtype=dtype, to=element(dtype))
        return Tensor(made.name, dtype, x.known)

    def reshape(self, x: Tensor, shape: Iterable[Any]) -> Tensor:
        """`x` in row-major order with other sizes."""
        return self.op("Reshape", x, self.ints(shape), allowzero=1)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """`x` with its dimensions in another order."""
        return x if list(order) == sorted(order) else self.op("Transpose", x, perm=list(order))

    def apply(self, kinds: str, x: Tensor) -> Tensor:
        """Nodes of one input, one after the other: "Exp Neg"."""
        for kind in kinds.split():
            x = self.op(kind, x)
        return x


def element(dtype: torch.dtype) -> int:
    """The number of ONNX's element type for a dtype. Raises: Cannot."""
    if dtype not in ONNX:
        raise Cannot(f"ONNX has no {dtype}")
    return ONNX[dtype]


Write = Callable[..., Any]  # (writer, the spec of the result, *args of the ATen call) -> Tensor, or a tuple of them
