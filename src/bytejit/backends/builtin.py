"""The built-in backends: a traced graph -> a callable. `inductor` joins the stages of codegen and kernels."""
from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.common import logs, registry
from bytejit.common.graph_info import info_of, report_of
from bytejit.compat.probes import PROBES
from bytejit.guards.native_checker import CHECKER, UNIT
from bytejit.options import Options

from .cpu_compiler import Compiled, fakes_of, guarded, not_normalised, through_torch, without_autocast


def eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The FX graph as it is."""
    return gm.forward


def aot_eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The normalised ATen graph, run by torch."""
    reason = not_normalised(gm)
    if reason:
        return through_torch(gm, reason)
    from bytejit.codegen.aten.normalise import CannotNormalise, normalise
    from bytejit.codegen.aten.run import run_aten
    from bytejit.codegen.loops.index import Undecided
    try:
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    report_of(gm).stages = [("aten", aten.text(), ".txt")]
    return guarded(gm, without_autocast(gm, run_aten(aten)), aten)


def inductor(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Fused kernels. What cannot be compiled runs through torch, counted and named."""
    options = info_of(gm).settings.options
    install_checks(options)
    made_for, reason = compiler_of(gm)
    reason = not_normalised(gm) or reason
    if reason:
        return through_torch(gm, reason)
    from bytejit.codegen.aten.normalise import CannotNormalise, normalise
    from bytejit.codegen.loops.index import Undecided
    from bytejit.kernels.build import NoCompiler
    from bytejit.kernels.cuda_launch import NoDriver
    try:
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    if options.fused_rng:
        from bytejit.codegen.aten.random_numbers import fuse_draws
        aten = fuse_draws(aten)
    try:
        compiled = made_for(gm, aten, options)
        call = compiled.frozen(example_inputs) if options.freeze else compiled.build(aten)
    except Undecided as e:
        return through_torch(gm, f"not for symbolic sizes: {e}")
    except NoCompiler:          # whoever looked for it has warned
        return through_torch(gm, "no C++ compiler")
    except NoDriver as e:
        logs.warn_once("no CUDA driver", str(e))
        return through_torch(gm, "no CUDA driver")
    if type(compiled) is not Compiled or report_of(gm).stats.externs:         # kernels look at no state
        call = without_autocast(gm, call)
    return guarded(gm, call, aten)


def cudagraphs(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: eager's kernels in a CUDA graph. A graph that is not on one GPU runs as it is."""
    return _recorded(gm, lambda aten: gm.forward)


def aot_cudagraphs(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: the normalised ATen graph, run by torch, in a CUDA graph. One that is not on one GPU runs without."""
    from bytejit.codegen.aten.run import run_aten
    return _recorded(gm, lambda aten: without_autocast(gm, run_aten(aten)))


def _recorded(gm: torch.fx.GraphModule, runner: Callable) -> Callable:
    from bytejit.codegen.aten.normalise import CannotNormalise, normalise
    made_for, reason = compiler_of(gm)
    if not hasattr(made_for, "index"):
        reason = reason or "no tensor is on a GPU"
    elif reason and not not_normalised(gm):
        reason = ""                         # without triton eager's kernels are recorded all the same
    reason = not_normalised(gm) or reason
    try:
        aten = None if reason else normalise(gm, fakes_of(gm))
    except CannotNormalise as e:
        reason = str(e)
    if reason:
        registry.count("cudagraphs", f"not recorded: {reason}")
        gpu().Told(gm, info_of(gm).settings.options)(f"not recorded: {reason}")
        return gm.forward
    return guarded(gm, gpu().record_graph(gm, aten, runner(aten), made_for.index, "forced"), aten)


# ---- devices ---------------------------------------------------------------------------------------------------------------
def compiler_of(gm: torch.fx.GraphModule) -> tuple[type[Compiled], str]:
    """Which `Compiled` a graph's kernels come from: the CPU's, or that of the one GPU that its tensors are on; and why
    there are none, "" when there are.

    Tensors on the CPU may stand beside those of a GPU: what is computed with them runs through torch, within the graph.
    """
    options: Options = info_of(gm).settings.options
    found: set[torch.device] = set()
    for n in gm.graph.nodes:
        values = n.meta.get("val")
        for t in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(t, torch.Tensor):
                found.add(t.device)
    others = sorted(str(d) for d in found if d.type != "cpu")
    if not others:
        made_for = gpu().Interpreted if options.interpret else Compiled
        return made_for, made_for.lacks(options) if made_for is not Compiled else ""
    if len(others) > 1:
        return Compiled, f"its tensors are on {' and '.join(others)}"
    if not others[0].startswith("cuda"):
        return Compiled, f"a tensor is on {others[0].partition(':')[0]}"
    made_for = gpu().on_gpu(int(others[0].partition(":")[2] or 0))
    return made_for, made_for.lacks(options)


def gpu():
    """What graphs on a GPU need, imported with the first of them."""
    from . import cuda_compiler
    return cuda_compiler


def install_checks(options: Options) -> None:
    """Let guards check tensors through a compiled unit; without a compiler they stay in Python."""
    from bytejit.kernels import build_cpp
    if CHECKER.installed:
        return
    CHECKER.install(lambda text: build_cpp.build([text], options).calls[0])
    if getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is not None:
        PROBES.start("layouts")
        build_cpp.ahead(UNIT, options)           # its compiler runs beside the lowering of the first graph
