"""Watches `out.record_stream(other)`, by which a program says that another stream uses a tensor, so that its memory is not
reused too soon. A recording overwrites its outputs without the allocator, so it has to know of such streams."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from bytejit.common import caches


def watch(storages: tuple[int, ...], owner: Any) -> None:
    """As long as `owner` lives, each stream that is recorded for one of these storages is added to `owner.others`."""
    interposed()
    ref = weakref.ref(owner)
    for s in storages:
        caches.GRAPH_OUTPUTS[s] = ref
    weakref.finalize(owner, _forget, storages, ref).atexit = False


def wait_for(others: list[torch.Stream], device: int) -> None:
    """Let the device's current stream wait for all work that the other streams have so far, and clear the list."""
    current = torch.cuda.current_stream(device)
    for s in set(others):
        current.wait_stream(torch.cuda.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type))
    others.clear()


def _forget(storages: tuple[int, ...], ref: Any) -> None:
    for s in storages:
        if caches.GRAPH_OUTPUTS.get(s) is ref:  # its address may be another's by now
            del caches.GRAPH_OUTPUTS[s]


@functools.cache
def interposed() -> torch.library.Library:
    """A kernel in front of the devices' own kernels: it notes the stream and calls them."""
    op = torch.ops.aten.record_stream.default
    further = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def noted(keys: Any, tensor: torch.Tensor, stream: torch.Stream) -> None:
        storage = tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else 0
        caches.STREAMED.add(storage)
        ref = caches.GRAPH_OUTPUTS.get(storage)
        owner = ref() if ref is not None else None
        if owner is not None:
            owner.others.append(stream)
        op.redispatch(keys & further, tensor, stream)

    library = torch.library.Library("aten", "IMPL")
    library.impl("record_stream", noted, "BackendSelect", with_keyset=True)
    return library
