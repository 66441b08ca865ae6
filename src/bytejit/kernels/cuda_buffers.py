"""Inputs and outputs of a recording: their memory, and what a call gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.spec import span_of

from .cuda_capture import window

SMALL = 4  # outputs are copied where those that are not are so many times as large


def static_of(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the copy of an input: (what is copied into, the same as the input lies). One whose elements share memory is
    copied as that memory."""
    with torch.inference_mode(False), torch.no_grad():
        room = t.detach().new_empty(span_of(t.shape, t.stride()))
        laid = room.as_strided(t.shape, t.stride())
    return room if torch._debug_has_internal_overlap(t) == 1 or t.numel() > room.numel() else laid, laid


def on_cpu(t: torch.Tensor) -> bool:
    """Whether a tensor lies in the CPU's memory, where no GPU reads it."""
    return t.device.type != "cuda"


def lying(t: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """An input as it is copied into `room`."""
    return t if t.shape == room.shape else t.as_strided(room.shape, (1,))


def alias(output: torch.Tensor, inputs: Sequence, rooms: dict) -> torch.Tensor:
    """The recording's own memory, as a tensor of the caller's."""
    return output.detach()


def copied(output: torch.Tensor, inputs: Sequence, rooms: dict) -> torch.Tensor:
    """The same in the copy of that memory."""
    return window(rooms[output.untyped_storage()._cdata], output)


def itself(output: Any, inputs: Sequence, rooms: dict) -> Any:
    """Returns the output as it is: it is no tensor."""
    return output


def giver(output: Any, given: Sequence, copies: bool) -> Callable[[Any, Sequence, dict], Any]:
    """The function that returns an output of a recording, which was made on `given`, for other inputs."""
    if not isinstance(output, torch.Tensor):
        return itself
    storage = output.untyped_storage()._cdata
    for i, t in enumerate(given):
        if output is t:
            return lambda _, inputs, rooms: inputs[i]
        if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == storage:
            shape, stride, offset = output.shape, output.stride(), output.storage_offset() - t.storage_offset()
            return lambda _, inputs, rooms: inputs[i].as_strided(shape, stride, inputs[i].storage_offset() + offset)
    return copied if copies else alias


def copied_apart(some: Sequence, others: Sequence, large: bool = False) -> bool:
    """Whether some outputs are handed out as copies: where they are small beside the others (large: whatever their size), and
    share no memory with these, as writes to it must be seen."""
    own, held = bytes_held(some), bytes_held(others)
    return (large or SMALL * sum(own.values()) <= sum(held.values())) and own.keys().isdisjoint(held)


def bytes_held(outputs: Sequence) -> dict[int, int]:
    """The bytes of each storage that outputs lie in."""
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in outputs if isinstance(t, torch.Tensor)}
