"""`torch.nn.TransformerEncoder` with a padding mask, in evaluation.

Eager packs the sequences into a nested tensor, and its result holds zeros where padding was. Under a compiler torch's code does
not, and its result holds what the layers make of the padding. Here the layers get the mask, and zeros are filled in behind them.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from bytejit.tracer.core.models import replaces

# the same code, which nothing stands for
as_written = types.FunctionType(torch.nn.TransformerEncoder.forward.__code__, torch.nn.TransformerEncoder.forward.__globals__)
as_written.__defaults__ = torch.nn.TransformerEncoder.forward.__defaults__
DEVICES = ("cpu", "cuda")


def is_encoder(code: types.CodeType) -> bool:
    """Whether code is the forward of an encoder. Where it runs by itself, behind a break, it looks at the padding as in eager."""
    return code is as_written.__code__


def packs(encoder: Any, src: torch.Tensor) -> bool:
    """Whether eager packs the sequences of a call with a padding mask alone, where they begin at the left."""
    first = encoder.layers[0]
    if not (torch.backends.mha.get_fastpath_enabled() and getattr(encoder, "use_nested_tensor", False) and not first.training):
        return False
    if not getattr(encoder, "mask_check", True) or src.dim() != 3 or src.is_nested or torch.is_autocast_enabled():
        return False
    tensors = (src, *first.parameters())
    if src.device.type not in DEVICES or torch.overrides.has_torch_function(tensors):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


@replaces(torch.nn.TransformerEncoder.forward)
def forward(
    self: Any,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """The encoder's result. Sequences begin at the left where no kept place stands behind padding."""
    if src_key_padding_mask is None or mask is not None or is_causal is True:
        return as_written(self, src, mask, src_key_padding_mask, is_causal)
    if src_key_padding_mask.shape != src.shape[:2] or not packs(self, src):
        return as_written(self, src, mask, src_key_padding_mask, is_causal)
    kept = src_key_padding_mask.logical_not()
    x = src
    for layer in self.layers:
        x = layer(x, src_mask=None, is_causal=False, src_key_padding_mask=src_key_padding_mask)
    aligned = (kept[:, 1:] <= kept[:, :-1]).all()
    x = x.masked_fill((~kept & aligned).unsqueeze(-1), 0.0)
    return x if self.norm is None else self.norm(x)
