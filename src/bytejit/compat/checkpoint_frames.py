"""Which checkpoint of torch's is at work: read from the hooks and frames of `torch.utils.checkpoint`, whose names no
documentation promises.

A checkpoint begun here is looked at first (`_names_hold`, probe "own" of `table.py`). Where it holds something else under the
names, nothing is read, and each checkpoint counts as one that runs the original code again.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from bytejit.common.checkpointed import CHECKPOINT

# the code of torch's functions that run what they were given, and run it again as they were given it
_RUNS = {f.__code__ for f in (CHECKPOINT, getattr(torch.utils.checkpoint, "_checkpoint_impl", None)) if f is not None}
# owner: runs_again; size: the checkpoints whose backward pass is to come
_SAME: weakref.WeakSet[Any] = weakref.WeakSet()
_hooks_of = torch._C._autograd._top_saved_tensors_default_hooks


def runs_again(pack: Callable) -> bool:
    """Whether the checkpoint whose hook this is runs the compiled code again that runs now. Where a checkpoint began within
    compiled code (a module's hooks began it, torch.distributed's), it runs the original code again."""
    if not _names_hold():
        return False
    again = _held(pack).get("target_frame_ref")  # the hook of a second run: it names the first
    if again is not None:
        return isinstance(again, weakref.ref) and again() in _SAME
    state = _state_of(pack)
    if state is not None:
        _SAME.add(state)
    return state is not None


def _held(pack: Callable) -> dict[str, Any]:
    return dict(inspect.getclosurevars(inspect.unwrap(pack)).nonlocals)


def _state_of(pack: Callable) -> Any:
    """What torch keeps of the checkpoint whose hook this is, where the checkpoint itself called the code that runs now; else
    None."""
    state, frame = _held(pack).get("frame"), sys._getframe(1)
    while state is not None and frame is not None:
        if frame.f_code in _RUNS:
            steps = getattr(frame.f_locals.get("gen"), "gi_frame", None)
            if steps is not None and steps.f_locals.get("new_frame") is state:
                return state
        frame = frame.f_back  # type: ignore[assignment]
    return None


@functools.cache
def _names_hold() -> bool:
    """Whether a checkpoint of our own is found by the names. The program's, which may be at work, does not see what this one
    saves: it counts what it is given. Costs some 100 us, once."""
    found: list[Any] = []

    def within(_: None) -> None:
        found.append(_state_of(_hooks_of(False)[0]))

    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            CHECKPOINT(within, None, use_reentrant=False, preserve_rng_state=False)
    except Exception:  # it holds something else: whatever looking there raises
        return False
    return found[0] is not None
