"""The scheduled plan: all that a printer reads."""

from __future__ import annotations

from dataclasses import field

from bytejit.codegen.loops.ir import Buffer, Extern, Kernel, MutationCopy, Result
from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class NestSchedule:
    """How one nest runs. order: its axes, outermost first. vector: the axis in SIMD lanes: the last of `order`, or
    the kernel's blocked axis (then innermost of all), or None (scalar). lanes: elements in a vector, for
    the widest dtype that the nest touches.
    accumulators: independent partial results of each reduction along the vector axis. tile: (axis, size) pairs to
    block for accesses that transpose; the two loops over tiles are the outermost ones, in `order`.
    """

    order: tuple[str, ...]
    vector: str | None = None
    lanes: int = 1
    accumulators: int = 1
    tile: tuple[tuple[str, int], ...] = ()


@light_dataclass(frozen=True)
class Schedule:
    """How one kernel runs.

    parallel: the axes that are collapsed to one range, which threads share: a prefix of Kernel.axes; or, when Kernel.axes is
    empty and there is one nest without reductions, the nest's first `order` axis. (): all runs on the calling thread.
    grain: a thread gets at least so many iterations of that range.
    block: (axis, size): the LAST outer axis runs in blocks of `size` (the last block may be shorter); each nest runs for a
    whole block with that axis innermost (and in lanes); refs are arrays of `size`. If the axis is in `parallel`, threads
    share whole blocks.
    split: n > 0, for few long rows: the first `order` axis of the only nest that reduces (the first nest) is divided in n
    parts, which threads share. The partial results are combined in order; then the other nests run.
    """

    parallel: tuple[str, ...]
    grain: int
    nests: tuple[NestSchedule, ...]
    block: tuple[str, int] | None = None
    split: int = 0


@light_dataclass(frozen=True)
class Call:
    """Run a kernel. reads, writes: its non-local buffers in first-use order: the pointer arguments (writes last; a
    buffer both read and written is in writes only). free: `extern` buffers dead after this step."""

    kernel: Kernel
    schedule: Schedule
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    free: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"call {self.kernel.name} reads {' '.join(self.reads)} writes {' '.join(self.writes)}"


@light_dataclass(frozen=True)
class ExternCall:
    """Run an extern; free: `extern` buffers dead after it."""

    extern: Extern
    free: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return repr(self.extern)


@light_dataclass(frozen=True)
class Plan:
    """All that a printer reads.

    offsets: temp buffer -> byte offset in the arena (a multiple of 64; buffers whose lives do not meet may share
    bytes; an in-place result has its operand's offset). arena: bytes of the one allocation, 0: none. slots: temp buffer of
    symbolic size -> slot; slot_bytes: for each slot the extents in bytes of its buffers, of which the largest counts at the
    call. symbols: size symbol -> the input (an int) that is its value; others are a dim of an input. Output buffers
    (kind `output`) are allocated fresh with their shape and stride. A kernel that can fail (`raises`) sets an error
    flag: the caller raises, and no input has been written.
    """

    inputs: tuple[str | None, ...]
    buffers: dict[str, Buffer]
    steps: tuple[Call | ExternCall, ...]
    outputs: tuple[Result, ...]
    mutations: tuple[MutationCopy, ...]
    offsets: dict[str, int]
    arena: int
    target: str  # Machine.name: "cpu", "cuda"
    slots: dict[str, int] = field(default_factory=dict)
    slot_bytes: tuple[tuple, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        calls = sum(isinstance(s, Call) for s in self.steps)
        return f"plan for {self.target}: {calls} kernels, {len(self.steps) - calls} externs, arena {self.arena} bytes"


@light_dataclass(frozen=True)
class Machine:
    """What `schedule` needs to know about a device. Units: vector_bytes, cache_bytes (a core's own) in bytes."""

    name: str = "cpu"
    threads: int = 1
    vector_bytes: int = 32
    cache_bytes: int = 512 * 1024


def writes_early(plan: Plan) -> bool:
    """Whether a kernel writes an input before a library is called, or memory is allocated, that may be lacking."""
    inputs = {b for b in plan.inputs if b is not None}
    first = next((i for i, s in enumerate(plan.steps) if isinstance(s, Call) and inputs & {*s.writes}), len(plan.steps))
    return any(isinstance(s, ExternCall) for s in plan.steps[first:])
