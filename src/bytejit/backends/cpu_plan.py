"""A plan as a callable: C++ text, built or found in the cache, and the Python function that calls it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.aten.graph import Out
from bytejit.codegen.cpu.emit import CppSource, emit_cpp
from bytejit.codegen.emit.call import emit_call
from bytejit.codegen.emit.check import Fits
from bytejit.codegen.loops.ir import Plan, Target
from bytejit.kernels import attention, conv, gemm
from bytejit.kernels.build_cpp import Built, build
from bytejit.kernels.target import cpu
from bytejit.options import Options


@dataclass(frozen=True)
class Stats:
    """kernels: distinct kernel functions; runs: calls into C++; externs: (target, reason) of each library call;
    bytes: traffic of the kernels in one call; arena: bytes kept for internal buffers; cached: no compiler ran.
    Units: bytes, seconds."""
    kernels: int
    runs: int
    externs: tuple[tuple[str, str], ...]
    bytes: int
    arena: int
    seconds: float
    cached: bool
    launches: int = 0              # on a GPU: launches of kernels and library calls in one call

    @property
    def unfused(self) -> dict[str, int]:
        """Ops that ran through torch because they have no row, with their number."""
        found: dict[str, int] = {}
        for target, reason in self.externs:
            if reason != "library":
                found[target] = found.get(target, 0) + 1
        return found


@dataclass(frozen=True)
class CompiledGraph:
    """call(*inputs): the graph's outputs. source: C++ text of all units; call_source: Python text of `call`."""
    call: Callable[..., Any]
    source: str
    call_source: str
    stats: Stats
    files: tuple[str, ...] = field(default=(), repr=False)
    fits: Fits | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        s = self.stats
        return f"compiled graph: {s.kernels} kernels in {s.runs} runs, {len(s.externs)} externs, {s.seconds:.2f} s"


def cpu_target(threads: int) -> Target:
    """This machine as `schedule` wants it."""
    c = cpu()
    return Target("cpu", threads, c.vector_bytes, c.l2 or 512 * 1024)


def printed(plan: Plan) -> CppSource:
    """The C++ of a plan, in as many units as can be built side by side."""
    return emit_cpp(plan, max_units=max(1, min(4, cpu().cores)))


def compile_plan(plan: Plan, target: Target, options: Options, constants: Sequence[Any] = (),
                 outs: Sequence[Out] | None = None, single: bool = False, source: CppSource | None = None) -> CompiledGraph:
    """Build a plan. constants, outs, single: as `Aten` holds them; without outs `call` answers the flat tuple of the
    plan. source: `printed(plan)` where it is there already.

    `call` must run without gradients: library calls write into planned memory. Raises: NoCompiler, BuildFailed.
    """
    source = source or printed(plan)
    built = build(source.units, options) if source.units else Built((), 0, 0.0)
    runs = [built.calls[r.unit][r.function] for r in source.runs]
    made = emit_call(plan, source, runs, constants, outs, single, gemm.BUILT | conv.BUILT | attention.BUILT)
    stats = Stats(source.kernels, len(source.runs), made.externs, source.bytes, plan.arena, built.seconds,
                  built.cached == len(source.units))
    return CompiledGraph(made.make(), "\n".join(source.units), made.text, stats, built.files, made.fits)
