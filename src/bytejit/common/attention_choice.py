"""Which kernels torch's attention may take: flags of the process, with the order in which they are tried (`sdpa_kernel`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_C = torch._C
_LATER = ("overrideable", "fa3")  # kernels that not all torches have
# setter -> getter
GETTERS: dict[Callable[[Any], None], Callable[[], Any]] = {
    _C._set_sdp_use_flash: _C._get_flash_sdp_enabled,
    _C._set_sdp_use_mem_efficient: _C._get_mem_efficient_sdp_enabled,
    _C._set_sdp_use_math: _C._get_math_sdp_enabled,
    _C._set_sdp_use_cudnn: _C._get_cudnn_sdp_enabled,
    _C._set_sdp_priority_order: _C._get_sdp_priority_order,
    **{
        getattr(_C, f"_set_sdp_use_{name}"): getattr(_C, f"_get_{name}_sdp_enabled")
        for name in _LATER
        if hasattr(_C, f"_set_sdp_use_{name}") and hasattr(_C, f"_get_{name}_sdp_enabled")
    },
}
_READ = tuple(GETTERS.values())
_SETTLED: list[bool] = []  # not empty when `settled` has let torch choose


def read() -> tuple:
    """The flags and the order now. Cost: 0.5 us."""
    return tuple([getter() for getter in _READ])


def settled() -> tuple:
    """`read`, after torch has put the kernels in the order that it prefers on this GPU. torch does so once, when it first chooses
    a kernel; restoring a state that was read before would undo it."""
    if not _SETTLED and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        _SETTLED.append(True)
        with _C._DisableTorchDispatch(), _C.DisableTorchFunction():
            x = torch.empty((1, 1, 8, 8), dtype=torch.float16, device="cuda")
            torch._fused_sdp_choice(x, x, x)
    return read()


def write(choice: tuple) -> None:
    """Set the flags and the order to what `read` returned."""
    for setter, value in zip(GETTERS, choice):
        setter(value)


def free_on_cpu() -> bool:
    """Whether torch may take any kernel that it has for the CPU."""
    return _C._get_flash_sdp_enabled() and _C._get_math_sdp_enabled()
