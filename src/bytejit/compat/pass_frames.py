"""What a running backward pass is for: read from the frame of torch's own function that runs passes, as torch's engine says of a
result of a node neither that a pass is for it nor that it is not. Where that frame is not found, or holds something else, this
is not known."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch.autograd import graph

_RUNS = getattr(getattr(graph, "_engine_run_backward", None), "__code__", None)
_INPUTS = 3  # their place among what the engine gets behind the tensors that the pass begins at

Asked: TypeAlias = torch.Tensor | graph.GradientEdge


def asked_for() -> Sequence[Asked] | None:
    """The tensors and edges whose gradients the running pass returns, or adds to `.grad`; none: it is for all leaves. None: not
    known. torch runs the nodes of a GPU in a thread of its own: there, those of all passes that run."""
    found = next(_passes(sys._getframe(1)), None)
    if found is not None:
        return found
    others = [asked for top in sys._current_frames().values() for asked in _passes(top)]
    if not others:
        return None
    return [t for asked in others for t in asked] if all(others) else ()


def _passes(frame: types.FrameType | None) -> Iterator[Sequence[Asked]]:
    """What each pass that a thread is within is for, the innermost first. frame: the thread's innermost frame."""
    while frame is not None:
        if frame.f_code is _RUNS:
            given = frame.f_locals.get("args", ())
            if len(given) > _INPUTS and isinstance(given[_INPUTS], tuple):
                yield given[_INPUTS]
        frame = frame.f_back
