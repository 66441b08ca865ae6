"""Rows of the ops that a library does best: called through torch, never lowered to loops.

A row makes the call count as "library", not as "no row", and names the overload that writes into planned memory.
"""

from __future__ import annotations

from bytejit.codegen.ops.table import op


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
for _kind in ("flash", "efficient", "cudnn"):  # of a GPU
    _library(f"_scaled_dot_product_{_kind}_attention")
    _library(f"_scaled_dot_product_{_kind}_attention_backward")
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
