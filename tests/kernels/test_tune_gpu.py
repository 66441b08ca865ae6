"""Timing on a GPU: the host is ahead of the device, however slow it is. The GPU is pretended."""

from __future__ import annotations

import types

import pytest
import torch

from bytejit.kernels import tune_gpu
from bytejit.kernels.tune_gpu import CALLS, CYCLES, GpuTuner


class Event:
    """An event of a device that takes 1 ms a call."""

    def __init__(self, enable_timing: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1.0 * CALLS


@pytest.mark.parametrize(("host", "enough"), [(0.0, tune_gpu.BUSY), (5e-4, CALLS * 5e-4), (1.0 / 64, tune_gpu.MOST)])
def test_the_device_is_busy_while_the_host_enqueues(monkeypatch: pytest.MonkeyPatch, host: float, enough: float) -> None:
    slept: list[float] = []
    clock = [0.0]  # seconds: only the host's calls take any
    monkeypatch.setattr(tune_gpu, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: slept.append(cycles / CYCLES), raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    tuner = object.__new__(GpuTuner)
    tuner.busy = tune_gpu.BUSY

    def slow() -> None:
        clock[0] += host

    for _ in range(3):
        assert tuner._seconds(slow, [()] * CALLS) == pytest.approx(1e-3)
        assert slept[-1] >= enough
    tuner._seconds(lambda: None, [()] * CALLS)
    assert tuner.busy == tune_gpu.BUSY  # one slow call is not waited for in all later ones
