"""torch.profiler.record_function within a graph: nodes open and close its ranges, which a profiler then sees.

A graph that runs op by op has them where the program has them. One whose operations are fused, or that a backend of the
program's compiles, runs as a whole within the ranges that are open before the first one closes; later ones are empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Event = tuple[str, str | None] | None  # what a range is called and its arguments; None: the innermost one ends


class _Open(threading.local):
    """The ranges that the thread's graphs have opened, innermost last: (the region's number, torch's record or None)."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, object]] = []


_open = _Open()
profiled = getattr(torch.autograd, "_profiler_enabled", lambda: True)


def enter(name: str, args: str | None = None, region: int = 0) -> None:
    """`torch.profiler.record_function(name, args).__enter__()`; without a profiler only noted. Cost then: 150 ns."""
    record = torch.ops.profiler._record_function_enter_new(name, args) if profiled() else None
    _open.stack.append((region, record))


def leave() -> None:
    """End the range that was opened last."""
    record = _open.stack.pop()[1]
    if record is not None:
        torch.ops.profiler._record_function_exit._RecordFunction(record)


def leave_all(region: int) -> None:
    """End all ranges that a region has opened and not ended: its graph raised."""
    while any(r == region for r, _ in _open.stack):
        leave()


NODES = (enter, leave)


def events_of(graph: torch.fx.Graph) -> tuple[Event, ...]:
    """The ranges of a graph, in order."""
    return tuple(n.args[:2] if n.target is enter else None for n in graph.nodes if n.target in NODES)


def without(gm: torch.fx.GraphModule) -> tuple[Event, ...]:
    """Take the ranges out of a graph. Returns them."""
    events = events_of(gm.graph)
    for node in [n for n in gm.graph.nodes if n.target in NODES]:
        gm.graph.erase_node(node)
    if events:
        gm.recompile()
    return events


def around(call: Callable, events: tuple[Event, ...]) -> Callable:
    """A graph's callable within its ranges."""
    if not events:
        return call
    first = events.index(None) if None in events else len(events)
    balanced = 2 * events.count(None) == len(events)

    def ranged(*inputs: Any) -> Any:
        if balanced and not profiled():
            return call(*inputs)
        depth = len(_open.stack)
        try:
            _follow(events[:first])
            found = call(*inputs)
            _follow(events[first:])
        except BaseException:
            while len(_open.stack) > depth:
                leave()
            raise
        return found

    return ranged


def _follow(events: tuple[Event, ...]) -> None:
    for event in events:
        if event is None:
            leave()
        else:
            enter(*event)
