"""A checkpointed part of a traced graph: what the node calls that stands for `torch.utils.checkpoint`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint

from .graph_calls import GraphCall

CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint)
CONTEXTS = "context_fn"


class Checkpointed(GraphCall):
    """Runs a graph under torch's checkpoint. part: the graph; saved: so many of its inputs are the checkpoint's arguments, the
    others are what its function reads besides; options: the checkpoint's, as the program gave them."""

    def __init__(self, part: torch.fx.GraphModule, saved: int, options: Mapping[str, Any]) -> None:
        super().__init__(self.under_torch, "checkpoint_part", "a checkpointed part", (part,))
        self.part, self.saved, self.options = part, saved, dict(options)

    def under_torch(self, *inputs: Any) -> tuple:
        """The part's results, by torch's own means."""
        given, rest = inputs[: self.saved], inputs[self.saved :]
        return CHECKPOINT(lambda *args: self.part.forward(*args, *rest), *given, **{"use_reentrant": False, **self.options})

    @property
    def keeps_random(self) -> bool:
        """Whether numbers drawn at random are the same when the part is computed again."""
        return self.options.get("preserve_rng_state", True)

    @property
    def contexts(self) -> Callable:
        """Returns the function that makes the context managers under which the part runs first, and again."""
        return self.options.get(CONTEXTS, torch.utils.checkpoint.noop_context_fn)


def is_reentrant(node: torch.fx.Node) -> bool:
    """Whether a node is a reentrant checkpoint, or has one in it."""
    if isinstance(node.target, Checkpointed):
        return bool(node.target.options.get("use_reentrant")) or any(map(is_reentrant, node.target.part.graph.nodes))
    return False
