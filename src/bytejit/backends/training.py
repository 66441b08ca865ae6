"""Graphs whose outputs need gradients: the joint graph is partitioned, and each part compiled like a graph without
gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import fx

from bytejit.autograd.cut_graph import ByTorch, Dependent, cut_after, cut_around, joined, named_for
from bytejit.autograd.joint import make_joint
from bytejit.autograd.partition import Parts, partition
from bytejit.autograd.runtime import TrainingProgram
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.normalise import CannotNormalise, normalise
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.loops.index import Undecided
from bytejit.common import registry
from bytejit.common.graph_info import INFO, info_of, report_of
from bytejit.common.graph_modules import module_of
from bytejit.common.logs import fault
from bytejit.common.text import first_line
from bytejit.common.torch_settings import memory_budget
from bytejit.kernels.build import BuildFailed, NoCompiler, NoDriver
from bytejit.kernels.training_recordings import BackwardReplayer, ForwardReplayer, SharedByPasses

from .flipped_views import in_plain_parts
from .surround import counted, fakes_of, guarded, not_normalised, through_torch, tracked_anew

Build = Callable[[fx.GraphModule, Aten], Callable]
Change = Callable[[Aten], Aten]


def parts_of(gm: fx.GraphModule, lay_out: Change | None = None) -> Parts:
    """The two graphs of a traced graph. lay_out: changes the graph of both passes in place. Raises: CannotNormalise."""
    info = info_of(gm)
    budget = memory_budget(info.settings.options, dict(info.settings.overrides))
    joint = make_joint(gm, fakes_of(gm))
    return partition(joint if lay_out is None else joint.changed(lay_out), info.weights, budget)


def either(gm: fx.GraphModule, build: Build, lay_out: Change | None = None) -> Callable:
    """The callable of a part of a graph, with gradients or without."""
    if info_of(gm).needs_grad:
        return trained(gm, build, lay_out)
    aten = normalise(gm, fakes_of(gm))
    return guarded(gm, counted(build(gm, aten), aten), aten)


def from_aten(gm: fx.GraphModule, build: Build) -> Callable:
    """The callable of a traced graph; `build` compiles each ATen graph. Runs through torch where there is no ATen graph."""
    return in_plain_parts(gm, partial(_from_aten, build=build))


def _from_aten(gm: fx.GraphModule, build: Build) -> Callable:
    if reason := not_normalised(gm):
        return through_torch(gm, reason)
    try:
        return either(gm, build)
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))


def trained(gm: fx.GraphModule, build: Build, lay_out: Change | None = None) -> Callable:
    """The callable of a graph whose outputs need gradients. build(gm, aten): the callable of a graph without; it writes to the
    report of `gm`. lay_out: as `parts_of` takes it. Raises: CannotNormalise, and what `build` raises for the forward graph."""
    try:
        parts = parts_of(gm, lay_out)
    except (Dependent, ByTorch) as e:
        if tracked_anew(gm):
            raise CannotNormalise(f"{e}, and it sets requires_grad of an input") from e
        cut = cut_after(gm, e.node) if isinstance(e, Dependent) else cut_around(gm, e)
        return joined(gm, cut, partial(either, build=build, lay_out=lay_out))

    first = len(parts.saved_inputs)
    info, passes = info_of(gm), SharedByPasses(parts.results, range(first, first + parts.saved))

    def backward(aten: Aten) -> Callable:
        apart = module_of(fx.Graph())
        apart.meta[INFO] = replace(  # autocast may be on around `backward()`
            info,
            is_backward=True,
            weights=frozenset(),
            new_grads=(),
            autocast=True,
            replayer=partial(BackwardReplayer, passes=passes),
        )
        report_of(apart).cudagraphs = report_of(gm).cudagraphs
        try:
            with torch._C.DisableTorchFunction():
                made = build(apart, aten)
            report_of(gm).tell_later(named_for("backward_", report_of(apart).stages))
            return made
        except BuildFailed as e:
            fault(e, "building a backward graph")
        except (Undecided, NoCompiler, NoDriver) as e:
            registry.count("fallbacks", f"a backward graph runs through torch: {first_line(e)}")
        return run_aten(aten)

    gm.meta[INFO] = replace(info, new_grads=(), replayer=partial(ForwardReplayer, passes=passes))
    forward, report = counted(build(gm, parts.forward), parts.forward), report_of(gm)
    report.saved.append(parts.summary())
    report.stages = [*report.stages, ("backward", parts.backward.text(), ".txt"), ("saved", parts.summary(), ".txt")]
    return guarded(gm, TrainingProgram(gm, parts, forward, backward), parts.forward)
