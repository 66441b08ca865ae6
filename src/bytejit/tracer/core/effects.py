"""What a region changes outside of the trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Var


@dataclass
class Effects:
    """Changes to objects from outside, which the region's exit makes."""

    touched: dict[int, Var] = field(default_factory=dict)  # everything that the region changed; such an object may contain itself
    dirty: dict[int, Var] = field(default_factory=dict)  # those of them that are objects from outside
    globals_written: dict[int, tuple[dict, dict]] = field(default_factory=dict)
    classes_written: dict = field(default_factory=dict)
    state_set: dict = field(default_factory=dict)  # torch's global state
    data_set: list = field(default_factory=list)  # tensors whose .data was set
    restore: tuple = ()  # (setter, args): torch's global state as it was at the start
    undo: list = field(default_factory=list)
    mutations: int = 0
