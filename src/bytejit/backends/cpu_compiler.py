"""One graph on its way from FX to a callable: what the backends share, and `Compiled`, the CPU's way through codegen."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch

from bytejit.common import ranges, registry
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.where import Where, with_source
from bytejit.kernels.build import BuildFailed
from bytejit.options import Options


# ---- what is left to torch ---------------------------------------------------------------------------------------------
def fakes_of(gm: torch.fx.GraphModule) -> list:
    return [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


def not_normalised(gm: torch.fx.GraphModule) -> str:
    """Why a graph cannot be made functional here; "" when it can."""
    info = info_of(gm)
    if info.needs_grad:
        return "its outputs need gradients"
    if info.inference == "mixed":
        return "only some of its outputs are inference tensors"
    if info.measures:
        return "it has sizes that only the run knows"
    if info.sets_data:
        return "it sets a tensor's data"
    return ""


def through_torch(gm: torch.fx.GraphModule, reason: str) -> Callable:
    """Run the FX graph as it is: right, unfused, counted."""
    registry.count("fallbacks", f"a graph runs through torch: {reason}")
    report_of(gm).through_torch = reason
    return gm.forward


def in_mode(gm: torch.fx.GraphModule, call: Callable) -> Callable:
    """`call` in the mode that the graph itself sets: in or out of inference mode, or without gradients."""
    info, manager = info_of(gm), torch._C._InferenceMode
    inference = info.inference
    if inference is not None:
        def in_inference_mode(*inputs):
            with manager(inference):
                return call(*inputs)
        return in_inference_mode
    if not info.grads_off:
        return call

    def without_grad(*inputs):
        with torch.no_grad():
            found = call(*inputs)           # no output has gradients: what is an input's memory is made apart from it
            return tuple(t.detach() if isinstance(t, torch.Tensor) and t.requires_grad else t for t in found)
    return without_grad


def without_autocast(gm: torch.fx.GraphModule, call: Callable) -> Callable:
    """`call`, whose operations hold the casts of autocast already: run with autocast off, where it is on around the region
    (what the region itself turns on is not on around `call`). Cost: 0.5 us a call, there only."""
    manager = torch._C._DisableAutocast
    if not info_of(gm).autocast:
        return call

    def cast_before(*inputs):
        with manager():
            return call(*inputs)
    return cast_before


def guarded(gm: torch.fx.GraphModule, call: Callable, aten) -> Callable:
    """`call`, except where an input that it writes shares memory with another input: there the graph runs as it is."""
    call = ranges.around(in_mode(gm, call), ranges.events_of(gm.graph))
    if not aten.mutations:
        return call
    written = sorted({m.input for m in aten.mutations})
    plain = gm.forward

    def checked(*inputs):
        storages = [t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else None for t in inputs]
        if any(storages.count(storages[i]) > 1 for i in written):
            registry.count("fallbacks", "a graph runs through torch: a written input shares memory with another")
            return plain(*inputs)
        return call(*inputs)
    checked.writes_last = True      # nothing has been written when it raises
    return checked


def with_lines(graph: torch.fx.Graph) -> None:
    """Let the places of nodes hold the user's lines, for the comments of kernels: the tracer leaves them unread."""
    for node in graph.nodes:
        where = node.meta.get("where")
        if isinstance(where, Where):
            node.meta["where"] = with_source(where)


