"""Depthwise convolutions on a GPU as kernels of our own (`ops/depthwise.py`): what stands around them is computed along, and
they lie as the convolutions before them do."""

from __future__ import annotations

from typing import Any

from torch import fx

from .rewrite import GPU_FLOATS, aten, call_before, replace, spec_of, specs_of

TAPS = 49  # elements of the largest window


def take_depthwise(graph: fx.Graph, choices: Any = None) -> None:
    """Changes `graph`."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.convolution.default and _is_depthwise(node):
            x, w, bias, stride, padding, dilation, *_ = node.args
            kernel = list(spec_of(w).shape[2:])
            made = (x, w, kernel, bias, *(list(v) * 2 if len(v) == 1 else list(v) for v in (stride, padding, dilation)))
            replace(node, call_before(graph, node, aten._conv_depthwise2d.default, made, spec_of(node)))


def _is_depthwise(node: fx.Node) -> bool:
    """One result a channel, of 2-d images and a window of known size."""
    specs, transposed, groups = specs_of(node, *node.args[:2]), node.args[6], node.args[8]
    if specs is None or transposed or len(specs[0].shape) != 4 or {s.dtype for s in specs} - GPU_FLOATS:
        return False
    made, x, w = (s.shape for s in specs)
    window = w[2:]
    if not all(isinstance(n, int) for n in w) or len({s.dtype for s in specs}) != 1:
        return False
    return groups == x[1] == made[1] > 1 and window[0] * window[1] <= TAPS
