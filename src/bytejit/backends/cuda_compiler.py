"""Graphs on a GPU: the stages that `backends.Compiled` runs otherwise there, and on the CPU under Triton's interpreter."""
from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from bytejit.codegen.aten.cpu_part import cpu_part, cpu_rest
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.numbers import numbers_on_gpu
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.cuda.schedule import PERSISTENT, SMALL
from bytejit.common import logs, registry
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.spec import Spec
from bytejit.kernels.build import BuildFailed
from bytejit.kernels.cuda_graphs import TIMED, WARM, Policy, replayed
from bytejit.options import Options

from .cpu_compiler import Compiled
from .cpu_plan import CompiledGraph
from .cuda_plan import INTERPRETED, begin, compile_plan_cuda, cuda_target, early_on, lacks, lacks_triton, plan_cuda, printed

FEW = 4                    # launches below which a replay saves nothing


class OnGpu(Compiled):
    """One graph on its way to the kernels of one GPU, whose index the subclass made by `on_gpu` holds."""

    index: int
    suffix = ".py"
    room = PERSISTENT              # elements of a row that a program of the plan may hold

    @classmethod
    def lacks(cls, options: Options) -> str:
        """Why this GPU gets no kernels; "" when it does, and then the compile workers start."""
        reason = lacks(cls.index)
        if not reason:
            begin(cls.index, options)
        return reason

    def device(self) -> torch.device:
        """Where the graph runs."""
        return torch.device("cuda", self.index)

    def target(self):
        return cuda_target(self.index)

    def tuner(self):
        from bytejit.kernels.disk import json_cache
        from bytejit.kernels.tune_gpu import GpuTuner
        made = GpuTuner(json_cache("choices", self.options.cache_path), self.index)
        if self.options.tune:
            from bytejit.kernels import matmul_triton
            matmul_triton.register()
            made.products = matmul_triton
        return made

    def own_products(self) -> None:
        """None here: matrix products are cuBLAS's."""

    def build(self, aten) -> Callable:
        """The graph's callable; what runs on the CPU before all else, or after it, in kernels of the CPU's."""
        if self.device().type == "cuda":
            self.aten = aten = numbers_on_gpu(aten, self.device())
        found, single = cpu_rest(aten), aten.single
        if found is not None:
            after, self.aten = self.on_cpu(found.after), found.first
            return found.joined(self.build_first(found.first), after, single)
        return self.build_first(aten)

    def build_first(self, aten) -> Callable:
        """A graph's callable where nothing runs on the CPU after it."""
        found = cpu_part(aten)
        if found is None:
            return super().build(aten)
        part, taken, self.aten = found
        before, after = self.on_cpu(part), super().build(self.aten)

        def call(*inputs):
            return after(*inputs, *before(*[inputs[i] for i in taken]))
        call.writes_last = getattr(after, "writes_last", False)
        return call

    def on_cpu(self, part: Aten) -> Callable:
        """A part's callable, in kernels of the CPU's."""
        return Compiled(self.gm, part, self.options).build(part)

    def plan(self, loops, target):
        return plan_cuda(loops, target, self.room)

    def compile(self, plan, target, aten, source=None) -> CompiledGraph:
        return compile_plan_cuda(plan, self.device(), self.options, aten.constants, aten.outputs, aten.single, source)

    def printed(self, plan):
        return printed(plan, self.device())

    def ways(self) -> tuple:
        return self.room, early_on(self.device())

    def replayed(self, call: Callable) -> Callable:
        """The callable behind a CUDA graph, as the mode says."""
        how, stats = how_of(self.options), report_of(self.gm).stats
        launches = stats.launches if stats is not None else FEW      # none: the graph runs through torch
        if how == "auto" and launches < FEW:
            reason = f"not recorded: {launches} launches, fewer than {FEW}"
            registry.count("cudagraphs", reason)
            Told(self.gm, self.options)(reason)
            return call
        return record_graph(self.gm, self.aten, call, self.index, how)

    def emit(self, aten, target) -> Callable:
        """The graph's callable. Where a kernel cannot be built in any of its configurations, all are planned anew with
        smaller tiles; where that fails too, the graph runs through torch."""
        for room in (PERSISTENT, SMALL):
            self.room = room
            try:
                return super().emit(aten, target)
            except BuildFailed as e:
                logs.warn_once(f"a GPU kernel, {room}", str(e))
                if room != SMALL:
                    registry.count("fallbacks", "a graph is planned with smaller tiles: a GPU kernel cannot be built")
        registry.count("fallbacks", "a graph runs through torch: a GPU kernel cannot be built")
        report_of(self.gm).through_torch = "a GPU kernel cannot be built"
        return run_aten(aten)