# ---- codegen ----------------------------------------------------------------------------------------------------------------
@dataclass
class Compiled:
    """One graph on its way through codegen. Its `Report` gets statistics and the texts of the debug folder."""

    gm: torch.fx.GraphModule
    aten: object
    options: Options
    suffix = ".cpp"                # of the debug folder's kernel file

    def target(self):
        from .cpu_plan import cpu_target
        return cpu_target(torch.get_num_threads())

    def tuner(self):
        from bytejit.kernels.disk import json_cache
        from bytejit.kernels.tune import Tuner
        without = () if self.options.winograd else ("conv_own_winograd",)
        return Tuner(json_cache("choices", self.options.cache_path), enabled=True, without=without)

    def own_products(self) -> None:
        """Build our own matrix product, convolution and attention, on first use, where the graph has such calls."""
        from bytejit.codegen.libraries.attention import match_attention
        from bytejit.kernels import attention, conv, gemm
        from bytejit.kernels.build_cpp import build
        targets = {str(n.target) for n in self.aten.graph.nodes}
        wanted = [conv] if "aten.convolution.default" in targets else []
        wanted += [gemm] if any("linear" in t or "mm" in t for t in targets) else []
        wanted += [attention] if any(match_attention(n) for n in self.aten.graph.nodes) else []
        if len(wanted) > 1:
            build([module.UNIT for module in wanted], self.options)     # side by side
        for module in wanted:
            module.register(self.options)

    def build(self, aten) -> Callable:
        """Libraries, loops, kernels, call sequence."""
        from bytejit.codegen.libraries.layout import choose_libraries
        from bytejit.kernels import library
        target, tuner = self.target(), self.tuner()
        self.own_products()
        chosen = choose_libraries(aten, target, tuner, library)
        tuner.save()
        return self.replayed(self.emit(chosen, target))

    def frozen(self, inputs: Sequence) -> Callable:
        """The same with weights folded in; notices writes to them by version and address, and folds anew."""
        from bytejit.codegen.libraries.freeze import freeze
        from bytejit.kernels import library
        state: dict = {}

        def fold(args: Sequence) -> None:
            target, tuner = self.target(), self.tuner()
            self.own_products()
            params = {i: t for i, t in enumerate(args) if isinstance(t, torch.Tensor) and self.is_weight(i)}
            made, _, state["check"] = freeze(self.aten, params, target, tuner, library)
            tuner.save()
            state["call"] = self.replayed(self.emit(made, target))

        def call(*args):
            if not state["check"](args):
                registry.count("recompiles", "a frozen weight was written")
                fold(args)
            return state["call"](*args)
        fold(inputs)
        return call

    def is_weight(self, index: int) -> bool:
        return index in info_of(self.gm).weights

    def emit(self, aten, target) -> Callable:
        """Loops, groups, plan, kernels, a callable."""
        from bytejit.codegen.libraries.stride_feedback import after_the_first, foreseen, relaid
        from bytejit.codegen.loops.lower import lower
        from bytejit.codegen.loops.text import text

        from . import plan_cache
        began = time.perf_counter()
        aten = foreseen(aten)
        if self.options.debug:
            with_lines(aten.graph)
        # under debug all stages are to be printed
        key = None if self.options.debug else plan_cache.key_of(aten, astuple(target), *self.ways())
        found = plan_cache.load(key, self.options) if key else None
        if found is None:
            loops = lower(aten)
            plan = self.plan(loops, target)
            source = self.printed(plan)
            if key:
                plan_cache.keep(key, plan, source, self.options)
        else:
            plan, source = found
        lowered = time.perf_counter() - began
        made = self.compile(plan, target, aten, source)
        for name, n in made.stats.unfused.items():
            registry.count("externs", f"{name} has no row: run by torch", n)
        report = report_of(self.gm)
        report.stats, report.lower_seconds = made.stats, lowered
        if self.options.debug:
            report.stages = [("aten", aten.text(), ".txt"), ("loops", text(loops), ".txt"),
                                      ("schedule", text(plan), ".txt"), ("kernel", made.source, self.suffix),
                                      ("call", made.call_source, ".py")]
        if made.fits is None:
            return made.call

        def again(answered: dict[str, tuple]) -> Callable | None:
            """The graph with its libraries' own strides; what they answer then is copied where it still differs."""
            better = relaid(aten, plan, answered)
            try:
                return None if better is None else self.compile(self.plan(lower(better), target), target, better).call
            except BuildFailed as error:
                registry.count("fallbacks", f"a graph keeps its copies: {str(error).partition(chr(10))[0]}")
                return None
        return after_the_first(made.call, made.fits, again)

    # ---- what each device does its own way ------------------------------------------------------------------------
    def plan(self, loops, target):
        """Groups and schedule."""
        from bytejit.codegen.cpu.schedule import schedule
        from bytejit.codegen.loops.passes.fuse import fuse
        return schedule(fuse(loops), target)

    def printed(self, plan):
        """The kernels' text."""
        from .cpu_plan import printed
        return printed(plan)

    def ways(self) -> tuple:
        """What decides a plan beside the graph and the device."""
        return ()

    def compile(self, plan, target, aten, source=None):
        """The plan as a `CompiledGraph`. source: `printed(plan)` where it is there already."""
        from .cpu_plan import compile_plan
        return compile_plan(plan, target, self.options, aten.constants, aten.outputs, aten.single, source)

    def replayed(self, call: Callable) -> Callable:
        """The graph's callable, recorded and replayed where a device can do that."""
        return call
