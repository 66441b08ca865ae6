"""Recurrent layers: calls with a packed sequence run in the original code. A cell of an LSTM on a CPU is traced as the operations
that torch composes it of: where both of its results leave the graph, a backward pass may run from one to the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.common.overriding import TENSOR_CLASSES
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, SeqVar, TensorVar, Var, expect

WEIGHTS = 3  # position of the weights when the second argument holds the batch sizes of a packed sequence


def _layer(function: Callable) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) > WEIGHTS and isinstance(t.values.real(args[WEIGHTS]), SeqVar):
            raise Break("a recurrent layer called with a packed sequence, whose lengths are known only when the graph runs")
        return t.tensors.call_tensor_op(function, args, kwargs)


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _layer(_function)


def composed_cell(
    input: torch.Tensor,
    hx: list[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.lstm_cell, as ATen computes it on a CPU."""
    h, c = hx
    gates = torch.nn.functional.linear(h, w_hh, b_hh) + torch.nn.functional.linear(input, w_ih, b_ih)
    enter, forget, cell, leave = gates.chunk(4, 1)
    c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * c.tanh(), c


def fits(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the states of a cell have its sizes: eager refuses what would broadcast."""
    return x.dim() == weight.dim() == 2 and h.shape == c.shape == (x.shape[0], weight.shape[1])


@models(torch.lstm_cell)
def lstm_cell(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    states = t.values.real(args[1]) if len(args) > 1 else None
    given = [*args[:1], *(states.items if isinstance(states, SeqVar) else ()), *args[2:]]
    tensors = [v.fake for v in map(t.values.real, given) if isinstance(v, TensorVar) and v.cls in (None, *TENSOR_CLASSES)]
    whole = kwargs or len(given) not in (5, 7) or len(tensors) not in (5, 7) or torch.is_autocast_enabled("cpu")
    if whole or any(f.device.type != "cpu" or f.dtype != tensors[0].dtype for f in tensors):
        return t.tensors.call_tensor_op(torch.lstm_cell, args, kwargs)
    if not fits(tensors[0], tensors[1], tensors[2], weight=tensors[4]):
        return t.tensors.call_tensor_op(torch.lstm_cell, args, kwargs)
    if not torch.is_grad_enabled() or not any(f.requires_grad for f in tensors):
        return t.tensors.call_tensor_op(torch.lstm_cell, args, kwargs)
    return t.calls.inline(expect(t.values.constant(composed_cell), FuncVar), args, kwargs)
