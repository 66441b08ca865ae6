"""Memory of gradients: a new one is made in the memory of an old one that dies at the end of the call and that nobody else holds.

A step keeps the old `.grad` of its parameters until its graph has run. Else the gradients of two steps would be alive at once. On
a GPU the old ones are freed before the new ones are made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from bytejit.common import caches
from bytejit.common.holders import is_lone
from bytejit.common.identity import IdentityMap

from .memory import LargeOutput

LEAST = 1 << 20  # bytes of a gradient from which its memory is used again: asking who holds it takes a microsecond
Kind = tuple[tuple, tuple, torch.dtype]
OldGrads = dict[Kind, list[weakref.ref]]

# of a tensor made here: the stream that its memory is used on, and what keeps memory for the next one
_made: IdentityMap[tuple[int, Callable[[], LargeOutput | None]]] = IdentityMap()


def old_grads(parameters: Iterable[torch.Tensor], stream: int) -> OldGrads:
    """The parameters' `.grad` tensors by shape, strides and dtype: those that graphs allocated here, for this stream, and
    that no other stream uses. From now on nothing else keeps their memory alive."""
    found: OldGrads = {}
    for p in parameters:
        grad = grad_made_here(p, stream)
        if grad is not None:
            found.setdefault((grad.shape, grad.stride(), grad.dtype), []).append(weakref.ref(grad))
    return found


def grad_made_here(parameter: torch.Tensor, stream: int) -> torch.Tensor | None:
    """Such a gradient of one parameter."""
    grad = parameter.grad
    made = _made.get(grad) if grad is not None else None
    if grad is None or made is None or made[0] != stream or grad.untyped_storage()._cdata in caches.STREAMED:
        return None
    keeper = made[1]()
    if keeper is not None:
        keeper.let_go(grad.untyped_storage())
    return grad


def freed_grads(parameters: Iterable[torch.Tensor], stream: int) -> OldGrads:
    """On a GPU old gradients are freed at once, as by eager's `zero_grad`: the call needs their memory long before it makes new
    ones, which get what its blocks have freed by then. While a recording is made, as `old_grads`: its gradients stay where they
    are."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return old_grads(parameters, stream)
    for p in parameters:
        grad = grad_made_here(p, stream)
        if grad is not None:
            ref = weakref.ref(grad)
            del grad
            if is_lone(ref):
                p.grad = None
    return {}


def nobody() -> None:
    """The weak reference of tensors whose memory is not kept."""


class GradMemory:
    """Allocates an output of a graph that may be a gradient. new: allocates new memory, or, where the program lets go of its
    gradients between two calls, that of an earlier output."""

    def __init__(self, new: Callable[[tuple, tuple], torch.Tensor], plain: torch.Tensor) -> None:
        self.new, self.plain = new, plain
        self.keeper: Callable[[], LargeOutput | None] = weakref.ref(new) if isinstance(new, LargeOutput) else nobody

    def __call__(self, shape: tuple, stride: tuple, old: OldGrads, on: int) -> torch.Tensor:
        """The tensor, in the memory of one of `old`, or in new memory. on: the current stream."""
        made = self.again(shape, stride, old)
        if made is not None:
            _made.set(made, (on, nobody))
            return made
        made = self.new(shape, stride)
        _made.set(made, (on, self.keeper))
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
