"""`torch.linspace` on a CPU: a constant, made by torch itself.

Eager computes a line in blocks as wide as the CPU's vectors, each from its first element, in the dtype of the result. Which
element is rounded how depends on the CPU, and beyond one block of a thread on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch

from .graph_writer import GraphWriter

MOST_ELEMENTS = 32768  # torch computes more in several threads


def line(w: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a line of known numbers as a tensor that each call gets anew; else as a call."""
    start, end, steps = args
    dtype, device = kwargs.get("dtype") or torch.get_default_dtype(), torch.device(kwargs.get("device") or "cpu")
    known = type(steps) is int and steps <= MOST_ELEMENTS and all(type(v) in (int, float) for v in (start, end))
    if not known or device.type != "cpu" or not dtype.is_floating_point:
        return w.new(func, args, kwargs)
    return w.constant(torch.linspace(start, end, steps, dtype=dtype), fresh=True)
