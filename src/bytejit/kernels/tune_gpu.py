"""Timed choice between libraries on a GPU: as `tune`, with CUDA events and random operands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from bytejit.common.interrupts import poll
from bytejit.common.registry import count
from bytejit.common.spec import Spec

from .tune import ROUNDS, Choice, ChoiceStore, Tuner, span_bytes, still_near

CALLS = 4  # calls between two events: a launch's own gaps count less
CYCLES = 2e9  # of a GPU's clock, a second, at most
BUSY, MOST = 1.5e-4, 8e-3  # seconds that the device is kept busy while the host enqueues calls: at first, and at most
COLD = 128 << 20  # bytes of operands that are read from memory: more than the L2 cache holds
COPIES = 32  # of such an operand, at most


def precisions() -> tuple[object, object]:
    """The precision of f32 products and convolutions on a GPU, by either of torch's two settings. Since torch 2.9 the older one
    raises once the newer one has been used."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(torch.backends, "fp32_precision"):
        return matmul.fp32_precision, cudnn.conv.fp32_precision
    return matmul.allow_tf32, cudnn.allow_tf32


def uses_tf32() -> bool:
    """Whether torch's own f32 products on a GPU may round their factors to TF32."""
    return precisions()[0] in ("tf32", True)


class GpuTuner(Tuner):
    """A `Tuner` for one GPU. Choices are kept by the GPU's name and the versions of torch and cuDNN. products: what our own
    matrix products are made by (`matmul_triton`), under max-autotune."""

    products: ModuleType | None = None
    copies = COPIES
    cold_bytes = COLD

    def __init__(self, store: ChoiceStore | None, device: int, enabled: bool = True) -> None:
        super().__init__(store, enabled, threads=1, clock=time.perf_counter)
        self.busy = BUSY
        self.device = torch.device("cuda", device)
        flags = (*precisions(), torch.backends.cudnn.benchmark)
        self.machine = (
            f"{torch.cuda.get_device_name(device)}|torch {torch.__version__}|"
            f"cudnn {torch.backends.cudnn.version()}|{flags}|enqueued ahead"
        )

    def choose(
        self,
        op: str,
        specs: Sequence[Spec],
        candidates: Sequence,
        cold: Sequence[int] = (),
        attrs: object = "",
        **distances: Any,
    ) -> Choice | None:
        """As `Tuner.choose`, but `distances` are not looked at; None, the default, where the device has no memory left for
        operands or results."""
        try:
            return super().choose(op, specs, candidates, cold, attrs)
        except torch.OutOfMemoryError:
            count("fallbacks", "a library is not timed: the GPU has no memory left for it")
            return None

    def _rounds(self, ready: Mapping[str, tuple], first: Mapping[str, float], default: str) -> dict[str, list[float]]:
        """Seconds a call of each, a number a round of calls between events."""
        samples: dict[str, list[float]] = {n: [] for n in ready}
        active = list(ready)
        for turn in range(ROUNDS):
            poll()
            for name in active:
                call, runs = ready[name]
                samples[name].append(self._seconds(call, [runs[(turn * CALLS + k) % len(runs)] for k in range(CALLS)]))
            if turn > 0:
                active = still_near(active, samples, default)
                if len(active) == 1:
                    break
        return samples

    def _seconds(self, call: Callable, runs: Sequence[tuple]) -> float:
        """Seconds a call on the device. The calls are enqueued while the device is busy with something else. Else a slow host
        would measure its own launches."""
        while True:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(round(self.busy * CYCLES))
            began = time.perf_counter()
            start.record()
            for operands in runs:
                call(*operands)
            end.record()
            queued = time.perf_counter() - began
            end.synchronize()
            ahead = queued < self.busy or self.busy >= MOST
            self.busy = min(MOST, max(BUSY, 2 * queued))
            if ahead:
                return start.elapsed_time(end) / 1e3 / len(runs)

    def _warm(self, spec: Spec) -> torch.Tensor:
        generator = torch.Generator(self.device)  # the user's random numbers are not touched
        flat = torch.empty(span_bytes(spec) // spec.dtype.itemsize, dtype=spec.dtype, device=self.device)
        if spec.dtype.is_floating_point:
            flat.normal_(generator=generator)
        else:
            flat.zero_()
        return flat.as_strided(spec.shape, spec.stride)

    _cold = _warm  # it is cold once the copies no longer fit into the cache
