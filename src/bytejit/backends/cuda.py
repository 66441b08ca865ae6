"""The target of a GPU: Triton text, compiled in parallel or found in the cache, and the Python around it. On the CPU: Triton's
interpreter."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import astuple

import torch

from bytejit.codegen.aten.cpu_numbers import numbers_on_gpu
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.cuda.call import CudaPrinter, rows_of
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.main import runnable
from bytejit.codegen.cuda.schedule import PERSISTENT, SMALL, schedule_cuda
from bytejit.codegen.cuda.source import Arg, TritonSource
from bytejit.codegen.libraries.gpu_pass_list import GPU_JOINT_PASSES, GPU_PASSES
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Loops
from bytejit.codegen.loops.memory import extent
from bytejit.codegen.loops.passes.fuse import FUSE_LAUNCHES
from bytejit.codegen.loops.plan import Machine, Plan
from bytejit.codegen.ops.extern import FAST
from bytejit.common import logs, registry, sorted_sums
from bytejit.common.graph_info import report_of
from bytejit.common.options import Options
from bytejit.kernels import build_triton, cuda_launch, flex_triton, interpret, matmul_triton, other_streams, sorted_sums_triton
from bytejit.kernels.build_cpp import ahead
from bytejit.kernels.json_cache import json_cache
from bytejit.kernels.tune import Tuner
from bytejit.kernels.tune_gpu import GpuTuner
from bytejit.kernels.workers import workers

from .recording import FEW, Told, how_of, record_graph
from .target import CompiledGraph, Stats, Target

FAST |= {
    "bytejit.gpu_linear.default": matmul_triton.gpu_linear,
    "bytejit.gpu_flex.default": flex_triton.gpu_flex,
    "bytejit.sort_places.default": sorted_sums.sort_places,
    "bytejit.add_sorted.default": sorted_sums_triton.add_sorted,
}
LEAST = (8, 0)  # compute capability that kernels are built for
INTERPRETED = Machine("cuda", 132, 16, 50 << 20)  # what the interpreter pretends to be


@functools.cache
def lacks(device: int) -> str:
    """Returns in one line why kernels cannot be built for this GPU; "" when they can."""
    reason = lacks_triton()
    if reason:
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < LEAST:
        return f"the GPU is sm_{major}{minor}, kernels need sm_80"
    return ""


def lacks_triton() -> str:
    """The message when triton is missing; "" where it is installed."""
    return "" if build_triton.triton_version() else "triton is not installed (pip install 'bytejit[gpu]')"


def arch_of(device: int) -> int:
    """90 for compute capability 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@functools.cache
def cuda_machine(device: int) -> Machine:
    """A GPU as `schedule_cuda` wants it."""
    facts = torch.cuda.get_device_properties(device)
    return Machine("cuda", facts.multi_processor_count, 16, getattr(facts, "L2_cache_size", 0) or 32 << 20)


def begin(device: int, options: Options) -> None:
    """Start the compile workers and the build of the launcher, so that they are ready when the kernels are printed."""
    workers().warm(arch_of(device))
    ahead(cuda_launch.UNIT, options)


def early_on(device: torch.device) -> bool:
    """Whether kernels may begin before the one in front of them has ended."""
    return device.type == "cuda" and arch_of(device.index) >= cuda_launch.EARLY


def printed(plan: Plan, device: torch.device) -> TritonSource:
    """The Triton kernels of a plan for a device."""
    return emit_triton(plan, early=early_on(device))


def compile_plan_cuda(
    plan: Plan,
    device: torch.device,
    options: Options,
    aten: Aten | None = None,
    source: TritonSource | None = None,
) -> CompiledGraph:
    """Build a plan for a GPU, or, on the CPU, for Triton's interpreter. aten: the graph that it is of; without it `call`
    returns the flat tuple of the plan. source: `printed(plan, device)` if it is there already.

    `call` must run without gradients. Raises: NoCompiler, NoDriver, BuildFailed.
    """
    if aten is not None and aten.old_grads() and device.type == "cuda":
        other_streams.interposed()
    source = source or printed(plan, device)
    rows = rows_of(plan, source)
    files: tuple[str, ...] = ()
    if device.type == "cpu":
        runs = interpret.build(source, rows, functools.partial(span, plan, source)) if rows else ()
        pairs, seconds, cached = [(r, r) for r in runs], 0.0, True
    elif rows:
        extents = functools.partial(span, plan, source, sizes={})
        built = build_triton.build(source, rows, device.index, options, extents)
        pairs, seconds, files = list(zip(built.runs, built.unaligned)), built.seconds, built.files
        cached = built.cached == built.kernels
    else:
        pairs, seconds, cached = [], 0.0, True
    printer = CudaPrinter(plan, rows, pairs, device, source.scratch, aten)
    made = printer.print(None, False) if aten is None else printer.print(aten.outputs, aten.single)
    stats = Stats(
        source.kernels,
        len(rows),
        made.externs,
        source.bytes,
        plan.arena,
        seconds,
        cached,
        len(source.launches) + len(made.externs),
    )
    text = runnable(plan, source) if options.debug else source.text
    return CompiledGraph(made.make(), text, made.text, stats, files, made.library_results, made.numbers)


