"""Recordings of the two passes of a training graph. Saved values stay in the memory of the forward pass's recording until the
backward pass has read them; a recording of the backward pass reads them there.

    forward recording A: results (small: copies), saved values at addresses of A -> backward recordings for A
    forward recording B, used while somebody still holds what A saved            -> backward recordings for B

A backward pass after a forward pass that ran plain runs plain. Gradients are handed out as any output is: while `.grad` lies in
one recording's memory, another one is replayed. Nothing has to be known of when backward passes come, or how often.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.kernels.cuda_recording import Recording

from .cuda_buffers import copied_apart
from .cuda_capture import Outside, Pool, side_of
from .cuda_graphs import InputsState, Lane, Policy, Replayer


@dataclass
class SharedByPasses:
    """What the two passes of a training graph share. results: how many outputs of the forward graph the
    program gets, before those that are saved; saved: the positions of the latter among the inputs of a backward graph. places:
    address of a saved value -> the forward recording that it lies in."""

    results: int
    saved: range
    places: dict[int, weakref.ref[Recording]] = field(default_factory=dict)

    def note(self, recording: Recording) -> None:
        """A forward recording was made."""
        self.places = {p: r for p, r in self.places.items() if r() is not None}
        ref = weakref.ref(recording)
        for t in recording.outputs[self.results : self.results + len(self.saved)]:
            if isinstance(t, torch.Tensor) and t.data_ptr():
                self.places[t.data_ptr()] = ref

    def recording_of(self, inputs: Sequence) -> weakref.ref[Recording] | None:
        """The forward recording whose values a backward pass is given; None where the forward pass ran plain."""
        found = (self.places.get(inputs[i].data_ptr()) for i in self.saved)
        return next((r for r in found if r is not None and r() is not None), None)


class ForwardReplayer(Replayer):
    """Values that its recordings save are not copied: each recording has a memory pool of its own."""

    def __init__(self, call: Callable, policy: Policy, passes: SharedByPasses) -> None:
        super().__init__(call, policy)
        self.passes = passes
        self.lends = False  # results are kept by the program: copies of them are handed out, whatever their size

    def outside(self, lane: Lane, state: InputsState) -> Outside:
        """A new pool, which lives as long as the recording."""
        device = self.policy.device
        pool = Pool(torch.cuda.graph_pool_handle(), side_of(device, lane.stream), None)
        return Outside(torch.cuda.current_stream(device), pool, own=True)

    def copied(self, outputs: Sequence) -> frozenset[int]:
        """Results, where copies cost little: a program often keeps those of one step while the next one runs. Results that share
        memory with saved values are not copied, as writes to them must be seen."""
        results, saved = outputs[: self.passes.results], outputs[self.passes.results :]
        return frozenset(range(len(results))) if copied_apart(results, saved, self.lends) else frozenset()

    def recorded(self, lane: Lane, state: InputsState, inputs: Sequence, copies: bool) -> Recording | None:
        """Records as every recorder does, and tells the backward pass. At first only results are copied, saved values later."""
        if copies and not self.lends and not any(r.copied for r in state.recordings):
            self.lends, copies = True, False
        made = super().recorded(lane, state, inputs, copies)
        if made is not None and not copies:
            self.passes.note(made)
        return made


class BackwardReplayer(Replayer):
    """Its recordings are for what one forward recording saves."""

    def __init__(self, call: Callable, policy: Policy, passes: SharedByPasses) -> None:
        super().__init__(call, policy)
        self.passes = passes

    def key(self, inputs: Sequence) -> tuple | None:
        """The forward recording, too."""
        key: tuple[Any, ...] | None = super().key(inputs)
        if key is None or not self.passes.saved:
            return key
        forward = self.passes.recording_of(inputs)
        if forward is None:
            return None
        key = (*key, forward)
        for lane in self.lanes.values():
            if key not in lane.sized:  # of forward recordings that are gone
                for old in [k for k in lane.sized if isinstance(k[-1], weakref.ref) and k[-1]() is None]:
                    del lane.sized[old]
        return key
