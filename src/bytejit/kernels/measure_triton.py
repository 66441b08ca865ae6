"""Times the kernels of a generated Triton module, each on buffers of its own sizes: what its `main` calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.dtypes import BY_POINTER

REPEATS = 20


def measure(module: dict[str, Any], buffers: dict[str, tuple[str, int]], steps: list[tuple], scratch: int) -> list[float]:
    """Run and time each step; print a line for each. Returns the seconds. Buffers hold random floats, or zeros.

    On a GPU: the median of 20 runs by events, with a cold L2. Else, under Triton's interpreter, one run.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = {}
    for name, (kind, count) in buffers.items():
        dtype = getattr(torch, kind)
        value = torch.randn(count, device=device) if dtype.is_floating_point else torch.zeros(count, device=device)
        memory[name] = value.to(dtype)
    space = torch.empty(scratch + 64, dtype=torch.uint8, device=device)
    fault = torch.zeros(1, dtype=torch.int32, device=device)
    best = peak(device)
    out = []
    for at, traffic, launches in steps:
        calls = [launch(module, one, memory, space, fault) for one in launches]
        seconds = timed(calls, device)
        out.append(seconds)
        rate = traffic / seconds / 1e9
        share = f", {rate / best:.0%} of the device's {best:.0f} GB/s" if best else ""
        for name, grid, _, constants, warps, _ in launches:
            print(f"step {at}  {name}  {list(grid)} {constants} warps={warps}")
        print(f"    {seconds * 1e6:.1f} us, {rate:.0f} GB/s{share}")
    return out


def launch(
    module: dict[str, Any], one: tuple, memory: dict[str, torch.Tensor], space: torch.Tensor, fault: torch.Tensor
) -> Callable[[], Any]:
    """A launch as a function."""
    name, grid, args, constants, warps, stages = one
    values = [
        memory[v]
        if kind == "buffer"
        else space[v : v + (len(space) - v) // 8 * 8].view(BY_POINTER[t])
        if kind == "scratch"
        else fault
        if kind == "fault"
        else v
        for kind, v, t in args
    ]
    kernel = module[name]
    options = {"num_warps": warps, "num_stages": stages, "enable_reflect_ftz": False, "enable_fp_fusion": False}
    return lambda: kernel[grid](*values, **constants, **options)


def timed(calls: list[Callable], device: str) -> float:
    """Seconds of some launches in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start
    flush = torch.empty(1 << 26, dtype=torch.int32, device=device)
    for call in calls:
        call()
    seconds = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in calls:
            call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def peak(device: str) -> float:
    """Memory bandwidth that the device is built for, 0 when it does not say. Units: GB/s."""
    if device == "cpu":
        return 0.0
    facts = torch.cuda.get_device_properties(0)
    return 2 * getattr(facts, "memory_clock_rate", 0) * getattr(facts, "memory_bus_width", 0) / 8 / 1e6
