"""The state of autocast, to be entered again later."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

import torch
import torch.nn.functional as F


def autocast_now() -> tuple[Callable, ...]:
    """Context managers that make autocast what it is now."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    kept = torch.is_autocast_cache_enabled()
    return (
        torch._C._DisableAutocast,
        *(functools.partial(torch.autocast, d, dtype=torch.get_autocast_dtype(d), cache_enabled=kept) for d in devices),
    )


def casts(device: str) -> bool:
    """Whether autocast is on for a type of devices; False for "meta", which torch refuses to tell."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def autocast_state() -> tuple:
    """Returns for each device the dtype that operations are cast to; None where autocast is off."""
    return tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda"))


def cast_resized(func: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of a call that torch's Python decompositions take over, where it resizes: with the cast to float32 that
    autocast makes for the op that they replace."""
    if not isinstance(func, Hashable) or func not in _resizing():
        return args, kwargs
    x = args[0] if args else kwargs.get("input")
    mode = kwargs.get("mode", args[3] if len(args) > 3 else "")
    if mode in ("area", "lanczos") or not isinstance(x, torch.Tensor) or not _resizes_in_float32(x):
        return args, kwargs
    return ((x.float(), *args[1:]), kwargs) if args else (args, {**kwargs, "input": x.float()})


@functools.cache
def _resizing() -> frozenset:
    """torch's functions that resize, and the ops that its decompositions replace: no operator of the program's."""
    names = [name for name in vars(torch._C._nn) if "upsample" in name]
    packets = [getattr(torch.ops.aten, name) for name in names]
    overloads = [packet.vec for packet in packets if "vec" in packet.overloads()]
    functions = (F.interpolate, F.upsample, F.upsample_nearest, F.upsample_bilinear)
    return frozenset((*functions, *(getattr(torch._C._nn, name) for name in names), *packets, *overloads))


def _resizes_in_float32(x: torch.Tensor) -> bool:
    device = x.device.type
    return (
        casts(device)
        and x.is_floating_point()
        and x.dtype != torch.float64
        and torch._C._dispatch_has_kernel_for_dispatch_key("aten::upsample_nearest2d", f"Autocast{device.upper()}")
    )
