"""What `emit_triton` returns: the text of a Triton module, and how each kernel of a plan is launched.

A launch is `kernel[grid](*args, **constants, num_warps=warps, num_stages=stages)`. A buffer is passed as an address with an
element type; for one in `Plan.offsets` it is an address in the arena. A kernel without points has no launch; a symbolic grid
may be 0 at a call, and then nothing is launched. The launches of a call run in order on one stream. Scratch needs no
clearing. Kernels assume that an address is a multiple of 16 only where the launcher has checked it. Sizes are i64.

A kernel with `raises` sets the fault word to 2 where an index is out of range, and reads element 0 instead; it never clears
the word. The launcher looks at the word at a later call, without waiting for the device, as torch's device asserts are seen
at the next synchronisation. Integer division by zero does not raise on CUDA, as in eager.
"""

from __future__ import annotations

from typing import Any

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Arg:
    """One argument of a kernel. kind: buffer (name: the plan's), size (name: the symbol), scratch (offset: bytes from the
    start of the scratch block), fault (an i32 that is set to a code of `FAULTS`, codegen/emit/call_source.py). type: as in
    Triton's signatures: "*fp32", "i64". Units: offset in bytes."""

    kind: str
    name: str
    type: str
    offset: Any = 0

    def __repr__(self) -> str:
        return f"{self.kind} {self.name or self.offset}: {self.type}"


@light_dataclass(frozen=True)
class LaunchConfig:
    """One way to run a kernel: its constexpr parameters in order, warps, pipeline stages, and the grid that goes with
    them (ints, or index expressions over size symbols)."""

    constants: tuple[tuple[str, int], ...]
    warps: int
    stages: int
    grid: tuple

    def __repr__(self) -> str:
        return f"config {' '.join(f'{n}={v}' for n, v in self.constants)} warps={self.warps} grid={self.grid}"


@light_dataclass(frozen=True)
class Launch:
    """One launch of a kernel. step: position in `Plan.steps`; the launches of a step run in order. alternatives: other
    configurations with the same result. raises: it may set the fault."""

    step: int
    kernel: str
    args: tuple[Arg, ...]
    config: LaunchConfig
    alternatives: tuple[LaunchConfig, ...] = ()
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


@light_dataclass(frozen=True)
class TritonSource:
    """A Triton module and its launches. scratch: bytes of the one block that all launches use in turn (an int, or an
    index over size symbols); kernels: number of distinct ones; bytes: read and written in one call of the
    graph."""

    text: str
    launches: tuple[Launch, ...]
    scratch: Any
    kernels: int
    bytes: int

    def __repr__(self) -> str:
        return f"Triton source: {self.kernels} kernels, {len(self.launches)} launches, {self.bytes} bytes a call"
