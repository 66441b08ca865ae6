"""Timing of several callables in turn, so that a machine whose speed drifts is the same for all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Clock = Callable[[], float]
ROOT = Path(__file__).resolve().parent.parent


def source_path() -> str:
    """`PYTHONPATH` of a process that measures this tree: its sources, before what this process was given."""
    return os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))


def processor_seconds() -> float:
    """What this process and those it waited for have used, on all threads: other programs do not add to it."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def block_seconds(f: Callable[[], object], calls: int, device: str, clock: Clock = time.perf_counter) -> float:
    """Seconds a call over a block of calls; on a GPU by events around the block."""
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            f()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    begin = clock()
    for _ in range(calls):
        f()
    return (clock() - begin) / calls


def calls_for(f: Callable[[], object], seconds: float, device: str) -> int:
    """How many calls fill a block of that many seconds, after a warm-up."""
    f()
    once = min(block_seconds(f, 1, device) for _ in range(3))
    return max(1, min(100_000, round(seconds / max(once, 1e-7))))


def in_turn(
    variants: dict[str, Callable[[], object]],
    seconds: float,
    block: float = 0.05,
    device: str = "cpu",
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a call of each variant, a number a round; the rounds go on for `seconds` in all, five at least."""
    calls = {name: calls_for(f, block, device) for name, f in variants.items()}
    found: dict[str, list[float]] = {name: [] for name in variants}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        names = list(variants)
        for name in names if rounds % 2 == 0 else names[::-1]:
            found[name].append(block_seconds(variants[name], calls[name], device, clock))
        rounds += 1
    return found


def speedup(base: list[float], other: list[float]) -> float:
    """How many times as fast as the base: the median over rounds, each compared with its neighbour in time."""
    return statistics.median(a / b for a, b in zip(base, other))


def seconds_text(seconds: float) -> str:
    """`2.31 us`, `4.05 ms`, `1.20 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
