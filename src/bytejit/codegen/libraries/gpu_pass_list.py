"""The passes that choose libraries on a GPU, in the order in which they run. Programs on a CPU do not import them."""

from __future__ import annotations

from bytejit.codegen.aten.long_scans import split_long_scans
from bytejit.codegen.aten.thin_products import expand_thin_products

from .biases import split_bias_gradients, split_biases
from .choices import on_graph
from .convolution_cuda import fuse_convs
from .flex import choose_flex
from .layout import choose_convs
from .linear_cuda import choose_gpu_linears
from .padding import pad_products
from .pass_list import JOINT_PASSES
from .patches import take_pixels
from .row_attention import take_row_attentions
from .row_products import take_row_products
from .sorted_sums import sort_sums
from .stream_layouts import lay_out_streams

GPU_STREAMS = on_graph(lay_out_streams, "before what chooses by how operands lie")
GPU_JOINT_PASSES = (GPU_STREAMS, *JOINT_PASSES)
GPU_PASSES = (
    on_graph(choose_flex, "first: what it replaces is no work for the others"),
    on_graph(split_long_scans),
    on_graph(sort_sums),
    on_graph(expand_thin_products, "before what chooses libraries for products"),
    on_graph(take_pixels, "before the same: what it makes are products"),
    on_graph(take_row_attentions),
    on_graph(take_row_products, "before linears: they are no products then"),
    on_graph(pad_products, "before linears: what it makes are products of another size"),
    GPU_STREAMS,
    on_graph(choose_gpu_linears),
    on_graph(split_biases, "before layouts: an addition is fused, and follows its operand's layout"),
    on_graph(split_bias_gradients),
    on_graph(choose_convs),
    on_graph(fuse_convs, "after layouts: cuDNN fuses with the channels innermost only"),
)
