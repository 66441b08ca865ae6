"""Convolutions whose patches do not overlap, as matrix products on a GPU: the first layer of vision transformers, steps down and
up between sizes, layers of images of one pixel.

y = conv(x, w, stride = size of w)   ->   y = [patches of x, one a row] @ [w, one filter a column]

Each element of x is in one patch, so the rows hold as much as x does, and a kernel of ours writes them, often the one that makes
x. The library would convert x, pad its channels to eight, and walk over each filter. A transposed convolution makes patches: its
product is followed by a kernel that puts them together, often the one that reads them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import aten, contiguous, is_static, replace, spec_of
from bytejit.common.spec import channels_last_stride

from .convolution import ConvBackward, ConvNode, is_nhwc, match_conv
from .written_calls import CallWriter, on_tensors

PATCHES = "conv_patches"  # the name of this way among the rows of the library
APART = (0, 2, 4, 1, 3, 5)  # [images, channels, rows, rows of a patch, columns, columns of a patch] -> a patch after the other
BACK = (0, 1, 4, 2, 5, 3)  # [images, rows, columns, channels, rows and columns of a patch] -> row by row, channels innermost
TOGETHER = (0, 1, 3, 2, 4, 5)  # [images, rows, columns, rows of a patch, columns of a patch, channels] -> row by row


def take_pixels(graph: fx.Graph, choices: Any = None) -> None:
    """Write convolutions of images of one pixel as products: transposed ones (the first layer of a generator), and those of one
    image (squeeze and excitation), which become one of our kernels. Of more images the library's own are faster (EfficientNet-B0,
    32 images, f32: 195 us less a call). Changes `graph`."""
    for conv in filter(None, map(match_conv, list(graph.nodes))):
        x, pixel = spec_of(conv.x), (1, 1)
        gains = conv.geometry["transposed"] or x.shape[0] == 1 and spec_of(conv.w).shape[2:] == pixel
        if is_static(x) and x.shape[2:] == pixel and gains and _is_plain(conv):
            _write_pixels(graph, conv)


def serves(conv: ConvNode | ConvBackward) -> bool:
    """Whether no two patches of a convolution overlap."""
    x, w, of = spec_of(conv.x), spec_of(conv.w), conv.geometry
    return (
        is_static(x)
        and _is_plain(conv)
        and of["stride"] == tuple(w.shape[2:]) != (1, 1)
        and (not _has_bias(conv) if of["transposed"] else not any(n % size for n, size in zip(x.shape[2:], w.shape[2:])))
    )


def serves_backward(conv: ConvBackward) -> bool:
    """The same of the forward pass; its weight is row-major, as its gradient will be."""
    w = spec_of(conv.w)
    return serves(conv) and not conv.geometry["transposed"] and w == contiguous(w)


def _has_bias(conv: ConvNode | ConvBackward) -> bool:
    return isinstance(conv, ConvNode) and conv.b is not None


def _is_plain(conv: ConvNode | ConvBackward) -> bool:
    of = conv.geometry
    plain = of["groups"] == 1 and of["padding"] == of["output_padding"] == (0, 0) and of["dilation"] == (1, 1)
    return plain and spec_of(conv.x).device.type != "cpu"


# ---- operands of the products ------------------------------------------------------------------------------------------
def _patches(to: CallWriter, x: fx.Node, high: int, wide: int) -> fx.Node:
    """The patches of images, one a row."""
    (images, channels, down, across), (n, c, h, v) = spec_of(x).shape, spec_of(x).stride
    split = images, channels, down // high, high, across // wide, wide
    parts = to.call(aten.view.default, (x, list(split)), split, (n, c, h * high, h, v * wide, v))
    return to.view(to.permute(parts, APART), images * split[2] * split[4], channels * high * wide)


def _pixels(to: CallWriter, x: fx.Node) -> fx.Node:
    """The pixels of images, one a row."""
    images, channels, *sizes = spec_of(x).shape
    return to.view(to.permute(x, (0, 2, 3, 1)), images * math.prod(sizes), channels)


def _operands(to: CallWriter, x: fx.Node, w: fx.Node, transposed: bool) -> tuple[fx.Node, fx.Node]:
    """The operands of the product that is a convolution: rows, and one filter a column."""
    first, *_, high, wide = spec_of(w).shape
    terms = math.prod(spec_of(w).shape[1:])
    if transposed:
        return _pixels(to, x), to.view(to.permute(w, (0, 2, 3, 1)), first, terms)
    return _patches(to, x, high, wide), to.permute(to.view(w, first, terms), (1, 0))


# ---- for timing ------------------------------------------------------------------------------------------------------------
def operands(conv: ConvNode | ConvBackward) -> Any:
    """A function from the images, the filters and the bias of a convolution to the operands of its product. The bias is no
    part of it: as a rule a kernel adds it."""
    return on_tensors(lambda to, x, w, *bias: _operands(to, x, w, conv.geometry["transposed"]))


def products_backward(conv: ConvBackward) -> tuple[Any, Any]:
    """(the products of a backward pass, what makes their operands of the gradient, the images and the filters)."""

    def products(g: torch.Tensor, rows: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        of_weight = torch.mm(g.t(), rows) if conv.mask[1] else None
        return torch.mm(g, w.t()) if conv.mask[0] else of_weight

    return products, on_tensors(lambda to, g, x, w: (_pixels(to, g), *_operands(to, x, w, False)))


def moved(conv: ConvNode) -> int:
    """Elements that the kernel beside the product moves."""
    return math.prod(spec_of(conv.node if conv.geometry["transposed"] else conv.x).shape)


# ---- writing it into the graph -------------------------------------------------------------------------------------------
def write(graph: fx.Graph, conv: ConvNode) -> None:
    """Replace a convolution that `serves` names, and whose result has its channels innermost. Changes `graph`."""
    node, transposed = conv.node, conv.geometry["transposed"]
    to = CallWriter(graph, node)
    (images, _, *sizes), (high, wide) = spec_of(conv.x).shape, spec_of(conv.w).shape[2:]
    filters = spec_of(node).shape[1]
    rows, right = _operands(to, node.args[0], node.args[1], transposed)
    count = spec_of(rows).shape[0]
    if transposed:
        down, across = sizes
        result = to.call(aten.mm.default, (rows, right), (count, high * wide * filters))
        grid = to.permute(to.view(result, images, down, across, high, wide, filters), TOGETHER)
        whole = to.view(grid, images, down * high, across * wide, filters)
    else:
        target, args = (aten.mm.default, (rows, right)) if conv.b is None else (aten.addmm.default, (conv.b, rows, right))
        result = to.call(target, args, (count, filters))
        whole = to.view(result, images, sizes[0] // high, sizes[1] // wide, filters)
    shape = spec_of(node).shape
    replace(node, to.call(aten.permute.default, (whole, [0, 3, 1, 2]), shape, channels_last_stride(shape)))


def write_backward(graph: fx.Graph, conv: ConvBackward) -> None:
    """Replace the backward pass of such a convolution, whose gradients have their channels innermost. Changes `graph`."""
    node: fx.Node = conv.node
    g, x, w = node.args[:3]
    (images, channels, *sizes), (filters, _, high, wide) = spec_of(x).shape, spec_of(w).shape
    down, across, terms = sizes[0] // high, sizes[1] // wide, channels * high * wide
    rows = images * down * across
    for user in list(node.users):
        to = CallWriter(graph, user)
        of_rows = _pixels(to, g)
        if user.args[1] == 1:
            made = to.call(aten.mm.default, (to.permute(of_rows, (1, 0)), _patches(to, x, high, wide)), (filters, terms))
            replace(user, to.view(made, filters, channels, high, wide))
        elif user.args[1] == 0:
            made = to.call(aten.mm.default, (of_rows, to.view(w, filters, terms)), (rows, terms))
            apart = to.permute(to.view(made, images, down, across, channels, high, wide), BACK)
            whole = to.view(apart, images, *sizes, channels)
            replace(user, to.permute(whole, (0, 3, 1, 2)))
        else:
            replace(user, to.call(aten.sum.dim_IntList, (g, [0, 2, 3]), (filters,)))
    graph.erase_node(node)


def _write_pixels(graph: fx.Graph, conv: ConvNode) -> None:
    node, w, b, to = conv.node, conv.w, conv.b, CallWriter(graph, conv.node)
    (images, channels, *_), (_, filters, high, wide) = spec_of(conv.x).shape, spec_of(node).shape
    rows = to.view(conv.x, images, channels)
    if conv.geometry["transposed"]:
        right = to.view(w, channels, filters * high * wide)
        made = to.call(aten.mm.default, (rows, right), (images, filters * high * wide))
    else:
        made = to.call(aten.linear.default, (rows, to.view(w, filters, channels), b), (images, filters))
    made = to.view(made, images, filters, high, wide)
    if b is not None and conv.geometry["transposed"]:
        made = to.call(aten.add.Tensor, (made, to.view(b, filters, 1, 1)), spec_of(node).shape)
    if is_nhwc(spec_of(node)):
        how = {"memory_format": torch.channels_last}
        made = to.call(aten.clone.default, (made,), spec_of(node).shape, spec_of(node).stride, how)
    replace(node, made)
