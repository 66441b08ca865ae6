"""Rows of the ops that a library does best: called through torch, never lowered to loops.

A row makes the call count as "library", not as "no row", and names the overload that writes into planned memory. `FAST` names
torch's own Python entry of an overload where its arguments are the overload's: 1 to 3 us a call less than `torch.ops`. A target
adds the functions behind operators of ours that are written in Python: the dispatcher takes 57 us more (a busy CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .table import op


def _library(name: str, *overloads: str, out: str | None = None) -> None:
    op(name, overloads or (f"aten.{name}.default",), kind="extern", out=out)


_library("mm", out="aten.mm.out")
_library("addmm", out="aten.addmm.out")
_library("bmm", out="aten.bmm.out")
_library("baddbmm", out="aten.baddbmm.out")
_library("linear")
_library("convolution")
_library("convolution_backward")
_library("cudnn_convolution", "aten.cudnn_convolution_relu.default", "aten.cudnn_convolution_add_relu.default")
_library("mv", out="aten.mv.out")
_library("dot")
_library("scaled_dot_product_attention")
_library("_scaled_dot_product_flash_attention_for_cpu")
_library("_scaled_dot_product_flash_attention_for_cpu_backward")
_library("_scaled_dot_product_attention_math")
_library("linear_pointwise", "mkldnn._linear_pointwise.default", "mkldnn._linear_pointwise.binary")
_library("convolution_pointwise", "mkldnn._convolution_pointwise.default", "mkldnn._convolution_pointwise.binary")
_library(
    "own_linear",
    "bytejit.linear.default",
    "bytejit.linears.default",
    "bytejit.linear_packed.default",
    out="bytejit.linear.default",
)
_library("own_conv", "bytejit.conv.default", "bytejit.conv_packed.default", out="bytejit.conv.default")
_library("own_conv_grad", "bytejit.conv_weight_grad.default")
_library("linear_dynamic", *(f"quantized.linear{kind}.default" for kind in ("_dynamic", "_relu_dynamic")))
_library("linear_dynamic_fp16", *(f"quantized.linear{kind}_fp16.default" for kind in ("_dynamic", "_relu_dynamic")))
_library("recurrent_dynamic", "aten.quantized_lstm.input", "aten.quantized_gru.input")
_library(
    "recurrent_cell_dynamic",
    *(f"quantized.quantized_{kind}_cell_dynamic.default" for kind in ("lstm", "gru", "rnn_relu", "rnn_tanh")),
)
_library("native_dropout")  # torch's own numbers; option `fused_rng` draws others within kernels
_library("own_attention", "bytejit.attention.default", out="bytejit.attention.default")

FAST: dict[str, Callable] = {
    "aten.mm.default": torch.mm,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten.mv.default": torch.mv,
    "aten.dot.default": torch.dot,
    "aten.linear.default": torch._C._nn.linear,
    "aten.convolution.default": torch.convolution,
    "aten.cudnn_convolution_relu.default": torch.cudnn_convolution_relu,
    "aten.cudnn_convolution_add_relu.default": torch.cudnn_convolution_add_relu,
    "aten.scaled_dot_product_attention.default": torch._C._nn.scaled_dot_product_attention,
}


def resolve(target: str) -> Callable:
    """The operator "namespace.op.overload". Raises: AttributeError when torch has none of that name."""
    if target in FAST:
        return FAST[target]
    fn: Any = torch.ops
    for part in target.split("."):
        fn = getattr(fn, part)
    if not isinstance(fn, torch._ops.OpOverload):
        raise AttributeError(f"{target} is no operator")
    return fn


def is_window(target: str) -> bool:
    """Whether an op returns a view of what it is given, by its schema."""
    if not target.startswith("aten."):
        return False
    op: Any = None if target in FAST else resolve(target)
    alias = op._schema.returns[0].alias_info if op is not None and op._schema.returns else None
    return alias is not None and not alias.is_write
