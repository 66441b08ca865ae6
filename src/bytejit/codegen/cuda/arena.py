"""The memory of small arenas on a GPU, which all graphs of a stream share.

Work on one stream runs in order: the kernels of a later call may overwrite what those of an earlier one have left. So the
forward pass, the backward pass and the update of a training step have one memory between them, as large as the largest wants.
A call takes the memory out of the stream's list and puts it back: a call within a call, or of another thread, finds the list
empty and makes memory of its own. The memory ends with the last graph of its device, and no graph keeps it alive by itself.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence

import torch

from bytejit.common.caches import ARENAS


class Shared:
    """Some memory, and what each plan has in it."""

    __slots__ = ("found", "memory")

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.found: weakref.WeakKeyDictionary[Arena, tuple] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"shared memory of {self.memory.numel()} bytes"


class OfStreams(defaultdict[int, list[Shared]]):
    """Stream -> the memory that no call on it has taken."""

    def __init__(self) -> None:
        super().__init__(list)


class Arena:
    """What one plan wants. size: in bytes; views: (start in bytes, dtype, shape, stride) of each tensor in it."""

    def __init__(self, size: int, views: Sequence[tuple], device: torch.device) -> None:
        self.size, self.views, self.device = size, views, device

    def __repr__(self) -> str:
        return f"arena of {self.size} bytes on {self.device}"

    def taken(self, kept: list[Shared]) -> tuple[Shared, tuple]:
        """Memory that is taken out of the list, or new, and (address, memory, *views) in it. The views are made once."""
        shared = kept.pop() if kept else None
        found = None if shared is None else shared.found.get(self)
        return self.new(shared) if found is None or shared is None else (shared, found)

    def new(self, shared: Shared | None = None) -> tuple[Shared, tuple]:
        """The same in memory that is there, where it is large enough, else in new memory."""
        with torch.inference_mode(False), torch.no_grad():
            if shared is None or shared.memory.numel() < self.size:
                shared = Shared(self.size, self.device)
            memory = shared.memory
            storage = memory.untyped_storage()
            made = [
                torch.empty(0, dtype=dtype, device=self.device).set_(storage, start // dtype.itemsize, shape, stride)
                for start, dtype, shape, stride in self.views
            ]
        found = shared.found[self] = memory.data_ptr(), memory, *made
        return shared, found


def memory_of(device: torch.device) -> OfStreams:
    """The memory of a device's streams, for as long as somebody has it."""
    return ARENAS.setdefault((device.type, device.index or 0), OfStreams())
