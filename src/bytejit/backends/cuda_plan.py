"""A plan as a callable on a GPU: Triton text, compiled side by side or found in the cache, and the Python around it."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.codegen.aten.graph import Out
from bytejit.codegen.cuda.call import emit_call_cuda, rows_of
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.main import runnable
from bytejit.codegen.cuda.schedule import PERSISTENT, schedule_cuda
from bytejit.codegen.cuda.source import Arg, TritonSource
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Loops, Plan, Target
from bytejit.codegen.loops.memory import extent
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.kernels import build_triton, cuda_launch, interpret
from bytejit.kernels.build_cpp import ahead
from bytejit.kernels.workers import workers
from bytejit.options import Options

from .cpu_plan import CompiledGraph, Stats

LEAST = (8, 0)             # compute capability that kernels are built for
INTERPRETED = Target("cuda", 132, 16, 50 << 20)       # what the interpreter pretends to be


@functools.cache
def lacks(device: int) -> str:
    """Why kernels cannot be built for a GPU, in one line; "" when they can."""
    reason = lacks_triton()
    if reason:
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < LEAST:
        return f"the GPU is sm_{major}{minor}, kernels need sm_80"
    return ""


def lacks_triton() -> str:
    """What to say where triton is missing; "" where it is there."""
    return "" if build_triton.triton_version() else "triton is not installed (pip install 'bytejit[gpu]')"


def arch_of(device: int) -> int:
    """90 for compute capability 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@functools.cache
def cuda_target(device: int) -> Target:
    """A GPU as `schedule_cuda` wants it."""
    facts = torch.cuda.get_device_properties(device)
    return Target("cuda", facts.multi_processor_count, 16, getattr(facts, "L2_cache_size", 0) or 32 << 20)


def begin(device: int, options: Options) -> None:
    """Start the compile workers and the build of the launcher, so that they are ready when the kernels' text is."""
    workers().warm(arch_of(device))
    ahead(cuda_launch.UNIT, options)


def plan_cuda(loops: Loops, target: Target, room: int = PERSISTENT) -> Plan:
    """Groups and plan of a graph for a GPU. room: as in `schedule_cuda`."""
    return schedule_cuda(fuse(loops, launches=True), target, room)


def early_on(device: torch.device) -> bool:
    """Whether kernels may begin before the one in front of them has ended."""
    return device.type == "cuda" and arch_of(device.index) >= cuda_launch.EARLY


def printed(plan: Plan, device: torch.device) -> TritonSource:
    """The Triton kernels of a plan for a device."""
    return emit_triton(plan, early=early_on(device))


def compile_plan_cuda(plan: Plan, device: torch.device, options: Options, constants: Sequence[Any] = (),
                      outs: Sequence[Out] | None = None, single: bool = False,
                      source: TritonSource | None = None) -> CompiledGraph:
    """Build a plan for a GPU, or, on the CPU, for Triton's interpreter. constants, outs, single: as `Aten` holds them. source:
    `printed(plan, device)` where it is there already.

    `call` must run without gradients. Raises: NoCompiler, NoDriver, BuildFailed.
    """
    source = source or printed(plan, device)
    rows = rows_of(plan, source)
    if device.type == "cpu":
        runs = interpret.build(source, rows, functools.partial(span, plan, source)) if rows else ()
        pairs, seconds, cached, files = [(r, r) for r in runs], 0.0, True, ()
    elif rows:
        extents = functools.partial(span, plan, source, sizes={})
        built = build_triton.build(source, rows, device.index, options, extents)
        pairs, seconds, files = list(zip(built.runs, built.unaligned)), built.seconds, built.files
        cached = built.cached == built.kernels
    else:
        pairs, seconds, cached, files = [], 0.0, True, ()
    made = emit_call_cuda(plan, rows, pairs, device, source.scratch, constants, outs, single)
    stats = Stats(source.kernels, len(rows), made.externs, source.bytes, plan.arena, seconds, cached,
                  len(source.launches) + len(made.externs))
    text = runnable(plan, source) if options.debug else source.text
    return CompiledGraph(made.make(), text, made.text, stats, files, made.fits)


def span(plan: Plan, source: TritonSource, arg: Arg, sizes: dict[str, int]) -> int:
    """Bytes from where an argument of a launch begins to its end."""
    if arg.kind == "fault":
        return 4
    if arg.kind == "scratch":
        return ix.evaluate(source.scratch, sizes) - ix.evaluate(arg.offset, sizes)
    return ix.evaluate(extent(plan.buffers[arg.name]), sizes)
