"""Which target a graph compiles for: by the devices of its tensors."""

from __future__ import annotations

import torch

from bytejit.common import registry
from bytejit.common.graph_info import info_of
from bytejit.common.options import Options

from .target import Target

CPU = torch.device("cpu")


def target_of(gm: torch.fx.GraphModule) -> tuple[Target, str]:
    """(target, reason) of a graph. target: that of the CPU, or of the one other device that its tensors are on. reason: why
    there are no kernels, "" when there are. Tensors on the CPU may occur beside those of another device; the graph computes
    with them, too.
    """
    options: Options = info_of(gm).settings.options
    found: set[torch.device] = set()
    for n in gm.graph.nodes:
        values = n.meta.get("val")
        for t in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(t, torch.Tensor):
                found.add(t.device)
    others = sorted({d for d in found if d.type != "cpu"}, key=str)
    if len(others) > 1:
        return made("cpu", CPU, options), f"its tensors are on {' and '.join(map(str, others))}"
    if not others:
        target = made("interpreter" if options.interpret else "cpu", CPU, options)
    elif others[0].type in registry.TARGETS:
        device = others[0]
        target = made(device.type, device if device.index is not None else torch.device(device.type, 0), options)
    else:
        return made("cpu", CPU, options), f"a tensor is on {others[0].type}"
    return target, target.unavailable()


def made(name: str, device: torch.device, options: Options) -> Target:
    """A target by its name."""
    return registry.lookup_target(name)(device, options)
