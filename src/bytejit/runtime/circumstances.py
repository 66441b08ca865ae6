"""Circumstances in which nothing is compiled: a debugger, replaced functions, torch modes that watch each operation."""

from __future__ import annotations

import builtins
import gc
import linecache
import os
import sys
import threading
import time
import weakref

import torch

from bytejit.common import special_cases

# What the compiler itself calls, by the names of the namespaces: while a program (a test) has replaced one of them, nothing
# is compiled.
_NEEDED = tuple(
    (vars(module), {name: getattr(module, name) for name in names.split()})
    for module, names in (
        (
            builtins,
            "len isinstance issubclass getattr hasattr setattr type id iter next range zip enumerate map filter sorted "
            "reversed min max sum any all abs hash repr str int float bool list dict tuple set frozenset callable super vars "
            "slice compile exec open object property staticmethod classmethod __import__ __build_class__",
        ),
        (os, "getcwd fspath stat getpid"),
        (os.path, "abspath join exists splitext"),
        (sys, "_getframe exc_info"),
        (time, "monotonic perf_counter"),
        (linecache, "getline getlines checkcache updatecache"),
        (weakref, "ref finalize"),
        (threading, "Lock RLock"),
        (gc, "isenabled enable disable"),
    )
)


def debugged() -> bool:
    """Whether a debugger follows this thread line by line: it would be shown the compiler's lines. Coverage tools count
    them, which does no harm."""
    follows = sys.gettrace()
    return follows is not None and not special_cases.COVERAGE.made(type(follows)) or monitored()


def monitored() -> bool:
    """Whether a tool of sys.monitoring (3.12 and later) other than coverage is told of each line or instruction."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return False
    each = monitoring.events.LINE | monitoring.events.INSTRUCTION
    names = ((tool, monitoring.get_tool(tool)) for tool in range(6))
    return any(name not in (None, "coverage.py") and monitoring.get_events(tool) & each for tool, name in names)


def replaced(needed: tuple = _NEEDED) -> bool:
    """Whether the program has replaced a function that the compiler uses."""
    for now, names in needed:
        for name in names:
            if now.get(name) is not names[name]:
                return True
    return False


def watched() -> str:
    """The name of what is active around the call and must see the program's own operations; "" when nothing is."""
    if torch._C._len_torch_dispatch_stack():
        return "an active TorchDispatchMode"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a function transform (torch.func, torch.vmap) around the call"
    if torch._C._is_tracing():
        return "torch.jit.trace around the call"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation around the call"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # compiling waits for the device
        return "a CUDA graph that is recorded around the call"
    return ""
