"""Recurrent layers with sizes that may be symbols, layer by layer. torch's C++ takes plain sizes. Its Python form leaves out the
dropout between layers (torch 2.13), and unrolls the steps of an LSTM whose input has a gradient, of which oneDNN runs a layer as
one op.

On a GPU cuDNN runs a layer that goes backward, or that autocast casts, as a whole: the operators of common/recurrent_layers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.recurrent_layers import MODES, How

from .composites import composes
from .sized import ONE_CALL, learns
from .tensor import NoFake

LSTM = 2  # its mode in oneDNN
OPTIONS = 9  # arguments of a layer, without lengths of packed sequences


def in_one_op(tensors: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> bool:
    """Whether torch has oneDNN run each layer of an LSTM: not one with projections, whose states differ in size."""
    if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
        return False
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return plain and states[0].shape[-1] == states[1].shape[-1]


def by_torch(function: Callable, x: torch.Tensor, hx: Any, *options: Any) -> tuple:
    """torch's form. That of an LSTM in Python has a dimension of size 1 too many in the final states (2.11)."""
    out, *finals = function(x, hx, *options)
    states = (hx,) if isinstance(hx, torch.Tensor) else hx
    return out, *(f if f.dim() == s.dim() else f.reshape(s.shape) for f, s in zip(finals, states, strict=True))


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


class InCudnn(torch.autograd.Function):
    """A layer that cuDNN runs as a whole: what it keeps for its backward pass, the results of all steps, the final states."""

    @staticmethod
    def forward(ctx: Any, how: How, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None, *w: torch.Tensor) -> tuple:
        kept, *made = torch.ops.bytejit.recurrent_layers(x, h, c, w, *how)
        ctx.save_for_backward(x, h, c, made[0], kept, *w)
        ctx.how = how
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)
        return kept, *made

    @staticmethod
    def backward(ctx: Any, _: None, g_out: Any, g_h: Any, g_c: Any = None) -> tuple:
        if g_out is None and g_h is None and g_c is None:
            return (None,) * len(ctx.needs_input_grad)
        x, h, c, out, kept, *w = ctx.saved_tensors
        wanted = [*ctx.needs_input_grad[1:4], any(ctx.needs_input_grad[4:])]
        made = iter(torch.ops.bytejit.recurrent_layers_backward(x, h, c, w, out, kept, g_out, g_h, g_c, *ctx.how, wanted))
        return None, *(next(made) if want else None for want in wanted[:3]), *(made if wanted[3] else (None,) * len(w))


def runs_in_cudnn(*args: Any, **kwargs: Any) -> bool:
    """Whether cuDNN runs a layer as a whole, and more than its results is needed."""
    if len(args) != OPTIONS or isinstance(args[2], torch.Tensor):
        return False
    x, hx, weights = args[:3]
    if x.device.type not in ONE_CALL or not torch.backends.cudnn.enabled:
        return False
    tensors = (x, *((hx,) if isinstance(hx, torch.Tensor) else hx), *weights)
    return torch.is_autocast_enabled("cuda") or learns(tensors)


def in_cudnn(function: Callable, x: Any, states: Any, weights: Any, count: int, training: bool, both: bool, first: bool) -> tuple:
    """A layer in one call of cuDNN. Raises: NoFake, where torch does something else."""
    cast = torch.is_autocast_enabled("cuda")
    tensors = (x, *states, *weights)
    dtypes = {t.dtype for t in tensors}
    if learns(tensors) and not training:
        raise NoFake("a recurrent layer in evaluation", "cuDNN refuses to go backward")
    if not dtypes <= {torch.float32, torch.float16} or len(dtypes) > 1 and not cast:
        raise NoFake("a recurrent layer", f"cuDNN runs it in float32 or float16, not {dtypes}")
    hidden = states[-1].shape[-1]
    projected = states[0].shape[-1] if states[0].shape[-1] != hidden else 0
    how = How(MODES[function], hidden, projected, count, first, training, both)
    h, c = (*states, None)[:2]
    with torch.autocast("cuda", enabled=False):
        if cast:  # to float16, whatever autocast casts to
            x, h, *weights = (t.half() for t in (x, h, *weights))
            c = None if c is None else c.half()
        return InCudnn.apply(how, x, h, c, *weights)[1:]


def _layer_by_layer(function: Callable) -> None:
    @composes(function, also=runs_in_cudnn)
    def layers(x: torch.Tensor, hx: Any, weights: Any, *options: Any) -> Any:
        if isinstance(weights, torch.Tensor) or function is torch.lstm and isinstance(hx, torch.Tensor):
            return function(x, hx, weights, *options)  # of a packed sequence
        biased, count, dropout, training, both, batch_first = options
        states, single = ((hx,), True) if isinstance(hx, torch.Tensor) else (hx, False)
        if runs_in_cudnn(x, hx, weights, *options):
            return in_cudnn(function, x, states, weights, count, training, both, batch_first)
        library = function is torch.lstm and in_one_op((x, *states, *weights), states)
        if not library and (not dropout or not training or count == 1):
            return by_torch(function, x, hx, weights, *options)
        out, finals, per = x.transpose(0, 1) if batch_first else x, [], len(weights) // count
        out = out.contiguous() if library else out
        for i in range(count):
            own, first = weights[i * per : (i + 1) * per], [s[i * (1 + both) : (i + 1) * (1 + both)] for s in states]
            if library:
                out, *last = by_library(out, first, own, biased, count, training, both)
            else:
                out, *last = by_torch(function, out, first[0] if single else first, own, biased, 1, 0.0, training, both, False)
            finals.append(last)
            if dropout and training and i < count - 1:
                out = torch.dropout(out, dropout, True)
        return (out.transpose(0, 1) if batch_first else out, *(torch.cat(last) for last in zip(*finals)))


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _layer_by_layer(_function)
