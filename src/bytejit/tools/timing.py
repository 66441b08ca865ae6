"""How long a call takes: of a graph on copies of its inputs, of anything with its device waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from bytejit.runtime.rollback import random_states
from bytejit.runtime.verification import copied


def waited(inputs: Sequence[Any]) -> Callable[[], Any]:
    """What waits for the work on the devices of the inputs."""
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs)
    return torch.cuda.synchronize if on_gpu else lambda: None


def seconds_of(call: Callable, inputs: Sequence[Any], least: int = 5, enough: float = 0.05) -> float:
    """The median time of a call on copies of its inputs, after one that is not counted. At least `least` calls, at most 100, and
    no more after `enough` seconds. Random generators stand where they stood. Units: seconds."""
    before, given, wait = random_states(), [copied(x) for x in inputs], waited(inputs)
    try:
        call(*given)
        wait()
        times: list[float] = []
        while len(times) < 100 and (len(times) < least or sum(times) < enough):
            began = time.perf_counter()
            call(*given)
            wait()
            times.append(time.perf_counter() - began)
        return median(times)
    finally:
        for generator, state in before:
            generator.set_state(state)
