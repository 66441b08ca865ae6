"""The memory of small arenas on a GPU, which all graphs of a stream share.

Work on one stream runs in order: the kernels of a later call may overwrite what those of an earlier one have left. So the
forward pass, the backward pass and the update of a training step have one memory between them, as large as the largest wants.
A call takes the memory out of the stream's list and puts it back: a call within a call, or of another thread, finds the list
empty and makes memory of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from bytejit.common.caches import ARENAS


class Arena:
    """What one plan has in such memory. size: in bytes; views: (start in bytes, dtype, shape, stride) of each tensor in it."""

    def __init__(self, size: int, views: Sequence[tuple], device: torch.device) -> None:
        self.size, self.views, self.device = size, views, device
        self.last: tuple = (0, None)  # (address, memory, *views) of the last call: made again only where the memory is another

    def __repr__(self) -> str:
        return f"arena of {self.size} bytes on {self.device}"

    def taken(self, kept: list[torch.Tensor]) -> tuple:
        """(address, memory, *views), of memory that is taken out of the list, or new."""
        memory, last = kept.pop() if kept else None, self.last
        if memory is None or memory is not last[1]:
            self.last = last = self.new(memory)
        return last

    def new(self, memory: torch.Tensor | None = None) -> tuple:
        """The same in memory that is there, where it is large enough, else in new memory."""
        with torch.inference_mode(False), torch.no_grad():
            if memory is None or memory.numel() < self.size:
                memory = torch.empty(self.size, dtype=torch.uint8, device=self.device)
            storage = memory.untyped_storage()
            made = [
                torch.empty(0, dtype=dtype, device=self.device).set_(storage, start // dtype.itemsize, shape, stride)
                for start, dtype, shape, stride in self.views
            ]
        return memory.data_ptr(), memory, *made


def memory_of(device: torch.device) -> defaultdict[int, list[torch.Tensor]]:
    """Stream -> the memory that no call on it has taken."""
    return ARENAS.setdefault((device.type, device.index or 0), defaultdict(list))
