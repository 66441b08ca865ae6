"""Decomposes torch.nn's fused calls for attention and encoder layers in evaluation mode. Libraries are then chosen for their
products and attention as usual, and the operations between are fused. With a mask the calls stay whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .whole_functions import differentiates


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """torch._transformer_encoder_layer_fwd of (batch, length, embed_dim)."""
    if mask is not None or src.is_nested:
        return NotImplemented

    def norm1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: Tensor) -> Tensor:
        if use_gelu and x.device.type != "cpu":  # torch takes cuBLAS's gelu here, an approximation
            rows = torch._addmm_activation(ffn_bias_1, x.flatten(0, 1), ffn_weight_1.t(), use_gelu=True)
            wide = rows.view(*x.shape[:-1], -1)
        else:
            wide = (F.gelu if use_gelu else F.relu)(F.linear(x, ffn_weight_1, ffn_bias_1))
        return F.linear(wide, ffn_weight_2, ffn_bias_2)

    attention = (num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
    if norm_first:
        x = _attention(norm1(src), *attention) + src
        return feed_forward(norm2(x)) + x
    x = norm1(_attention(src, *attention) + src)
    return norm2(feed_forward(x) + x)


def attention_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """torch._native_multi_head_attention of (batch, length, embed_dim)."""
    if mask is not None or need_weights or query is not key or key is not value or query.is_nested:
        return NotImplemented
    return _attention(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias), None


def _attention(x: Tensor, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor) -> Tensor:
    batch, length, width = x.shape
    joined = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
    query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(0)
    seen = F.scaled_dot_product_attention(query, key, value)
    return F.linear(seen.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)


# torch's call -> its parts, or NotImplemented
IN_PARTS: dict[Callable, Callable[..., Any]] = {
    torch._transformer_encoder_layer_fwd: encoder_layer,
    torch._native_multi_head_attention: attention_layer,
}


def in_parts(function: Callable, args: tuple, kwargs: dict) -> Any:
    """The parts of a call, where it has such a form. Not under autograd, which torch's fused calls do not support."""
    found = IN_PARTS.get(function)
    made = NotImplemented if found is None or differentiates(args, kwargs) else found(*args, **kwargs)
    return function(*args, **kwargs) if made is NotImplemented else made