class Interpreted(OnGpu):
    """A graph on the CPU whose Triton kernels run in Triton's interpreter: for tests without a GPU."""

    @classmethod
    def lacks(cls, options: Options) -> str:
        return lacks_triton()

    def device(self) -> torch.device:
        return torch.device("cpu")

    def target(self):
        return INTERPRETED

    def tuner(self):
        return super(OnGpu, self).tuner()

    def build(self, aten) -> Callable:
        return super(OnGpu, self).build(aten)       # no part of it is another device's

    def replayed(self, call: Callable) -> Callable:
        return call


# ---- CUDA graphs ----------------------------------------------------------------------------------------------------
WAITING = {
    "forced": f"recorded after {WARM} calls",
    "auto": f"recorded after {WARM + TIMED} calls where launching takes much of a call and a replay is faster",
}


class Told:
    """What became of the recordings of a graph, each thing once: in its report, which `explain` prints, and in the log
    of that kind."""

    def __init__(self, gm: torch.fx.GraphModule, options: Options) -> None:
        self.lines = report_of(gm).cudagraphs
        self.where = next((n.meta["where"] for n in gm.graph.nodes if n.meta.get("where") is not None), None)
        self.options = options

    def __call__(self, what: str) -> None:
        if what not in self.lines:
            self.lines.append(what)
            logs.log("cudagraphs", what, self.where, self.options)


def draws(node: torch.fx.Node) -> bool:
    """Whether an op draws random numbers: attention without dropout only might."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.kwargs.get("dropout_p", argument.default_value)
            return (node.args[i] if i < len(node.args) else given) != 0
    return True


def waits(node: torch.fx.Node) -> bool:
    """Whether an op waits for the GPU, because its result's shape depends on data; of indexing only that by masks."""
    if node.target is torch.ops.aten.index.Tensor:
        specs = [i.meta["spec"] for i in node.args[1] if isinstance(i, torch.fx.Node)]
        return any(s.dtype in (torch.bool, torch.uint8) for s in specs)
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return bool(tags & set(getattr(node.target, "tags", ())))


KNOWN = {"aten", "prims", "bytejit", "mkldnn", "torchvision"}


def known(node: torch.fx.Node) -> bool:
    """Whether an op is torch's, whose kernels are launched and nothing else is done."""
    return node.op != "call_function" or getattr(node.target, "namespace", "aten") in KNOWN


def how_of(options: Options) -> str:
    """The policy of CUDA graphs that a mode stands for; "" for none."""
    if options.cudagraphs is None and options.mode == "default":
        return "auto"
    return "forced" if options.use_cudagraphs else ""


def record_graph(gm: torch.fx.GraphModule, aten: Aten, call: Callable, index: int, how: str) -> Callable:
    """`call` of a graph on one GPU, recorded and replayed as `how` says (see `kernels.cuda_graphs`)."""
    if not how:
        return call
    random = any(map(draws, aten.graph.nodes))
    reason = "it draws random numbers" if random and how == "auto" else ""
    for n in aten.graph.nodes:
        spec = n.meta.get("spec")
        if isinstance(spec, Spec) and spec.device.type == "cpu" and n.op in ("placeholder", "call_function") and n.users:
            reason = reason or "a tensor is on the CPU"
        if waits(n):
            reason = reason or f"{n.target} waits for the GPU"
        if how == "auto" and not known(n):
            reason = reason or f"{n.target} is the program's own: it may do something else in each call"
    weights = info_of(gm).weights
    written = frozenset(m.input for m in aten.mutations)
    tell = Told(gm, info_of(gm).settings.options)
    if not reason:
        tell(WAITING[how])
    return replayed(call, Policy(how, index, weights, written, reason, tell))


@functools.cache
def on_gpu(index: int) -> type[OnGpu]:
    """The `Compiled` of a GPU."""
    return type(f"OnGpu{index}", (OnGpu,), {"index": index})
