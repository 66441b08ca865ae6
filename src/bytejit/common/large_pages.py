"""Memory of many bytes in large pages, where the system has them for those who ask.

A pass over memory in pages of 4 KiB waits for the addresses: on a machine whose own memory is virtual, by a third of its time.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

LEAST = 4 << 20  # bytes from which it is worth asking


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """The system's madvise; None where it has no large pages."""
    found = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
    if found is not None:
        found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found


def ask_for(address: int, size: int) -> None:
    """Ask that this memory, not yet written, lies in large pages. The system may say no: then it lies in small ones."""
    advise = _advise() if size >= LEAST else None
    if advise is not None:
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(first, (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
