"""Shape rules of layers whose weights are packed int8 or float16 numbers and whose input is quantised in the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from .core import HasMeta, Meta, NeedsMeta, new, row
from .elementwise import like_stride
from .errors import NoFake
from .recurrent import by_steps

_F32 = torch.float32


def _rows(*tensors: HasMeta) -> None:
    """Raises: NeedsMeta for what these layers refuse, so that the original code says so."""
    if any(t.m.dtype is not _F32 or not t.m.shape for t in tensors):
        raise NeedsMeta


@row(
    "quantized::linear_dynamic",
    "quantized::linear_relu_dynamic",
    "quantized::linear_dynamic_fp16",
    "quantized::linear_relu_dynamic_fp16",
)
def _linear(x: HasMeta, packed: Any, reduce_range: bool = False) -> Meta:
    weight, _ = packed.unpack()
    _rows(x)
    if x.m.shape[-1] != weight.shape[1]:
        raise NeedsMeta
    return new((*x.m.shape[:-1], weight.shape[0]), None, _F32, x.m.device)


def _layers(
    x: HasMeta, states: Sequence[HasMeta], dropout: float, train: bool, bidirectional: bool, batch_first: bool
) -> tuple[Meta, ...]:
    """The sequence, laid out by time, and the last states."""
    _rows(x, *states)
    first = states[0].m
    if len(x.m.shape) != 3 or len(first.shape) != 3 or train and dropout:
        raise NeedsMeta
    made = by_steps(x, first.shape[2] * (1 + bidirectional), batch_first)
    return made, *(new(s.m.shape, None, _F32, x.m.device) for s in states)


@row("quantized_lstm.input")
def _lstm(
    x: HasMeta,
    hx: Sequence[HasMeta],
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    dtype: torch.dtype | None = None,
    use_dynamic: bool = False,
) -> tuple[Meta, ...]:
    return _layers(x, hx, dropout, train, bidirectional, batch_first)


@row("quantized_gru.input")
def _gru(
    x: HasMeta,
    hx: HasMeta,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Meta, ...]:
    return _layers(x, (hx,), dropout, train, bidirectional, batch_first)


@row("quantized::quantized_lstm_cell_dynamic")
def _lstm_cell(x: HasMeta, hx: Sequence[HasMeta], *packed: Any) -> tuple[Meta, ...]:
    _rows(x, *hx)
    return tuple(new(s.m.shape, None, _F32, x.m.device) for s in hx)


@row(
    "quantized::quantized_gru_cell_dynamic",
    "quantized::quantized_rnn_relu_cell_dynamic",
    "quantized::quantized_rnn_tanh_cell_dynamic",
)
def _cell(x: HasMeta, hx: HasMeta, *packed: Any) -> Meta:
    _rows(x, hx)
    return new(hx.m.shape, None, _F32, x.m.device)


# ---- training for numbers of few bits: rounded to the places of a grid, in floats ----------------------------------------
@row(
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def _rounded(x: HasMeta, *grid: Any) -> tuple[Meta, Meta]:
    """The rounded values, and where none was cut off."""
    stride = like_stride(x.m)
    return new(x.m.shape, stride, x.m.dtype, x.m.device), new(x.m.shape, stride, torch.bool, x.m.device)


@row("_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine")
def _rounded_by_learning(x: HasMeta, *grid: Any) -> Meta:
    return new(x.m.shape, like_stride(x.m), x.m.dtype, x.m.device)


# ---- quantised tensors, of which torch's meta kernels make plain ones ----------------------------------------------------
@row("quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors")
def _quantised(*arguments: Any) -> NoReturn:
    raise NoFake("aten::quantize_per_tensor", "it makes a quantised tensor")
