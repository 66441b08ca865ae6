"""A checkpointed part of a traced graph: what the node calls that stands for `torch.utils.checkpoint`."""

from __future__ import annotations

import inspect
import sys
import weakref
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


# the code of torch's functions that run what they were given, and run it again as they were given it
_RUNS = {f.__code__ for f in (CHECKPOINT, getattr(torch.utils.checkpoint, "_checkpoint_impl", None)) if f is not None}
# owner: runs_again; size: the checkpoints whose backward pass is to come
_SAME: weakref.WeakSet[Any] = weakref.WeakSet()


def runs_again(pack: Callable) -> bool:
    """Whether the checkpoint whose hook this is runs the compiled code again that runs now. Where a checkpoint began within
    compiled code (a module's hooks began it, torch.distributed's), it runs the original code again."""
    held = inspect.getclosurevars(inspect.unwrap(pack)).nonlocals
    if (again := held.get("target_frame_ref")) is not None:
        return again() in _SAME
    one, frame = held.get("frame"), sys._getframe(1)
    while one is not None and frame is not None:
        if frame.f_code in _RUNS:
            steps = getattr(frame.f_locals.get("gen"), "gi_frame", None)
            if steps is not None and steps.f_locals.get("new_frame") is one:
                _SAME.add(one)
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
