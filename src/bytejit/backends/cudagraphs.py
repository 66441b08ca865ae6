"""The backends `cudagraphs` and `aot_cudagraphs`: torch's own kernels, recorded as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.codegen.aten.normalise import CannotNormalise, normalise
from bytejit.codegen.aten.run import run_aten
from bytejit.common import registry
from bytejit.common.graph_info import info_of

from .devices import target_of
from .recording import Told, record_graph
from .surround import counted, fakes_of, guarded, not_normalised, without_autocast


def cudagraphs(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: eager's kernels in a CUDA graph. A graph that is not on one GPU runs as it is."""
    return _recorded(gm, lambda aten: gm.forward)


def aot_cudagraphs(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """Backend: the normalised ATen graph, run by torch, in a CUDA graph. One that is not on one GPU runs without."""
    return _recorded(gm, lambda aten: without_autocast(gm, run_aten(aten)))


def _recorded(gm: torch.fx.GraphModule, runner: Callable) -> Callable:
    target, reason = target_of(gm)
    refused = "its outputs need gradients" if info_of(gm).needs_grad else not_normalised(gm)
    if not target.records:
        reason = reason or "no tensor is on a GPU"
    elif reason and not refused:
        reason = ""  # without triton eager's kernels are recorded all the same
    reason = refused or reason
    aten = None
    if not reason:
        try:
            aten = normalise(gm, fakes_of(gm))
        except CannotNormalise as e:
            reason = str(e)
    if aten is None:
        registry.count("cudagraphs", f"not recorded: {reason}")
        Told(gm, info_of(gm).settings.options)(f"not recorded: {reason}")
        return gm.forward
    return guarded(gm, counted(record_graph(gm, aten, runner(aten), target.device.index, "forced"), aten), aten)
