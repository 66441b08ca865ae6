"""Recurrent layers: calls with a packed sequence run in the original code."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import SeqVar, Var

WEIGHTS = 3  # position of the weights when the second argument holds the batch sizes of a packed sequence


def _layer(function: Callable) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) > WEIGHTS and isinstance(t.values.real(args[WEIGHTS]), SeqVar):
            raise Break("a recurrent layer called with a packed sequence, whose lengths are known only when the graph runs")
        return t.tensors.call_tensor_op(function, args, kwargs)


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _layer(_function)
