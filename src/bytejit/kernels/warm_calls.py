"""Calls of a training step before it is recorded. Gradients, and what lives only within such a call, are in a pool of their own,
which ends with the first recording. So what lives on, the state of an optimizer above all, has pieces of the allocator's memory
to itself: else each piece would keep holes where gradients and saved values were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bytejit.common import caches

from .cuda_capture import Outside, Pool, bytes_of


def warm_call(call: Callable, inputs: Sequence, device: int, stream: int, gradients: frozenset[int]) -> Any:
    """Returns what `call` returns. gradients: which outputs are some."""
    if (device, stream) not in caches.WARM_POOLS:
        torch.cuda.empty_cache()  # what compiling has left would be given to what lives on
        caches.WARM_POOLS[device, stream] = torch.cuda.MemPool()
    warm = WarmOutside(device, Pool(caches.WARM_POOLS[device, stream].id, None, None), gradients)
    recorded = warm.through(call)
    with warm.within():
        result = recorded(*inputs)
    return warm.moved_out(result, inputs)


def end_warm_calls(device: int, stream: int) -> None:
    """The pool ends; gradients in it live on. What was freed there goes to the device with `empty_cache`."""
    caches.WARM_POOLS.pop((device, stream), None)


class WarmOutside(Outside):
    """As in a recording, outputs are outside the pool, but gradients. Old ones are freed as in any plain call."""

    def __init__(self, device: int, pool: Pool, gradients: frozenset[int]) -> None:
        super().__init__(torch.cuda.current_stream(device), pool, lends=gradients)
        self.device = device
        self.entered = contextlib.ExitStack()

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """What is allocated now is in the pool, but what `maker` makes."""
        with self.entered:
            self.enter()
            yield

    def enter(self) -> None:
        """From here on, in the pool."""
        self.entered.enter_context(allocating_in(self.device, self.pool.handle))

    def finder(self, plain: Callable) -> Callable:
        """As in a plain call."""
        return plain

    def maker(self, plain: Callable, gradient: bool) -> Callable:
        """An allocator like `plain`, outside the pool."""
        if gradient:
            return plain

        def make(*given: Any) -> torch.Tensor:
            self.entered.close()
            try:
                t = plain(*given)
            finally:
                self.enter()
            self.made[t.untyped_storage()._cdata] = bytes_of(t)
            return t

        return make

    def room(self, whole: torch.Tensor) -> torch.Tensor:
        """Memory outside the pool, after the call."""
        return torch.empty_like(whole)


@contextlib.contextmanager
def allocating_in(device: int, handle: Any) -> Iterator[None]:
    """This thread's allocations are in a pool."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, handle)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device, handle)
        torch._C._cuda_releasePool(device, handle)
