"""Rows of torch's recurrent layers. A library runs all steps of a layer in one call, forward or backward.

oneDNN's forward pass stores the workspace that its backward pass reads only if gradients are on while it runs. The workspace
has a format of its own, and a size that only the library knows: no shape rule does. A compiled graph runs with gradients off,
so the layer that is to go backward is an op of its own: `bytejit.recurrent_layer`.
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.codegen.ops.table import op
from bytejit.common import recurrent_layers  # noqa: F401  # defines the operators
from bytejit.common.own_operators import OPERATORS

aten = torch.ops.aten
LAYER = aten.mkldnn_rnn_layer.default
OPERATORS.define(
    "recurrent_layer(Tensor x, Tensor w0, Tensor w1, Tensor w2, Tensor w3, Tensor h, Tensor c, bool reverse, int[] batch_sizes, "
    "int mode, int hidden_size, int num_layers, bool has_biases, bool bidirectional, bool batch_first, bool train) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(OPERATORS, "recurrent_layer", "CPU")
def recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """The layer with its workspace, unfollowed by autograd."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return LAYER(*args)


KEEPING = torch.ops.bytejit.recurrent_layer.default

op(
    "recurrent_layer",
    (str(LAYER), str(KEEPING), "aten.mkldnn_rnn_layer_backward.default"),
    kind="extern",
    unsized=(3,),
)

# What the forward pass of these keeps comes first among their results.
op("recurrent_layers", "bytejit.recurrent_layers.default", kind="extern", unsized=(0,))
op("recurrent_layers_backward", "bytejit.recurrent_layers_backward.default", kind="extern")
