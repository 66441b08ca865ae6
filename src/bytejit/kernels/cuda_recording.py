"""One recording of a graph: its CUDA graph, inputs, outputs and a replay."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bytejit.common.holders import is_only_a_grad
from bytejit.kernels.cuda_buffers import alias, copied, lying

from . import other_streams
from .cuda_capture import (
    LentGradients,
    Pool,
    bytes_of,
)


@dataclass(eq=False)
class Recording:
    """One CUDA graph. addresses: of inputs read in place (None: copied, or no tensor); statics: input -> its copy here;
    outputs: what the call returned; give: how each is handed out; copied: the memory of those of which copies are;
    storages: that of those which are handed out themselves, places: their `_cdata`; idle: how many hold these while nobody has
    an output, in C++ and in Python; grads: of places, those that become `.grad` of an input, and the input; lent: of places,
    those in the pool; others: streams that the program says work on outputs; kept, pool: memory that it writes, kept alive;
    fault: as in `Outside`; written: inputs whose version counts a write in each replay; number: in the order of the pool's
    recordings."""

    graph: Any
    device: int
    addresses: tuple[int | None, ...]
    statics: dict[int, torch.Tensor]
    outputs: tuple
    give: tuple[Callable[[Any, Sequence, dict[int, torch.Tensor]], Any], ...]
    single: bool
    moved: Callable[..., int]  # (*inputs) -> the first that is not where it was, or -1
    pool: Pool
    copied: dict[int, torch.Tensor] = field(default_factory=dict)
    storages: tuple[torch.UntypedStorage, ...] = ()
    places: tuple[int, ...] = ()
    idle: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    grads: dict[int, int] = field(default_factory=dict)
    others: list[torch.Stream] = field(default_factory=list)
    kept: tuple[torch.Tensor, ...] = ()
    fault: Any = None
    written: tuple[int, ...] = ()
    lent: frozenset[int] = frozenset()
    number: int = 0

    def __repr__(self) -> str:
        direct = sum(a is not None for a in self.addresses)
        return f"recording: {direct} inputs in place, {len(self.statics)} copied, {len(self.outputs)} outputs"

    def own_outputs(self, new_grads: Sequence[tuple[int, int]] = (), inputs: Sequence = ()) -> None:
        """Note which outputs lie in the recording's memory. Nobody else holds them yet, but the gradients that some of them take
        the place and the memory of. new_grads: as in `Policy`."""
        pairs = [(o, g) for o, g in zip(self.outputs, self.give) if g in (alias, copied)]
        self.copied = {o.untyped_storage()._cdata: bytes_of(o) for o, g in pairs if g is copied}
        own = {o.untyped_storage()._cdata: o.untyped_storage() for o, g in pairs if g is alias}
        self.storages, self.places, self.lent = tuple(own.values()), tuple(own), self.lent & own.keys()
        self.grads = {self.outputs[o].untyped_storage()._cdata: i for o, i in new_grads if self.give[o] is alias}
        del pairs, own
        old = [inputs[i].grad for _, i in new_grads]
        taken = {g.untyped_storage()._cdata for g in old if isinstance(g, torch.Tensor)}
        del old
        now, references = self.holders()
        self.idle = tuple(n - (s in taken) for n, s in zip(now, self.places)), references
        if self.storages:
            other_streams.watch(self.places, self)
        self.pool.recordings += 1
        self.number = self.pool.recordings
        if self.lent:
            memory = tuple(StorageWeakRef(s) for s, p in zip(self.storages, self.places) if p in self.lent)
            lent = LentGradients(self.number, memory, weakref.WeakMethod(self.lent_held), self.others)
            self.pool.lent = [*(other for other in self.pool.lent if other.alive()), lent]

    def holders(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns how many hold the memory of each output, in C++ and in Python."""
        return tuple(map(torch._C._storage_Use_Count, self.places)), tuple(map(sys.getrefcount, self.storages))

    def held(self, inputs: Sequence) -> bool:
        """Whether somebody will still have an output, copies aside, after a call on these inputs."""
        return self.held_beyond(self.places, lambda: {s: inputs[i] for s, i in self.grads.items()})

    def lent_held(self, replaced: Sequence[torch.Tensor]) -> bool:
        """Whether somebody has a gradient that lies in the pool, and not only as `.grad` of one of these parameters."""
        return self.held_beyond(
            self.lent, lambda: {p.grad.untyped_storage()._cdata: p for p in replaced if isinstance(p.grad, torch.Tensor)}
        )

    def held_beyond(self, places: Container[int], parameters: Callable[[], dict[int, torch.Tensor]]) -> bool:
        """Whether somebody has the memory of an output in `places`, and not only as `.grad` of the parameter that `parameters`
        gives for it; asked only where somebody has some."""
        now = self.holders()
        if now == self.idle:
            return False
        if now[1] != self.idle[1]:
            return True
        more = [(s, n - i) for s, n, i in zip(self.places, now[0], self.idle[0]) if n > i and s in places]
        owner = parameters()
        return any(n > 1 or s not in owner or not is_only_a_grad(owner[s], s) for s, n in more)

    def would_spoil(self, inputs: Sequence, new_grads: Sequence[tuple[int, int]]) -> bool:
        """Whether a replay writes over gradients that the program still has after it. Those of recordings that were made before
        this one were in use when its memory was chosen. new_grads: as in `Policy`."""
        later = [lent for lent in self.pool.lent if lent.number > self.number]
        return bool(later) and any(lent.in_the_way([inputs[i] for _, i in new_grads]) for lent in later)

    def replay(self, inputs: Sequence) -> Any:
        """Replay with these inputs and return the outputs. An out-of-memory error is raised before anything is written. Raises:
        DeviceFault (of an earlier replay)."""
        if self.fault is not None and self.fault.word.value:
            self.fault.report()
        rooms = {s: torch.empty_like(t) for s, t in self.copied.items()}
        for others in (self.others, *(lent.others for lent in self.pool.lent)):
            if others:
                other_streams.wait_for(others, self.device)
        if self.statics:
            torch._foreach_copy_(list(self.statics.values()), [lying(inputs[i], t) for i, t in self.statics.items()])
        self.graph.replay()
        if self.written:
            torch.autograd.graph.increment_version([inputs[i] for i in self.written])
        if rooms:
            torch._foreach_copy_(list(rooms.values()), list(self.copied.values()))
        if self.single:
            return self.give[0](self.outputs[0], inputs, rooms)
        return tuple(g(o, inputs, rooms) for g, o in zip(self.give, self.outputs))
