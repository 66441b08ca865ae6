"""The built-in backends: a traced graph -> a callable. `inductor` joins the stages of codegen and kernels."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from . import logs, registry
from .options import Options, Settings
from .tensor_check import CHECKER


def eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The FX graph as it is."""
    return gm.forward


def aot_eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The normalised ATen graph, run by torch."""
    reason = not_normalised(gm)
    if reason:
        return through_torch(gm, reason)
    from .codegen.index import Undecided
    from .codegen.normalise import CannotNormalise, normalise
    from .codegen.run_aten import run_aten
    try:
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    gm.meta["stages"] = [("aten", aten.text(), ".txt")]
    return guarded(gm, run_aten(aten), aten)


def inductor(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Fused kernels. What cannot be compiled runs through torch, counted and named."""
    settings: Settings = gm.meta["settings"]
    options = settings.options
    install_checks(options)
    made_for, reason = compiler_of(gm)
    reason = not_normalised(gm) or reason
    if reason:
        return through_torch(gm, reason)
    from .codegen.index import Undecided
    from .codegen.normalise import CannotNormalise, normalise
    from .kernels.build import NoCompiler
    from .kernels.cuda_launch import NoDriver
    try:
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    try:
        compiled = made_for(gm, aten, options)
        call = compiled.frozen(example_inputs) if options.freeze else compiled.build(aten)
    except Undecided as e:
        return through_torch(gm, f"not for symbolic sizes: {e}")
    except NoCompiler as e:
        logs.warn_once("no C++ compiler", str(e))
        return through_torch(gm, "no C++ compiler")
    except NoDriver as e:
        logs.warn_once("no CUDA driver", str(e))
        return through_torch(gm, "no CUDA driver")
    return guarded(gm, compiled.replayed(call), aten)


# ---- what is left to torch ---------------------------------------------------------------------------------------------
def fakes_of(gm: torch.fx.GraphModule) -> list:
    return [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


def not_normalised(gm: torch.fx.GraphModule) -> str:
    """Why a graph cannot be made functional here; "" when it can."""
    if gm.meta.get("needs_grad"):
        return "its outputs need gradients"
    return ""


def compiler_of(gm: torch.fx.GraphModule) -> tuple[type[Compiled], str]:
    """Which `Compiled` a graph's kernels come from: the CPU's, or that of the one GPU that its tensors are on; and why
    there are none, "" when there are.

    Tensors on the CPU may stand beside those of a GPU: what is computed with them runs through torch, within the graph.
    """
    found: set[torch.device] = set()
    for n in gm.graph.nodes:
        values = n.meta.get("val")
        for t in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(t, torch.Tensor):
                found.add(t.device)
    others = sorted(str(d) for d in found if d.type != "cpu")
    if not others:
        return (_gpu().Interpreted, "") if _interpreted() else (Compiled, "")
    if len(others) > 1:
        return Compiled, f"its tensors are on {' and '.join(others)}"
    if not others[0].startswith("cuda"):
        return Compiled, f"a tensor is on {others[0].partition(':')[0]}"
    made_for = _gpu().on_gpu(int(others[0].partition(":")[2] or 0))
    return made_for, made_for.lacks()


def _gpu():
    from . import gpu
    return gpu


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def through_torch(gm: torch.fx.GraphModule, reason: str) -> Callable:
    """Run the FX graph as it is: right, unfused, counted."""
    registry.count("fallbacks", f"a graph runs through torch: {reason}")
    gm.meta["through_torch"] = reason
    return gm.forward


def guarded(gm: torch.fx.GraphModule, call: Callable, aten) -> Callable:
    """`call`, except where an input that it writes shares memory with another input: there the graph runs as it is."""
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


# ---- codegen ----------------------------------------------------------------------------------------------------------------
@dataclass
class Compiled:
    """One graph on its way through codegen. Left in `gm.meta`: "stages", the texts of the debug folder, and "stats"."""

    gm: torch.fx.GraphModule
    aten: object
    options: Options
    suffix = ".cpp"                # of the debug folder's kernel file

    def target(self):
        from .compiled import cpu_target
        return cpu_target(torch.get_num_threads())

    def tuner(self):
        from .kernels.disk import json_cache
        from .kernels.tune import Tuner
        return Tuner(json_cache("choices", self.options.cache_path), enabled=True)

    def own_products(self) -> None:
        """Build our own matrix product, on first use, where the graph multiplies matrices."""
        from .kernels import gemm
        if any("linear" in str(n.target) or "mm" in str(n.target) for n in self.aten.graph.nodes):
            gemm.register(self.options)

    def build(self, aten) -> Callable:
        """Libraries, loops, kernels, call sequence."""
        from .codegen.layout import choose_libraries
        from .kernels import library
        target, tuner = self.target(), self.tuner()
        self.own_products()
        chosen = choose_libraries(aten, target, tuner, library)
        tuner.save()
        return self.emit(chosen, target)

    def frozen(self, inputs: Sequence) -> Callable:
        """The same with weights folded in; notices writes to them by version and address, and folds anew."""
        from .codegen.freeze import freeze
        from .kernels import library
        state: dict = {}

        def fold(args: Sequence) -> None:
            target, tuner = self.target(), self.tuner()
            self.own_products()
            params = {i: t for i, t in enumerate(args) if isinstance(t, torch.Tensor) and self.is_weight(i)}
            made, _, state["check"] = freeze(self.aten, params, target, tuner, library)
            tuner.save()
            state["call"] = self.emit(made, target)

        def call(*args):
            if not state["check"](args):
                registry.count("recompiles", "a frozen weight was written")
                fold(args)
            return state["call"](*args)
        fold(inputs)
        return call

    def is_weight(self, index: int) -> bool:
        return index in self.gm.meta.get("weights", ())

    def emit(self, aten, target) -> Callable:
        """Loops, groups, plan, kernels, a callable."""
        from .codegen.loops_text import text
        from .codegen.lower import lower
        began = time.perf_counter()
        loops = lower(aten)
        plan = self.plan(loops, target)
        lowered = time.perf_counter() - began
        made = self.compile(plan, target, aten)
        for name, n in made.stats.unfused.items():
            registry.count("externs", f"{name} has no row: run by torch", n)
        self.gm.meta["stats"] = made.stats
        self.gm.meta["lower_seconds"] = lowered
        if self.options.debug:
            self.gm.meta["stages"] = [("aten", aten.text(), ".txt"), ("loops", text(loops), ".txt"),
                                      ("schedule", text(plan), ".txt"), ("kernel", made.source, self.suffix),
                                      ("call", made.call_source, ".py")]
        return made.call

    # ---- what each device does its own way ------------------------------------------------------------------------
    def plan(self, loops, target):
        """Groups and schedule."""
        from .codegen.fuse import fuse
        from .codegen.schedule import schedule
        return schedule(fuse(loops), target)

    def compile(self, plan, target, aten):
        """The plan as a `CompiledGraph`."""
        from .compiled import compile_plan
        return compile_plan(plan, target, self.options, aten.constants, aten.outputs, aten.single)

    def replayed(self, call: Callable) -> Callable:
        """The graph's callable, recorded and replayed where a device can do that."""
        return call


def install_checks(options: Options) -> None:
    """Let guards check tensors through a compiled unit; without a compiler they stay in Python."""
    from .kernels import build_cpp
    if CHECKER.installed:
        return
    CHECKER.install(lambda text: build_cpp.build([text], options).calls[0])
