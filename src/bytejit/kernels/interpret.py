"""Triton kernels run by Triton's interpreter on the CPU (TRITON_INTERPRET=1): slow, for tests where there is no GPU.

It takes the same rows of launches as a GPU: each address becomes a tensor over the memory that begins there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.dtypes import BY_POINTER

from .disk import digest
from .triton_worker import module_of


def load_module(text: str) -> Any:
    """A module of kernels from its text. Raises: RuntimeError where triton was imported without its interpreter."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("option interpret: set TRITON_INTERPRET=1 before triton is imported")
    name = f"bytejit_interpreted_{digest(text)}"
    if name not in sys.modules:
        sys.modules[name] = module_of(text, name)
    return sys.modules[name]


def memory_at(address: int, type: str, bytes: int) -> torch.Tensor:
    """The memory at an address as a flat tensor of a kernel's parameter type."""
    dtype = BY_POINTER[type]
    count = max(1, bytes // dtype.itemsize)
    if not address:  # a tensor without elements
        return torch.empty(count, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)


def build(source: Any, rows: Sequence[Any], extents: Callable[[Any, dict], int]) -> tuple[Callable, ...]:
    """run(stream, *arguments) -> 0 for each row. extents(arg, sizes) -> bytes that an argument of a launch spans."""
    module = load_module(source.text)

    def runner(row: Any) -> Callable:
        index = {arg: i for i, arg in enumerate(row.args)}
        places = [[row.place(a, index) for a in launch.args] for launch in row.launches]

        def run(*values: int) -> int:
            sizes = {name: values[i] for (kind, name), i in index.items() if kind == "size"}
            for launch, where in zip(row.launches, places):
                passed = []
                for a, (at, added) in zip(launch.args, where):
                    value = values[at] + added
                    passed.append(value if a.kind == "size" else memory_at(value, a.type, extents(a, sizes)))
                grid = tuple(g if isinstance(g, int) else values[index["value", g]] for g in launch.grid)
                getattr(module, launch.kernel)[grid](
                    *passed, **dict(launch.constants), num_warps=launch.warps, num_stages=launch.stages
                )
            return 0

        return run

    return tuple(runner(row) for row in rows)
