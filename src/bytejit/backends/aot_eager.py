"""The backend `aot_eager`: the normalised ATen graph, run by torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.codegen.aten.normalise import CannotNormalise, normalise
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.loops.index import Undecided
from bytejit.common.graph_info import info_of, report_of

from .flipped_views import in_plain_parts
from .surround import counted, fakes_of, guarded, not_normalised, through_torch, without_autocast
from .training import trained


def aot_eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The normalised ATen graph, run by torch."""
    return in_plain_parts(gm, _aot_eager)


def _aot_eager(gm: torch.fx.GraphModule) -> Callable:
    reason = not_normalised(gm)
    if reason:
        return through_torch(gm, reason)
    try:
        if info_of(gm).needs_grad:
            return trained(gm, lambda part, aten: without_autocast(part, run_aten(aten)))
        aten = normalise(gm, fakes_of(gm))
    except (CannotNormalise, Undecided) as e:
        return through_torch(gm, str(e))
    report_of(gm).stages = [("aten", aten.text(), ".txt")]
    return guarded(gm, counted(without_autocast(gm, run_aten(aten)), aten), aten)
