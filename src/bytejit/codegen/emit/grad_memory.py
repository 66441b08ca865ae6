"""Memory of gradients: a new one is made in the memory of an old one that dies at the end of the call and that nobody else holds.

A step keeps the old `.grad` of its parameters until its graph has run. Else the gradients of two steps would be alive at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from bytejit.common.holders import is_lone
from bytejit.common.identity import IdentityMap

LEAST = 1 << 20  # bytes of a gradient from which its memory is used again: asking who holds it takes a microsecond
Kind = tuple[tuple, tuple, torch.dtype]
OldGrads = dict[Kind, list[weakref.ref]]

_streams: IdentityMap[int] = IdentityMap()  # the stream that the memory of a tensor made here is used on


def old_grads(parameters: Iterable[torch.Tensor], stream: int) -> OldGrads:
    """What `.grad` of parameters is, by shape, strides and dtype: those that graphs allocated here, for this stream."""
    found: OldGrads = {}
    for p in parameters:
        grad = p.grad
        if grad is not None and _streams.get(grad) == stream:
            found.setdefault((grad.shape, grad.stride(), grad.dtype), []).append(weakref.ref(grad))
    return found


class GradMemory:
    """Allocates an output of a graph that may be a gradient."""

    def __init__(self, new: Callable[[tuple, tuple], torch.Tensor], plain: torch.Tensor) -> None:
        self.new, self.plain = new, plain

    def __call__(self, shape: tuple, stride: tuple, old: OldGrads, on: int) -> torch.Tensor:
        """The tensor, in the memory of one of `old`, or in new memory. on: the current stream."""
        made = self.again(shape, stride, old)
        if made is None:
            made = self.new(shape, stride)
        _streams.set(made, on)
        return made

    def again(self, shape: tuple, stride: tuple, old: OldGrads) -> torch.Tensor | None:
        """A tensor in the memory of an old gradient of its kind; None where all are somebody's."""
        left = old.get((shape, stride, self.plain.dtype), [])
        while left:
            ref = left.pop()
            if is_lone(ref):
                memory = self.memory_of(ref)
                if memory.nbytes() == self.plain.element_size() * torch.Size(shape).numel():
                    return self.plain.new_empty(0).set_(memory, 0, shape, stride)
        return None

    @staticmethod
    def memory_of(ref: Callable[[], torch.Tensor | None]) -> torch.UntypedStorage:
        grad = ref()
        assert grad is not None  # a parameter has it
        return grad.untyped_storage()
