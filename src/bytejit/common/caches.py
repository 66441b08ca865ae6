"""Global caches of compiled things, each with an owner and a way to empty it.

LIBRARIES  owner: kernels.build_cpp   size: one entry a distinct source text   cleared: reset(); a loaded library stays mapped
BUILDING   owner: kernels.build_cpp   size: one entry a unit that is being built ahead   cleared: when it is built
BINARIES   owner: kernels.build_triton   size: one entry a distinct GPU kernel   cleared: reset()
GPU_KERNELS  owner: kernels.build_triton   size: one entry a loaded GPU kernel and device   cleared: never: it stays loaded
ARENAS     owner: codegen.cuda.arena  size: one piece of at most 64 MiB a device, stream and thread  cleared: with the last graph
GRAPH_POOLS  owner: kernels.cuda_capture   size: one entry a device and stream with CUDA graphs   cleared: with the last one
WARM_POOLS   owner: kernels.warm_calls  size: one entry a device and stream  cleared: when a training step is recorded, reset()
GRAPH_STREAMS  owner: kernels.cuda_capture   size: one stream a device and stream with CUDA graphs   cleared: never
GRAPH_OUTPUTS  owner: kernels.other_streams  size: one entry an output of a CUDA graph   cleared: with it
STREAMED   owner: kernels.other_streams  size: one number an address of memory that a second stream used   cleared: never
GPU_CALLERS  owner: kernels.cuda_graphs  size: one number a thread that calls graphs of a GPU   cleared: reset()
PRECOMPILED  owner: kernels.precompiled  size: one entry a compiler with its flags   cleared: never: it ends with the process
COMPILERS  owner: kernels.build       size: one entry a compiler looked for    cleared: reset()
MEMORY     owner: kernels.disk        size: the entries of each unusable cache folder   cleared: never
DISKS      owner: kernels.disk        size: one entry a cache folder           cleared: reset()
WARNED     owner: kernels             size: one entry a distinct warning       cleared: reset()
UNSAID     owner: warn_once           size: one entry a warning of a thread of ours  cleared: say_unsaid()
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from .special_cases import NOT_THE_USERS

PACKAGE = __name__.partition(".")[0]
PACKAGES = (PACKAGE, "torch", "threading")  # whose lines are none of the program's
LIBRARIES: dict[str, dict[str, Callable]] = {}
BUILDING: dict[str, threading.Thread] = {}
BINARIES: dict[str, object] = {}
GPU_KERNELS: dict[tuple[str, int], object] = {}
ARENAS: weakref.WeakValueDictionary[tuple[str, int], Any] = weakref.WeakValueDictionary()
GRAPH_POOLS: weakref.WeakValueDictionary[tuple[int, int], object] = weakref.WeakValueDictionary()
WARM_POOLS: dict[tuple[int, int], Any] = {}
GRAPH_STREAMS: dict[tuple[int, int], object] = {}
GRAPH_OUTPUTS: dict[int, weakref.ref] = {}
STREAMED: set[int] = set()
GPU_CALLERS: set[int] = set()
PRECOMPILED: dict[tuple[str, ...], object] = {}
COMPILERS: dict[str, object] = {}
MEMORY: dict[str, dict[str, bytes]] = {}
DISKS: dict[tuple[str, int], object] = {}
WARNED: set[str] = set()
UNSAID: list[str] = []


def clear() -> None:
    """Forget everything; graphs compiled before keep what they hold."""
    LIBRARIES.clear()
    BINARIES.clear()
    GPU_CALLERS.clear()
    WARM_POOLS.clear()
    COMPILERS.clear()
    DISKS.clear()
    WARNED.clear()


def warn_once(key: str, message: str) -> None:
    """A RuntimeWarning at the program's line, the first time that `key` is seen. In a thread of ours, which has no such line, it
    waits for `say_unsaid`."""
    if key not in WARNED:
        WARNED.add(key)
        _warn(message)


def say_unsaid() -> None:
    """Give the warnings of threads that the caller has waited for."""
    waiting, UNSAID[:] = UNSAID[:], []
    for message in waiting:
        _warn(message)


def _warn(message: str) -> None:
    import warnings

    if level := _level():
        warnings.warn(message, RuntimeWarning, stacklevel=level)
    else:
        UNSAID.append(message)


def _level() -> int:
    """Returns how far above the caller the program's line is, as `warnings` counts: without the frames of importing. 0: it has
    none."""
    level = 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_none_of_the_programs(frame):
        level += not _imports(frame)
        frame = frame.f_back
    return level if frame is not None else 0


def _is_none_of_the_programs(frame: types.FrameType) -> bool:
    """Whether a frame is of these packages, of what this one made, or of importing."""
    module, file = frame.f_globals.get("__name__"), frame.f_code.co_filename
    return module in PACKAGES or NOT_THE_USERS.frame(frame) or file.startswith(f"<{PACKAGE}") or _imports(frame)


def _imports(frame: types.FrameType) -> bool:
    """Whether a frame is of Python's own importing."""
    return frame.f_code.co_filename.startswith("<frozen importlib")
