"""The backend `eager`: the FX graph as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch


def eager(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """The FX graph as it is."""
    return gm.forward
