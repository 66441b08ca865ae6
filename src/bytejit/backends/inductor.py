"""The backend `inductor`: fused kernels, for the target of the graph's device or one that is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType

import torch

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.normalise import CannotNormalise, normalise
from bytejit.codegen.aten.random_numbers import fuse_draws
from bytejit.codegen.libraries.choices import ATEN, Choices
from bytejit.codegen.loops.index import Undecided
from bytejit.codegen.passes import Journal, run_passes
from bytejit.common import logs
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.late_imports import import_module
from bytejit.kernels import library
from bytejit.kernels.build import NoCompiler, NoDriver

from . import by_torch
from .checks import install_checks
from .compiled import Compiled
from .devices import CPU, made, target_of
from .flipped_views import in_plain_parts
from .surround import counted, fakes_of, guarded, not_normalised, through_torch, without_autocast
from .target import Target


def inductor(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: fused kernels. What cannot be compiled runs through torch, with a count and a reason."""
    install_checks(info_of(gm).settings.options)
    target, reason = target_of(gm)
    return compile_for(target, gm, example_inputs, reason)


def named_target(gm: torch.fx.GraphModule, example_inputs: list, name: str) -> Callable:
    """The backend that a registered target is, whatever device the graph is on."""
    target = made(name, CPU, info_of(gm).settings.options)
    return compile_for(target, gm, example_inputs, target.unavailable())


def compile_for(target: Target, gm: torch.fx.GraphModule, example_inputs: list, reason: str) -> Callable:
    """The graph's callable. reason: why the target has no kernels for it, if it has none."""
    return in_plain_parts(gm, partial(_compile_for, target, example_inputs=example_inputs, reason=reason))


def _compile_for(target: Target, gm: torch.fx.GraphModule, example_inputs: list, reason: str) -> Callable:
    reason = not_normalised(gm) or reason
    if reason:
        return through_torch(gm, reason)
    options = target.options
    try:
        if info_of(gm).needs_grad:
            # timing would need both passes together: these graphs are recorded only where the program asks for it
            target = type(target)(target.device, replace(options, cudagraphs=options.use_cudagraphs, freeze=False))
            build = partial(compile_training, target=target)
            trained = in_kernels(gm, lambda: training().trained(gm, build, partial(laid_out, target=target)))
            return by_torch.faster(gm, target, trained)
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    compiled = in_kernels(gm, lambda: guarded(gm, counted(compile_aten(gm, aten, target, example_inputs), aten), aten))
    return compiled if aten.mutations else by_torch.faster(gm, target, compiled)


def training() -> ModuleType:
    """Returns the module that compiles training graphs. It is imported with the first of them."""
    return import_module("bytejit.backends.training")


def in_kernels(gm: torch.fx.GraphModule, compile: Callable[[], Callable]) -> Callable:
    """Returns what `compile` returns; where kernels cannot be built, the graph through torch."""
    try:
        return compile()
    except Undecided as e:
        return through_torch(gm, f"not for symbolic sizes: {e}")
    except NoCompiler:  # the search for it has warned already
        return through_torch(gm, "no C++ compiler")
    except NoDriver as e:
        logs.warn_once("no CUDA driver", str(e))
        return through_torch(gm, "no CUDA driver")


def compile_aten(gm: torch.fx.GraphModule, aten: Aten, target: Target, example_inputs: list) -> Callable:
    """The callable of an ATen graph. Its report belongs to `gm`."""
    if target.options.fused_rng:
        aten = fuse_draws(aten)
    inputs = aten.inputs()
    for new, at in info_of(gm).new_grads:
        inputs[at].meta["new_grad"] = new
    for n in inputs if info_of(gm).is_backward else ():
        n.meta["boxed"] = True
    compiled = Compiled(gm, aten, target.options, target)
    call = compiled.frozen(example_inputs) if target.options.freeze else compiled.build(aten)
    stats = report_of(gm).stats
    if target.host or stats is None or stats.externs:  # kernels depend on no ambient state
        call = without_autocast(gm, call)
    return call


def compile_training(gm: torch.fx.GraphModule, aten: Aten, target: Target) -> Callable:
    """The callable of one pass of a training graph."""
    return compile_aten(gm, aten, target, [])


def laid_out(aten: Aten, target: Target) -> Aten:
    """Runs the target's passes over a graph of both passes, in place."""
    if not target.joint_passes:
        return aten
    tuner = target.tuner()
    target.prepare_libraries(aten)
    journal = Journal(checks=target.options.check_passes)
    made = run_passes(ATEN, target.joint_passes, aten, journal, Choices(tuner, library))
    tuner.save()
    return made
