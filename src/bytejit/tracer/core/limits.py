"""Limits of tracing: a region that goes on for long without tensor work is left to the original code.

The region then ends before the outermost loop of the root that is going on, so that the original code runs all of it.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn, Protocol

import torch

from .frame import Frame, Ins
from .job import Job
from .signals import Break, TooLong

LONG_CALLS = 10_000  # calls inlined without a new graph node after which the original code goes on
LONG_LOOP = 4_000  # jumps back without a new graph node after which a loop is left to the original code
LONG_WORK = 50_000  # instructions traced without a new graph node after which loops and calls are left to it
LONG_SYMBOLIC = 100  # the same for jumps back that each decide something anew about a symbolic size


class Traced(Protocol):
    """What `Limits` needs from the tracer."""

    job: Job
    graph: torch.fx.Graph
    frame: Frame | None
    root: Frame | None
    sizes: Any


class Limits:
    """Counts instructions, calls and jumps back, and ends the region where it went on for too long."""

    def __init__(self, t: Traced, seconds: float) -> None:
        self.t, self.seconds = t, seconds
        self.steps = 0
        self.instructions, self.worked = (
            0,
            (0, 0),
        )  # counts so far; number of graph nodes, and the counts when the last node was added
        self.calls_since = (0, 0)
        self.loop_counts: dict = {}
        self.first_step: dict[int, int] = {}
        self.visited: set[int] = set()
        self.deadline = time.monotonic() + seconds

    def check_time(self) -> None:
        """Raises: TooLong."""
        if time.monotonic() > self.deadline:
            raise TooLong(f"tracing took longer than {self.seconds:g} s")

    def call_step(self) -> None:
        """A call is inlined: leave long recursions without tensor work to the original code. Raises: Break, TooLong."""
        nodes, count = self.calls_since
        size = len(self.t.graph.nodes)
        self.calls_since = size, (count + 1 if nodes == size else 0)
        if count > LONG_CALLS or self.worked_long(size):
            self.stop_long("a long row of calls")
        self.check_time()

    def stop_long(self, what: str) -> NoReturn:
        """Raises: Break."""
        raise Break(f"{what} without tensor work", at_step=self.loop_around(), long=True)

    def work_step(self) -> None:
        """An item of a container was looked at, which no instruction of the program's counts. Raises: Break."""
        self.instructions += 1
        long = self.instructions - self.worked[1] > LONG_WORK and self.t.frame is not None
        if long and self.worked_long(len(self.t.graph.nodes)):
            self.stop_long("many items looked at")

    def worked_long(self, nodes: int) -> bool:
        """Whether many instructions were traced since the graph got its last node."""
        if nodes != self.worked[0]:
            self.worked = nodes, self.instructions
        # where a break is an error
        return self.instructions - self.worked[1] > LONG_WORK and not self.t.job.measure

    def loop_around(self) -> int | None:
        """The step at which the outermost loop of the root that is going on was reached, where it went round before."""
        if self.t.root is None:
            return None
        code, ip = id(self.t.root.code), self.t.root.ip
        heads = [
            self.t.root.decoded.ins[at].jump
            for (of, at), counts in self.loop_counts.items()
            if of == code and counts[1] > 1 and self.t.root.decoded.ins[at].jump <= ip <= at
        ]
        return self.first_step.get(min(heads)) if heads else None

    def loop_step(self, f: Frame, ins: Ins) -> None:
        """A jump back: leave long loops without tensor work to the original code."""
        key = (id(f.code), ins.index)
        nodes, count, learnt, decisions = self.loop_counts.get(key, (0, 0, 0, 0))
        size, version = len(self.t.graph.nodes), 0 if self.t.sizes.env is None else self.t.sizes.env.version
        count = count + 1 if nodes == size else 0
        decisions = decisions + (version != learnt) if nodes == size else 0
        self.loop_counts[key] = (size, count, version, decisions)
        self.check_time()
        if count > LONG_LOOP or decisions > LONG_SYMBOLIC or self.worked_long(size):
            step = self.first_step.get(ins.jump) if f is self.t.root else self.loop_around()
            raise Break("a long loop without tensor work", at_step=step, long=True)
