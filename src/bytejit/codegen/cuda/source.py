"""What `emit_triton` answers: the text of a Triton module, and how each kernel of a plan is launched."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: IR dtype -> Triton's element type
TYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
         "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "int1"}
#: IR dtype -> the pointer type of a kernel's signature
POINTERS = {"f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i64": "*i64", "i32": "*i32",
            "i16": "*i16", "i8": "*i8", "u8": "*u8", "b8": "*i1"}


@dataclass(frozen=True)
class Arg:
    """One argument of a kernel. kind: buffer (name: the plan's), size (name: the symbol), scratch (offset: bytes from the
    start of the scratch block), fault (an i32 that is set to a code of `emit_call.FAULTS`). type: as in Triton's
    signatures: "*fp32", "i64". Units: offset in bytes."""
    kind: str
    name: str
    type: str
    offset: Any = 0

    def __repr__(self) -> str:
        return f"{self.kind} {self.name or self.offset}: {self.type}"


@dataclass(frozen=True)
class Config:
    """One way to run a kernel: its constexpr parameters in order, warps, pipeline stages, and the grid that goes with
    them (ints, or index expressions over size symbols)."""
    constants: tuple[tuple[str, int], ...]
    warps: int
    stages: int
    grid: tuple

    def __repr__(self) -> str:
        return f"config {' '.join(f'{n}={v}' for n, v in self.constants)} warps={self.warps} grid={self.grid}"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel. step: position in `Plan.steps`; the launches of a step run in order. alternatives: other
    configurations that answer the same. raises: it may set the fault."""
    step: int
    kernel: str
    args: tuple[Arg, ...]
    config: Config
    alternatives: tuple[Config, ...] = ()
    raises: bool = False

    @property
    def grid(self) -> tuple:
        return self.config.grid

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        return self.config.constants

    @property
    def warps(self) -> int:
        return self.config.warps

    @property
    def stages(self) -> int:
        return self.config.stages

    def __repr__(self) -> str:
        return f"launch {self.kernel} of step {self.step}: {self.config}"


@dataclass(frozen=True)
class TritonSource:
    """A Triton module and its launches. scratch: bytes of the one block that all launches use in turn (an int, or an
    index over size symbols); kernels: distinct ones; bytes: traffic of one call of the graph."""
    text: str
    launches: tuple[Launch, ...]
    scratch: Any
    kernels: int
    bytes: int

    def __repr__(self) -> str:
        return f"Triton source: {self.kernels} kernels, {len(self.launches)} launches, {self.bytes} bytes a call"
