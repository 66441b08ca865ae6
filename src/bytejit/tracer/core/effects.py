"""What a region changes outside of the trace, and how much of it was traced."""
from __future__ import annotations

import time
from dataclasses import dataclass, field

from .values import Var


@dataclass
class Effects:
    """Changes to objects from outside, which the region's exit makes."""

    touched: dict[int, Var] = field(default_factory=dict)      # all that the region changed: what may hold itself
    dirty: dict[int, Var] = field(default_factory=dict)        # of these, objects from outside
    globals_written: dict[int, tuple[dict, dict]] = field(default_factory=dict)
    classes_written: dict = field(default_factory=dict)
    state_set: dict = field(default_factory=dict)              # torch's global state
    data_set: list = field(default_factory=list)               # tensors whose .data was set
    restore: tuple = ()                                        # (setter, args): torch's global state as it was at the start
    undo: list = field(default_factory=list)
    mutations: int = 0


class Limits:
    """How much was traced: a region that goes on for long without tensors is left to the original code."""

    def __init__(self, seconds: float) -> None:
        self.steps = 0
        self.instructions, self.worked = 0, (0, 0)      # traced so far; nodes of the graph, and what was traced at the last
        self.calls_since = (0, 0)
        self.loop_counts: dict = {}
        self.first_step: dict[int, int] = {}
        self.visited: set[int] = set()
        self.deadline = time.monotonic() + seconds
