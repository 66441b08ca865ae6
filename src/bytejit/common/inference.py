"""Inference mode within a graph: nodes enter and leave it, and a graph that raises in between leaves it too."""

from __future__ import annotations

import threading

import torch


class _Entered(threading.local):
    """What the thread's graphs have entered, innermost last: (the region's number, the manager)."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, torch._C._InferenceMode]] = []


_entered = _Entered()


def enter(mode: bool, region: int) -> None:
    """`torch.inference_mode(mode).__enter__()`, for the graph of a region.

    Making the manager enters the mode, and its end, whenever that comes, sets what was there before: no interrupt can come
    before it is noted.
    """
    manager = torch._C._InferenceMode(mode)
    _entered.stack.append((region, manager))
    manager.__enter__()


def leave() -> None:
    """Leave what was entered last. Cut short, it may be called again."""
    _entered.stack[-1][1].__exit__(None, None, None)
    _entered.stack.pop()


def depth() -> int:
    """Returns how many modes this thread's graphs have entered and not left."""
    return len(_entered.stack)


def leave_to(wanted: int) -> None:
    """Leave modes until `wanted` are entered. A write: it may be repeated."""
    while len(_entered.stack) > wanted:
        leave()


def leave_all(region: int) -> None:
    """Leave all that a region has entered and not left: its graph raised."""
    while any(r == region for r, _ in _entered.stack):
        leave()
