"""The operators of recurrent layers that cuDNN runs as a whole, forward and backward. Importing this defines them.

torch's own, `aten::_cudnn_rnn`, takes the memory in which the weights lie one behind the other in cuDNN's order. A graph has no
such argument: it is the weights' memory under another name. Here it is found by the weights' addresses, in each call.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from .own_operators import OPERATORS

aten = torch.ops.aten
HOW = "int mode, int hidden, int projected, int layers, bool batch_first, bool train, bool both"
OPERATORS.define(f"recurrent_layers(Tensor x, Tensor h, Tensor? c, Tensor[] w, {HOW}) -> Tensor[]")
OPERATORS.define(
    "recurrent_layers_backward(Tensor x, Tensor h, Tensor? c, Tensor[] w, Tensor out, Tensor kept, "
    f"Tensor? g_out, Tensor? g_h, Tensor? g_c, {HOW}, bool[] wanted) -> Tensor[]"
)
MODES = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}  # cuDNN's numbers


class How(NamedTuple):
    """What the operators take besides tensors. mode: one of MODES; hidden, projected: features of a state, of a result if others,
    else 0; layers: how many; batch_first: the batch is the outer dimension of the sequence; both: runs it backwards, too."""

    mode: int
    hidden: int
    projected: int
    layers: int
    batch_first: bool
    train: bool
    both: bool


class _Order(NamedTuple):
    """How cuDNN lays out the weights of a layer. elements: of all; starts: the first of each weight."""

    elements: int
    starts: tuple[int, ...]


def weights_each(weights: list[torch.Tensor], how: How) -> int:
    """How many weights a layer has in one direction."""
    return len(weights) // (how.layers * (1 + how.both))


def flatten(weights: list[torch.Tensor], how: How) -> torch.Tensor:
    """Moves weights into one block in cuDNN's order, which is returned."""
    return torch._cudnn_rnn_flatten_weight(
        weights,
        weights_each(weights, how),
        weights[0].shape[1],
        how.mode,
        how.hidden,
        how.projected,
        how.layers,
        how.batch_first,
        how.both,
    )


@functools.lru_cache(maxsize=256)
def order_of(shapes: tuple[torch.Size, ...], dtype: torch.dtype, device: torch.device, how: How) -> _Order:
    """The order of weights of these shapes: cuDNN is asked."""
    made = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    return _Order(flatten(made, how).numel(), tuple(w.storage_offset() for w in made))


def block_of(weights: list[torch.Tensor], how: How) -> torch.Tensor:
    """The block of memory that holds the weights in cuDNN's order; a copy where they do not lie so."""
    first = weights[0]
    order = order_of(tuple(w.shape for w in weights), first.dtype, first.device, how)
    storage, begin = first.untyped_storage(), first.storage_offset() - order.starts[0]
    step, address = first.element_size(), first.data_ptr() - order.starts[0] * first.element_size()
    if begin >= 0 and (begin + order.elements) * step <= storage.nbytes():
        if all(w.is_contiguous() and w.data_ptr() == address + at * step for w, at in zip(weights, order.starts)):
            return first.detach().as_strided((order.elements,), (1,), begin)
    return flatten([w.detach().clone(memory_format=torch.contiguous_format) for w in weights], how)


def _arguments(weights: list[torch.Tensor], how: How) -> tuple[int, torch.Tensor]:
    """The weights of a layer and direction, the block of all."""
    return weights_each(weights, how), block_of(weights, how)


def recurrent_layers(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None, w: list[torch.Tensor], *how: Any
) -> list[torch.Tensor]:
    """What the backward pass reads, the results of all steps, the final states."""
    named = How(*how)
    per, block = _arguments(w, named)
    mode, hidden, projected, layers, batch_first, train, both = named
    out, last, cell, kept, _ = aten._cudnn_rnn(
        x, w, per, block, h, c, mode, hidden, projected, layers, batch_first, 0.0, train, both, [], None
    )
    return [kept, out, last] if c is None else [kept, out, last, cell]


def recurrent_layers_backward(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor | None,
    w: list[torch.Tensor],
    out: torch.Tensor,
    kept: torch.Tensor,
    g_out: torch.Tensor | None,
    g_h: torch.Tensor | None,
    g_c: torch.Tensor | None,
    *how_wanted: Any,
) -> list[torch.Tensor]:
    """The gradients of x, h, c and the weights, in this order, of those that are wanted."""
    *how, wanted = how_wanted
    named = How(*how)
    per, block = _arguments(w, named)
    mode, hidden, projected, layers, batch_first, train, both = named
    scratch = kept.clone()  # cuDNN writes into it
    given: tuple = (mode, hidden, projected, layers, batch_first, 0.0, train, both, [], None)
    of_x, of_h, of_c, of_w = aten._cudnn_rnn_backward(x, w, per, block, h, c, out, g_out, g_h, g_c, *given, scratch, wanted)
    first = [g for g, want in zip((of_x, of_h, of_c), wanted) if want]
    return [*first, *of_w] if wanted[3] else first


OPERATORS.impl("recurrent_layers", recurrent_layers, "CUDA")
OPERATORS.impl("recurrent_layers_backward", recurrent_layers_backward, "CUDA")
