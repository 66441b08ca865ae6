"""Recurrent layers with sizes that may be symbols, layer by layer. torch's C++ takes plain sizes. Its Python form leaves out the
dropout between layers (torch 2.13), and unrolls the steps of an LSTM whose input has a gradient, of which oneDNN runs a layer as
one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .composites import composes

LSTM = 2  # its mode in oneDNN


def in_one_op(tensors: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> bool:
    """Whether torch has oneDNN run each layer of an LSTM: not one with projections, whose states differ in size."""
    if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
        return False
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return plain and states[0].shape[-1] == states[1].shape[-1]


def by_library(x: Any, states: Any, weights: Any, biased: bool, count: int, training: bool, both: bool) -> tuple:
    """One layer of an LSTM, of steps first: its result and final states."""
    outs, finals = [], []
    hidden, per = states[0].shape[-1], 4 if biased else 2
    for i in range(1 + both):
        w = list(weights[i * per : (i + 1) * per])
        w += [] if biased else [torch.zeros_like(w[0]), torch.zeros_like(w[1])]
        h, c = (s[i].contiguous() for s in states)
        out, *last, _ = torch.ops.aten.mkldnn_rnn_layer.default(
            x, *w, h, c, i > 0, [], LSTM, hidden, count, biased, both, False, training
        )
        outs.append(out)
        finals.append(last)
    return outs[0] if len(outs) == 1 else torch.cat(outs, -1), *(torch.stack(last) for last in zip(*finals))


def _layer_by_layer(function: Callable) -> None:
    @composes(function)
    def layers(x: torch.Tensor, hx: Any, weights: Any, *options: Any) -> Any:
        if isinstance(weights, torch.Tensor) or function is torch.lstm and isinstance(hx, torch.Tensor):
            return function(x, hx, weights, *options)  # of a packed sequence
        biased, count, dropout, training, both, batch_first = options
        states, single = ((hx,), True) if isinstance(hx, torch.Tensor) else (hx, False)
        library = function is torch.lstm and in_one_op((x, *states, *weights), states)
        if not library and (not dropout or not training or count == 1):
            return function(x, hx, weights, *options)
        out, finals, per = x.transpose(0, 1) if batch_first else x, [], len(weights) // count
        out = out.contiguous() if library else out
        for i in range(count):
            own, first = weights[i * per : (i + 1) * per], [s[i * (1 + both) : (i + 1) * (1 + both)] for s in states]
            if library:
                out, *last = by_library(out, first, own, biased, count, training, both)
            else:
                out, *last = function(out, first[0] if single else first, own, biased, 1, 0.0, training, both, False)
            finals.append(last)
            if dropout and training and i < count - 1:
                out = torch.dropout(out, dropout, True)
        return (out.transpose(0, 1) if batch_first else out, *(torch.cat(last) for last in zip(*finals)))


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _layer_by_layer(_function)
