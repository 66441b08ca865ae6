"""Graphs that set the seed of random numbers: cut around that, which torch does. What draws is compiled on its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from bytejit.autograd.cut_graph import calls_of, cut_at, joined


def apart_from_seeds(gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable]) -> Callable:
    """The callable that `compile` makes of the parts of a graph, which set no seed themselves."""
    seeds = [n for n in calls_of(gm) if n.target is torch.manual_seed]
    parts = cut_at(gm, seeds, changing=False) if seeds else None
    if parts is None:
        return compile(gm)
    return joined(gm, parts, compile)