def span(plan: Plan, source: TritonSource, arg: Arg, sizes: dict[str, int]) -> int:
    """Bytes from where an argument of a launch begins to its end."""
    if arg.kind == "fault":
        return 4
    if arg.kind == "scratch":
        return ix.evaluate(source.scratch, sizes) - ix.evaluate(arg.offset, sizes)
    return ix.evaluate(extent(plan.buffers[arg.name]), sizes)


class CudaTarget(Target):
    """One GPU, in Triton. room: elements of a row that one program of a plan may hold."""

    name = "cuda"
    suffix = ".py"
    host = "cpu"
    records = True
    aten_passes = GPU_PASSES
    joint_passes = GPU_JOINT_PASSES
    loop_passes = FUSE_LAUNCHES
    room = PERSISTENT

    def unavailable(self) -> str:
        """Returns why this GPU gets no kernels; "" when it does, and then the compile workers start."""
        reason = lacks(self.device.index)
        if not reason:
            begin(self.device.index, self.options)
        return reason

    def machine(self) -> Machine:
        return cuda_machine(self.device.index)

    def numbers_in_memory(self) -> bool:
        """Whether graphs are recorded: one recording then serves all values of the numbers."""
        return bool(how_of(self.options))

    def prepare(self, aten: Aten) -> Aten:
        """Numbers that only the GPU reads are made there."""
        return numbers_on_gpu(aten, self.device)

    def tuner(self) -> Tuner:
        made = GpuTuner(json_cache("choices", self.options.cache_path), self.device.index)
        if self.options.tune:
            matmul_triton.register()
            made.products = matmul_triton
        return made

    def plan_key(self) -> tuple:
        return astuple(self.machine()), self.room, early_on(self.device)

    def schedule(self, loops: Loops) -> Plan:
        return schedule_cuda(loops, self.machine(), self.room)

    def emit(self, plan: Plan) -> TritonSource:
        return printed(plan, self.device)

    def launch(self, plan: Plan, source: TritonSource, aten: Aten) -> CompiledGraph:
        return compile_plan_cuda(plan, self.device, self.options, aten, source)

    def smaller(self, error: Exception) -> Target | None:
        """The same with smaller tiles, once; then nothing: the graph runs through torch, counted."""
        logs.warn_once(f"a GPU kernel, {self.room}", str(error))
        if self.room == SMALL:
            registry.count("fallbacks", "a graph runs through torch: a GPU kernel cannot be built")
            return None
        registry.count("fallbacks", "a graph is planned with smaller tiles: a GPU kernel cannot be built")
        made = copy.copy(self)
        made.room = SMALL
        return made

    def replay(self, gm: torch.fx.GraphModule, aten: Aten, call: Callable) -> Callable:
        """The callable behind a CUDA graph, as the mode says."""
        how, stats = how_of(self.options), report_of(gm).stats
        launches = stats.launches if stats is not None else FEW  # none: the graph runs through torch
        if how == "auto" and launches < FEW:
            reason = f"not recorded: {launches} launches, fewer than {FEW}"
            registry.count("cudagraphs", reason)
            Told(gm, self.options)(reason)
            return call
        return record_graph(gm, aten, call, self.device.index, how)


class InterpretedTarget(CudaTarget):
    """The CPU, with Triton kernels in Triton's interpreter: for tests without a GPU. No part of a graph is another device's."""

    host = ""
    records = False

    def unavailable(self) -> str:
        return lacks_triton()

    def machine(self) -> Machine:
        return INTERPRETED

    def prepare(self, aten: Aten) -> Aten:
        return aten

    def tuner(self) -> Tuner:
        return Tuner(json_cache("choices", self.options.cache_path), enabled=True)

    def replay(self, gm: torch.fx.GraphModule, aten: Aten, call: Callable) -> Callable:
        return call
