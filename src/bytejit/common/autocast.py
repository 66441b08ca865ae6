"""The state of autocast, to be entered again later."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch


def autocast_now() -> tuple[Callable, ...]:
    """Context managers that make autocast what it is now."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    kept = torch.is_autocast_cache_enabled()
    return (
        torch._C._DisableAutocast,
        *(functools.partial(torch.autocast, d, dtype=torch.get_autocast_dtype(d), cache_enabled=kept) for d in devices),
    )


def autocast_state() -> tuple:
    """For each device, the dtype that operations are cast to; None where autocast is off."""
    return tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda"))
