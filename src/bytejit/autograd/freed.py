"""What a backward pass frees, and which later ones it rules out.

Eager frees what each node saved when a backward pass runs through that node, and raises an error when a later one runs through it
again. A compiled region is one node with several results, and torch frees all that it saved at once. Results that share no node
with saved tensors may still go backward one by one: what they need is kept until their own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd.function import FunctionCtx

from .versions import Kept, changed_since

UNPACK = getattr(torch._C._autograd.SavedTensor, "unpack", None)  # torch 2.11 has none


class Freed:
    """Of one program. kept: what eager saves; results: number of those that have gradients; read: the places among the saved
    values that the backward graph without some tangents reads."""

    def __init__(self, kept: Kept, results: int, read: Callable[[frozenset[int]], frozenset[int]]) -> None:
        self.results, self.read = frozenset(range(results)), read
        self.together = {i: frozenset().union(*(h for h in kept.holders if i in h)) for i in self.results}
        self.by_all = frozenset().union(*kept.holders)  # by a backward pass from all results
        self.spares = self.by_all != self.results
        self.known: dict[frozenset[int], frozenset[int]] = {}

    def by(self, missing: frozenset[int]) -> frozenset[int]:
        """The results that cannot go backward after a pass that came without the tangents `missing`."""
        return frozenset().union(*(self.together[i] for i in self.results - missing)) if missing else self.by_all

    def left(self, freed: frozenset[int]) -> frozenset[int]:
        """The places of the saved values that the other results may still need."""
        if freed == self.results:
            return frozenset()
        if freed not in self.known:
            self.known[freed] = self.read(freed)
        return self.known[freed]


class Held:
    """Saved values that outlive the first backward pass, by their places among all saved values. Those that were written before
    that pass have no version."""

    def __init__(self, values: dict[int, torch.Tensor], versions: dict[int, int], places: int) -> None:
        self.values, self.versions, self.places = values, versions, places

    @staticmethod
    def of_node(ctx: FunctionCtx, left: frozenset[int], inputs: int, single: bool) -> Held:
        """What a node saved at the places `left`, of which the first `inputs` are inputs. Torch lets go of it after the backward
        pass. single: the node has one result, which may be what it saved, and is needed whole."""
        raw = ctx._raw_saved_tensors
        values, versions = {}, {}
        whole = single or UNPACK is None or any(raw[i].unpack_hook is not None for i in left)
        try:
            known = ctx.saved_tensors if whole else ()
        except RuntimeError:  # see below
            return Held({i: raw[i].data for i in left}, {}, len(raw))
        for i in left:
            try:
                found = known[i] if whole or UNPACK is None else UNPACK(raw[i])
                values[i] = found if i < inputs else found.detach()  # a result would keep this node, and it the result
                versions[i] = found._version
            except RuntimeError:  # it was written: an error of the backward pass that reads it, not of this one
                values[i] = raw[i].data
        return Held(values, versions, len(raw))

    def reduced(self, left: frozenset[int]) -> Held:
        """Those at the places `left`."""
        return Held({i: self.values[i] for i in left}, self.versions, self.places)

    def checked(self, read: frozenset[int]) -> Sequence[torch.Tensor]:
        """All places, with memory of no size where nothing is read. Raises: RuntimeError where what is read was written."""
        for i in read:
            if i in self.values and self.values[i]._version != self.versions.get(i):
                raise changed_since(self.values[i], self.versions.get(i, 0))
        return [self.values[i] if i in self.values else torch.empty(0) for i in range(self.places)]
