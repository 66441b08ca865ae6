"""An autograd function of the program's in a traced graph: what the node calls that stands for its `apply`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass

from .graph_calls import GraphCall


@light_dataclass(frozen=True, eq=False)
class TracedPasses:
    """Both passes of an autograd function, traced.

    forward: takes the values `forward_takes` of those that the node is given besides the arguments, returns `results` values
    and what the backward pass reads. backward: takes the gradients of the outputs `grads`, then `backward_takes`, then what the
    forward pass returned for it; returns one gradient or None for each of the first arguments. outputs: of `apply`: the
    position of a result, or (constant,). saved: which of the values that the backward pass takes besides gradients went
    through `save_for_backward`. holds: whether what the backward pass looked at is as it was; None: it looked at nothing.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    forward_takes: tuple[int, ...]
    backward_takes: tuple[int, ...]
    results: int
    outputs: tuple[int | tuple, ...]
    single: bool
    grads: tuple[int, ...]
    saved: frozenset[int]
    marked: tuple[int, ...]
    materialize: bool = True  # a gradient that is not defined is zeros to the backward pass
    holds: Callable[[], bool] | None = None


class Applied(GraphCall):
    """Calls `apply`. arguments: so many of the inputs are its arguments; the others are what its passes read besides. passes:
    None where its backward pass cannot be traced: then it runs through torch. changes: that pass may change what is outside."""

    def __init__(self, name: str, apply: Callable, arguments: int, passes: TracedPasses | None, changes: bool = False) -> None:
        parts = () if passes is None else (passes.forward, passes.backward)
        super().__init__(self.under_torch, f"apply_{name}", f"the autograd function {name}", parts)
        self.apply, self.arguments, self.passes, self.changes = apply, arguments, passes, changes

    def under_torch(self, *inputs: Any) -> Any:
        """Calls `apply` by torch's own means, and returns its result."""
        return self.apply(*inputs[: self.arguments])
