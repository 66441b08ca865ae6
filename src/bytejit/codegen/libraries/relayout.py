"""Writes the chosen layouts into a graph: conversions, strides, weights of convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import aten, call_before, contiguous, replace, spec_of
from bytejit.common.spec import Spec, channels_last_stride, contiguous_stride

from .convolution import ConvBackward, convertible, is_nhwc, match_conv_backward


def convert(graph: fx.Graph, inner: dict[fx.Node, bool], conversions: list[tuple[fx.Node, fx.Node]]) -> None:
    """Insert a conversion before each reader that needs the other layout, or a part as a tensor of its own; readers of one tensor
    share it."""
    made: dict[tuple[fx.Node, bool], fx.Node] = {}
    for reader, tensor in conversions:
        to_inner = inner[reader] if tensor.target is aten.slice.Tensor else not inner[tensor]
        if (tensor, to_inner) not in made:
            spec = spec_of(tensor)
            form = torch.channels_last if to_inner else torch.contiguous_format
            stride = channels_last_stride(spec.shape) if to_inner else contiguous_stride(spec.shape)
            made[tensor, to_inner] = call_before(
                graph,
                reader,
                aten.clone.default,
                (tensor,),
                Spec(spec.shape, stride, spec.dtype, spec.device),
                {"memory_format": form},
            )
        reader.replace_input_with(tensor, made[tensor, to_inner])


def restride(node: fx.Node, is_inner: bool, kind: str) -> None:
    """Set whether a node's result has its channels innermost. kind: as in `layout.LayoutNode`."""
    specs = node.meta.get("spec")
    if kind == "part":
        whole, dim, step = node.args[0], *(node.args[i] if len(node.args) > i else default for i, default in ((1, 0), (4, 1)))
        own = spec_of(whole)
        stride = tuple(n * step if d == dim % len(own.shape) else n for d, n in enumerate(own.stride))
        node.meta["spec"] = Spec(spec_of(node).shape, stride, own.dtype, own.device)
    elif isinstance(specs, Spec):
        if convertible(specs) and is_inner != is_nhwc(specs) and node.op == "call_function":
            node.meta["spec"] = _as(specs, is_inner)
    elif isinstance(specs, tuple) and kind == "conv":
        node.meta["spec"] = tuple(_as(s, is_inner) if convertible(s) else s for s in specs)
    elif isinstance(specs, tuple) and kind == "follows":  # as its parts, which are nodes of their own
        node.meta["spec"] = tuple(_as(s, is_inner) if convertible(s) and is_inner != is_nhwc(s) else s for s in specs)


def _as(spec: Spec, is_inner: bool) -> Spec:
    if not is_inner:
        return contiguous(spec)
    return Spec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)


def share_weights(graph: fx.Graph) -> None:
    """Backward passes of convolutions on a GPU, with the channels innermost, read a weight of that layout: the copy that the
    forward pass made, if it is in the graph, else a new one. Changes `graph`."""
    made: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is aten.clone.default and node.kwargs.get("memory_format") is torch.channels_last:
            made.setdefault(node.args[0], node)
        back = match_conv_backward(node)
        if back is None or spec_of(back.x).device.type == "cpu" or not is_nhwc(spec_of(back.x)):
            continue
        if convertible(spec_of(back.w)) and not is_nhwc(spec_of(back.w)):
            w = made.get(back.w)
            if w is None:
                w = made[back.w] = weight_inner(graph, node, back.w)
            node.args = (*node.args[:2], w, *node.args[3:])


def weight_inner(graph: fx.Graph, node: fx.Node, w: fx.Node) -> fx.Node:
    """A weight with its channels innermost, before a node: cuDNN through torch would convert it by a general copy, slower than
    a kernel of our own."""
    spec = spec_of(w)
    converted = Spec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)
    return call_before(graph, node, aten.clone.default, (w,), converted, {"memory_format": torch.channels_last})


def take_apart(graph: fx.Graph, conv: ConvBackward, own: Any) -> None:
    """Split a convolution's backward pass: our kernel makes the gradient of the weight, a sum that of the bias, the library
    that of the input. Changes `graph`."""
    node, of = conv.node, conv.geometry
    grad, x, sizes = node.args[0], node.args[1], [list(of[n]) for n in ("stride", "padding", "dilation")]
    for user in list(node.users):
        if user.args[1] == 1:
            kernel = list(spec_of(conv.w).shape[2:])
            replace(user, call_before(graph, user, own, (grad, x, kernel, *sizes), contiguous(spec_of(user))))
        elif user.args[1] == 2:
            replace(user, call_before(graph, user, aten.sum.dim_IntList, (grad, [0, 2, 3]), spec_of(user)))
    if node.users:
        node.args = (*node.args[:10], (True, False, False))
        node.meta["spec"] = (node.meta["spec"][0], None, None)
    else:
        graph.erase_node(node)
