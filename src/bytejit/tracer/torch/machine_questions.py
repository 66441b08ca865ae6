"""Questions about the machine and torch's build: `torch.cuda.get_device_capability(x.device)`. The answers are constants. What
the system says of the process is guarded.

Answers about a GPU that is not named by its index are those of the current one, which is guarded.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from bytejit.tracer.core.models import models
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Var

from .library_settings import asked

_C = torch._C
OF_THE_MACHINE: list[Callable] = [
    _C._is_autocast_available,
    _C._get_privateuse1_backend_name,
    torch.backends.mps.is_available,
    torch.cuda.is_available,
    torch.cuda.device_count,
    torch.cuda.get_arch_list,
    torch.backends.cpu.get_cpu_capability,
    torch.accelerator.current_accelerator,
    torch.accelerator.device_count,
    torch.accelerator.is_available,
    torch.__config__.show,
]
OF_A_GPU: list[Callable] = [
    torch.cuda.is_bf16_supported,  # autocast asks, through calls that make a context of CUDA
    torch.cuda.get_device_capability,
    torch.cuda.get_device_name,
    torch.cuda.current_device,
]


def _constant(function: Callable, states: tuple[str, ...]) -> None:
    """Models a function that gives the same result for the same arguments, as long as `states` are the same."""

    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        real, named = tuple(t.const(a) for a in args), {k: t.const(v) for k, v in kwargs.items()}
        t.guards.add_state(*states)
        try:
            return t.values.constant(function(*real, **named))
        except Exception as e:  # the program's own: no GPU, a wrong argument
            raise t.raised(e) from None


for _function in OF_THE_MACHINE:
    _constant(_function, ())
for _function in OF_A_GPU:
    _constant(_function, ("cuda_device",))
for _function in (os.getpid, os.cpu_count):
    asked(_function)
