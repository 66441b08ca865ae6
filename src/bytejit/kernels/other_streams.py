"""What a program tells torch of its streams: `out.record_stream(other)` says that another stream works on a tensor, so that its
memory is not given out again too soon. A recording overwrites its outputs without asking the allocator: it is told here."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from bytejit.common import caches


def watch(storages: tuple[int, ...], owner: Any) -> None:
    """From here on `owner.others` gets each stream that is recorded for one of these storages, as long as `owner` lives."""
    _interposed()
    ref = weakref.ref(owner)
    for s in storages:
        caches.GRAPH_OUTPUTS[s] = ref
    weakref.finalize(owner, _forget, storages, ref).atexit = False


def wait_for(others: list[torch.Stream], device: int) -> None:
    """Let the device's current stream wait for what the others have been given so far; they are forgotten."""
    current = torch.cuda.current_stream(device)
    for s in set(others):
        current.wait_stream(torch.cuda.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type))
    others.clear()


def _forget(storages: tuple[int, ...], ref: Any) -> None:
    for s in storages:
        if caches.GRAPH_OUTPUTS.get(s) is ref:  # its address may be another's by now
            del caches.GRAPH_OUTPUTS[s]


@functools.cache
def _interposed() -> torch.library.Library:
    """A kernel before all devices' own: it notes the stream and goes on to them."""
    op = torch.ops.aten.record_stream.default
    further = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def noted(keys: Any, tensor: torch.Tensor, stream: torch.Stream) -> None:
        ref = caches.GRAPH_OUTPUTS.get(tensor.untyped_storage()._cdata) if torch._C._has_storage(tensor) else None
        owner = ref() if ref is not None else None
        if owner is not None:
            owner.others.append(stream)
        op.redispatch(keys & further, tensor, stream)

    library = torch.library.Library("aten", "IMPL")
    library.impl("record_stream", noted, "BackendSelect", with_keyset=True)
    return library
