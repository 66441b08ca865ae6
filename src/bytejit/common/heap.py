"""The C library keeps the memory that tensors free.

glibc gives freed memory back to the system above a limit that starts at 128 KiB, and grows to twice the size of each larger
block that is freed, up to 64 MiB. Results of library calls that a graph frees lie above it again and again: each call then
waits for the system to map and clear the same pages, 15% of the time of a vision transformer.
"""

from __future__ import annotations

import functools

import torch

LARGEST = (32 << 20) - (64 << 10)  # bytes: blocks from 32 MiB are always given back, and raise no limit


@functools.cache
def keep_freed_memory() -> None:
    """Raise the C library's limit to its largest, as a program does that frees one tensor of this size. No page of it is
    touched. An allocator that has no such limit serves this as any other block."""
    torch.UntypedStorage(LARGEST)  # no tensor: modes see and fill those
