"""Branches on a number that `torch.rand` draws which go one way, whatever is drawn: `if torch.rand([]) < 0.0: skip the layer`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.fake.tensor import was_written
from bytejit.tracer.core.values import TensorVar

from .node_chains import called

# whether `x OP c` holds for all x from 0 to 1; by operation, as a function of c
ALWAYS: dict[str, Callable[[float], bool]] = {
    "lt": lambda c: c > 1,
    "le": lambda c: c >= 1,
    "gt": lambda c: c < 0,
    "ge": lambda c: c <= 0,
}
OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}  # `c OP x` as a comparison of x
DRAWS = frozenset({torch.rand, torch.rand_like})


def decided(v: TensorVar) -> bool | None:
    """The truth of a comparison of a tensor that `torch.rand` drew with a constant, where all that can be drawn agree."""
    node = v.node
    if node is None or v.fake.numel() != 1 or (name := called(node)) not in ALWAYS or len(node.args) != 2 or node.kwargs:
        return None
    drawn, limit = node.args
    if isinstance(limit, torch.fx.Node):
        drawn, limit, name = limit, drawn, SWAPPED[name]
    if not isinstance(drawn, torch.fx.Node) or drawn.target not in DRAWS or type(limit) not in (int, float):
        return None
    if was_written(drawn.meta["val"]) or was_written(v.fake):
        return None
    if ALWAYS[name](limit):
        return True
    return False if ALWAYS[OPPOSITE[name]](limit) else None
