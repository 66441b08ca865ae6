"""Shape rules of recurrent layers that a library runs as a whole: cuDNN (`common/recurrent_layers.py`), oneDNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.recurrent_layers import How

from .core import HasMeta, Meta, new, row


def by_steps(x: HasMeta, features: int, batch_first: bool) -> Meta:
    """A sequence as the library lays it out: the steps are the outer dimension in memory."""
    first, second, _ = x.m.shape
    stride = (features, first * features, 1) if batch_first else None
    return new((first, second, features), stride, x.m.dtype, x.m.device)


def _like(x: HasMeta) -> Meta:
    return new(x.m.shape, None, x.m.dtype, x.m.device)


@row("bytejit::recurrent_layers")
def _layers(x: HasMeta, h: HasMeta, c: HasMeta | None, w: Sequence[HasMeta], *how: Any) -> list[Meta]:
    named = How(*how)
    features = (named.projected or named.hidden) * (1 + named.both)
    kept = new((0,), None, torch.uint8, x.m.device)  # its size is the library's
    return [kept, by_steps(x, features, named.batch_first), *(_like(s) for s in (h, c) if s is not None)]


@row("bytejit::recurrent_layers_backward")
def _backward(x: HasMeta, h: HasMeta, c: HasMeta | None, w: Sequence[HasMeta], *rest: Any) -> list[Meta]:
    *how, wanted = rest[5:]
    made = [by_steps(x, x.m.shape[2], How(*how).batch_first), _like(h), None if c is None else _like(c)]
    first = [m for m, want in zip(made, wanted) if want and m is not None]
    return [*first, *map(_like, w)] if wanted[3] else first


GRU = 3  # the number of this mode in torch


@row("mkldnn_rnn_layer_backward")
def _onednn_backward(*given: Any) -> tuple[Meta, ...]:
    """Of 32 bits, also where the layer has 16 (torch's mkldnn/RNN.cpp); its meta kernel says so since 2.13."""
    x, w0, w1, w2, _, h, c, *_ = given
    mode, hidden = given[14:16]
    bias = new((4 * hidden,) if mode == GRU else w2.m.shape, None, torch.float32, x.m.device)
    of_x, of_w0, of_w1, of_h, of_c = (new(t.m.shape, None, torch.float32, x.m.device) for t in (x, w0, w1, h, c))
    return of_x, of_w0, of_w1, bias, bias, of_h, of_c
