"""mode="max-autotune": the fastest of a launch's configurations (block sizes, warps), timed on the device on made-up buffers.

A choice is kept on disk under the kernel's content, its configurations, the sizes of its buffers and the device's name. The
cost model's choice stays where none is faster by `MARGIN`, where sizes are known at the call only, and once a graph has taken
`BUDGET`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common.interrupts import poll
from bytejit.common.registry import count

from .disk import digest
from .json_cache import json_cache

MARGIN = 0.97  # another configuration must need less than this part of the default's time
BUDGET = 20.0  # seconds of a graph, after which nothing more is timed
ROUNDS = 5  # of all candidates in turn
REPEAT = 8  # launches between two events
ROOM = 0.25  # part of the free memory that made-up buffers may take


@dataclass
class Timer:
    """Seconds of a launch on the current stream of the current device."""

    start: Any = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))
    end: Any = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))

    def __call__(self, run: Callable[[], Any]) -> float:
        self.start.record()
        for _ in range(REPEAT):
            run()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) / 1e3 / REPEAT


def candidates(launch: Any) -> tuple:
    """The configurations to time, the default first; () where sizes are known at the call only, or there is one."""
    every = (launch.config, *launch.alternatives)
    if any(a.kind == "size" for a in launch.args):
        return ()
    return every if len(every) > 1 and all(isinstance(g, int) for c in every for g in c.grid) else ()


def choose(times: dict[int, list[float]]) -> int:
    """The candidate to take from the seconds of each round; 0 is the default."""
    best = min(times, key=lambda i: (min(times[i]), i))
    return best if best == 0 or 0 not in times or min(times[best]) < MARGIN * min(times[0]) else 0


class LaunchTuner:
    """Times the launches of one builder. extents(arg) -> bytes that an argument of a launch spans. rooms: bytes that may be
    taken; timer, clock: for tests."""

    def __init__(
        self,
        builder: Any,
        extents: Callable[[Any], int],
        device: str,
        room: int,
        stream: int,
        timer: Callable[[Callable[[], Any]], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.builder, self.extents, self.device, self.room, self.stream = builder, extents, device, room, stream
        self.timer, self.clock = timer or Timer(), clock
        self.store = json_cache("configurations", builder.options.cache_path)
        self.memory: dict[Any, torch.Tensor] = {}
        self.timed = 0

    def run(self, launches: Sequence[Any]) -> None:
        """Put the choice for each launch into `builder.chosen`."""
        known, began = dict(self.store.load()), self.clock()
        fresh: dict[str, int] = {}
        try:
            self.choose_each(launches, known, fresh, began)
        finally:  # a signal may end the compile here
            self.memory.clear()
            if fresh:
                self.store.merge(fresh)

    def choose_each(self, launches: Sequence[Any], known: dict, fresh: dict[str, int], began: float) -> None:
        """The same, with the choices of earlier processes; those that are timed now are put into `fresh`."""
        for launch in launches:
            configs = candidates(launch)
            if not configs or (launch.kernel, launch.config) in self.builder.chosen:
                continue
            key = self.key(launch, configs)
            at = known.get(key, fresh.get(key))
            if not isinstance(at, int) or not 0 <= at < len(configs):
                at = self.tried(launch, configs) if self.clock() - began < BUDGET else None
                if at is None:
                    continue
                fresh[key] = at
            self.builder.chosen[launch.kernel, launch.config] = configs[at]

    def key(self, launch: Any, configs: tuple) -> str:
        """What decides a choice."""
        sizes = list(map(self.extents, launch.args))
        return digest(self.builder.job(launch, launch.config, True).key, repr(configs), repr(sizes), self.device)

    def tried(self, launch: Any, configs: tuple) -> int | None:
        """`best`, within the device's memory. If that is too little, the memory of earlier launches is freed, and `best`
        runs once more. None if it is still too little."""
        try:
            return self.best(launch, configs)
        except torch.OutOfMemoryError:
            self.memory.clear()
        try:
            return self.best(launch, configs)
        except torch.OutOfMemoryError:
            self.memory.clear()
            count("fallbacks", "a kernel's configurations are not timed: the GPU has no memory left for it")
            return None

    def best(self, launch: Any, configs: tuple) -> int | None:
        """The position of the fastest configuration; None where it cannot be found out (no memory, nothing builds)."""
        if not self.fits(launch):
            return None
        binaries = self.builder.binaries.of([self.builder.job(launch, c, True) for c in configs])
        runs: dict[int, Callable[[], Any]] = {}
        for i, (config, binary) in enumerate(zip(configs, binaries)):
            loaded = self.builder.try_load(self.builder.job(launch, config, True), binary)
            if loaded is not None:
                runs[i] = self.builder.alone(launch, config, loaded, [self.address(a) for a in launch.args], self.stream)
        if not runs:
            return None
        self.timed += 1
        for run in runs.values():
            run()  # warm
        times: dict[int, list[float]] = {i: [] for i in runs}
        for _ in range(ROUNDS):
            poll()
            for i, run in runs.items():
                times[i].append(self.timer(run))
        return choose(times)

    def fits(self, launch: Any) -> bool:
        """Whether there is memory for the launch's buffers."""
        keys = {(a.kind, a.name, a.offset): self.extents(a) for a in launch.args}
        return sum(keys.values()) <= self.room

    def address(self, arg: Any) -> int:
        """The address of a made-up argument: zeros, so that an index among them is in range; floats are small numbers."""
        key = (arg.kind, arg.name, arg.offset)
        if key not in self.memory:
            made = torch.zeros(max(16, self.extents(arg)), dtype=torch.uint8, device=self.builder.torch_device)
            if arg.type in ("*fp32", "*fp16", "*bf16"):
                made.fill_(0x3C)  # 0.0115 as f32, 1.06 as f16, 0.0115 as bf16
            self.memory[key] = made
        return self.memory[key].data_ptr()
