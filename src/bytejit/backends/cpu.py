"""The target of the CPU: C++ text, built or found in the cache, and the Python function that calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import torch

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.cpu.emit import CppSource, emit_cpp
from bytejit.codegen.cpu.schedule import schedule
from bytejit.codegen.emit.call import CallPrinter
from bytejit.codegen.libraries.convolution import match_plain_backward, match_plain_conv
from bytejit.codegen.libraries.linear import match_linear
from bytejit.codegen.libraries.pass_list import CPU_PASSES, JOINT_PASSES
from bytejit.codegen.libraries.written_attention import match_any_attention
from bytejit.codegen.loops.ir import Loops
from bytejit.codegen.loops.passes.fuse import FUSE
from bytejit.codegen.loops.plan import Machine, Plan
from bytejit.common.heap import keep_freed_memory
from bytejit.common.options import Options
from bytejit.kernels import attention, conv, conv_grad, gemm
from bytejit.kernels.build_cpp import Built, build
from bytejit.kernels.json_cache import json_cache
from bytejit.kernels.machine import cpu
from bytejit.kernels.own_library import OwnLibrary
from bytejit.kernels.tune import Tuner

from .target import CompiledGraph, Stats, Target

# library -> what finds a call in a graph that the library can run
OWN_LIBRARIES: dict[OwnLibrary, Callable[[torch.fx.Node], Any]] = {
    conv.OWN: match_plain_conv,
    conv_grad.OWN: match_plain_backward,
    gemm.OWN: match_linear,
    attention.OWN: match_any_attention,
}


def cpu_machine(threads: int) -> Machine:
    """This machine as `schedule` wants it."""
    c = cpu()
    return Machine("cpu", threads, c.vector_bytes, c.l2 or 512 * 1024)


def printed(plan: Plan) -> CppSource:
    """The C++ of a plan, in as many units as can be built side by side."""
    return emit_cpp(plan, max_units=max(1, min(4, cpu().cores)))


def compile_plan(
    plan: Plan,
    options: Options,
    aten: Aten | None = None,
    source: CppSource | None = None,
) -> CompiledGraph:
    """Build a plan. aten: the graph that it is of; without it `call` returns the flat tuple of the plan. source:
    `printed(plan)` if it is there already.

    `call` must run without gradients: library calls write into planned memory. Raises: NoCompiler, BuildFailed.
    """
    source = source or printed(plan)
    built = build(source.units, options) if source.units else Built((), 0, 0.0)
    runs = [built.calls[r.unit][r.function] for r in source.runs]
    own = {name: f for library in OWN_LIBRARIES for name, f in library.built.items()}
    if aten is None:
        made = CallPrinter(plan, source, runs, overrides=own).print(None, False)
    else:
        made = CallPrinter(plan, source, runs, aten.constants, own, aten.old_grads(), aten.is_boxed()).print(
            aten.outputs, aten.single
        )
    stats = Stats(
        source.kernels, len(source.runs), made.externs, source.bytes, plan.arena, built.seconds, built.cached == len(source.units)
    )
    return CompiledGraph(made.make(), "\n".join(source.units), made.text, stats, built.files, made.library_results)


class CpuTarget(Target):
    """The CPU of this machine, in C++ with OpenMP."""

    name = "cpu"
    suffix = ".cpp"
    aten_passes = CPU_PASSES
    joint_passes = JOINT_PASSES
    loop_passes = FUSE

    def __init__(self, device: torch.device, options: Options) -> None:
        super().__init__(device, options)
        keep_freed_memory()  # before anything is timed

    def machine(self) -> Machine:
        return cpu_machine(torch.get_num_threads())

    def tuner(self) -> Tuner:
        without = () if self.options.winograd else ("conv_own_winograd",)
        return Tuner(json_cache("choices", self.options.cache_path), enabled=True, without=without)

    def prepare_libraries(self, aten: Aten) -> None:
        """Build our own matrix product, convolution and attention, on first use, where the graph has such calls."""
        wanted = [lib for lib, match in OWN_LIBRARIES.items() if any(match(n) is not None for n in aten.graph.nodes)]
        if len(wanted) > 1:
            build([library.unit for library in wanted], self.options)  # side by side
        for library in wanted:
            library.register(self.options)

    def plan_key(self) -> tuple:
        return (astuple(self.machine()),)

    def schedule(self, loops: Loops) -> Plan:
        return schedule(loops, self.machine())

    def emit(self, plan: Plan) -> CppSource:
        return printed(plan)

    def launch(self, plan: Plan, source: CppSource, aten: Aten) -> CompiledGraph:
        return compile_plan(plan, self.options, aten, source)
