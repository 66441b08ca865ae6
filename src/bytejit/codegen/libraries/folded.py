"""Convolutions of few channels with a stride, as convolutions of more channels without one: networks' first layers.

y = conv(x, w, stride = s)   ->   y = conv(x', w'), x' and w' with each s x s pixels as one of s * s times the channels

A library's kernels for tensor cores read 8 or 16 channels at once. Of 3 channels most lanes are empty, or it takes a kernel
that is slower by times. Zeros are put around the images as the padding was, and behind the channels and the filters until the
sizes fit. A kernel of ours writes x', often the one that makes x. The gradient of w' has that of w as a part.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.rewrite import aten, is_static, replace, spec_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, channels_last_stride

from .convolution import ConvBackward, ConvNode
from .written_calls import CallWriter, on_tensors

FOLDED = "conv_folded"  # the name of this way among the rows of the library
FEW = 8  # channels: with so many or more a library's own kernels serve
GROUP = 16  # channels that a tensor core's kernel reads at once
MOST = 64  # channels of a folded image
DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
APART = (0, 2, 4, 1, 3, 5)  # [n, channels, rows, s, columns, s] -> [n, rows, columns, channels, s, s]
BACK = (0, 3, 1, 4, 2, 5)  # the way back
INNER = (0, 3, 1, 2)  # [n, rows, columns, channels] -> as torch counts, the channels innermost
PLAIN = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, transposed, output padding, groups


@light_dataclass(frozen=True)
class Fold:
    """How images and filters are folded. step, padding: of the convolution, for rows and columns. size: of a filter. more:
    the number of channels of zeros that are added."""

    step: tuple[int, int]
    padding: tuple[int, int]
    size: tuple[int, int]
    more: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """Rows and columns of a folded filter."""
        return tuple(-(-size // s) for size, s in zip(self.size, self.step))

    def grid(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Rows and columns of a folded image, of the pixels of one."""
        ways = zip(sizes, self.padding, self.size, self.step, self.kernel)
        return tuple((n + 2 * around - size) // s + k for n, around, size, s, k in ways)

    def around_images(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """What is put around images of so many pixels, as `constant_pad_nd` takes it; negative: left out."""
        ends = [s * m - n - before for s, m, n, before in zip(self.step, self.grid(sizes), sizes, self.padding)]
        return self.padding[1], ends[1], self.padding[0], ends[0], 0, self.more

    def around_filters(self) -> tuple[int, ...]:
        """What is put behind filters."""
        rest = [s * k - size for s, k, size in zip(self.step, self.kernel, self.size)]
        return 0, rest[1], 0, rest[0], 0, self.more


def fold_of(conv: ConvNode | ConvBackward) -> Fold | None:
    """How a convolution would be folded; None where that does not serve."""
    x, w, of = spec_of(conv.x), spec_of(conv.w), conv.geometry
    plain = of["groups"] == 1 and of["dilation"] == (1, 1) and not of["transposed"] and x.device.type != "cpu"
    if not plain or not is_static(x) or x.dtype not in DTYPES or w.dtype != x.dtype:
        return None
    (down, across), given = of["stride"], x.shape[1]
    channels = next((c for c in range(given, 2 * FEW) if c * down * across % GROUP == 0), MOST)
    if given >= FEW or min(down, across) == 1 or channels * down * across > MOST:
        return None
    fold = Fold((down, across), of["padding"], (w.shape[2], w.shape[3]), channels - given)
    return fold if fold.kernel != (1, 1) and min(fold.around_images(x.shape[2:])) >= 0 else None


def moved(fold: Fold, x: Spec) -> int:
    """Elements that the kernel before the convolution writes."""
    rows, columns = fold.grid(x.shape[2:])
    return x.shape[0] * (x.shape[1] + fold.more) * fold.step[0] * fold.step[1] * rows * columns


# ---- operands of the folded convolution ----------------------------------------------------------------------------------
def _fold(to: CallWriter, x: fx.Node, around: tuple[int, ...], step: tuple[int, int]) -> fx.Node:
    n, channels, high, wide = spec_of(x).shape
    high, wide, channels = high + around[2] + around[3], wide + around[0] + around[1], channels + around[5]
    padded = to.call(aten.constant_pad_nd.default, (x, list(around), 0.0), (n, channels, high, wide))
    grid = high // step[0], wide // step[1]
    parts = to.permute(to.view(padded, n, channels, grid[0], step[0], grid[1], step[1]), APART)
    return to.permute(to.view(parts, n, *grid, channels * step[0] * step[1]), INNER)


def _fold_both(to: CallWriter, fold: Fold, x: fx.Node, w: fx.Node) -> tuple[fx.Node, fx.Node]:
    images = _fold(to, x, fold.around_images(spec_of(x).shape[2:]), fold.step)
    return images, _fold(to, w, fold.around_filters(), fold.step)


# ---- for timing ------------------------------------------------------------------------------------------------------------
def operands(fold: Fold) -> Any:
    """A function from the images and filters of a convolution, and what follows them, to those of the folded one."""
    both = on_tensors(lambda to, x, w: _fold_both(to, fold, x, w))
    return lambda x, w, *rest: (*both(x, w), *rest)


def backward_operands(fold: Fold) -> Any:
    """The same of a backward pass, whose gradient has its channels innermost."""
    both = on_tensors(lambda to, x, w: _fold_both(to, fold, x, w))
    return lambda g, x, w: (g.contiguous(memory_format=torch.channels_last), *both(x, w))


def convolve(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """The folded convolution."""
    return torch.conv2d(x, w, b)


def weight_gradient(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The gradient of the folded filters."""
    return aten.convolution_backward.default(g, x, w, None, *PLAIN, (False, True, False))[1]


# ---- writing it into the graph -------------------------------------------------------------------------------------------
def write(graph: fx.Graph, conv: ConvNode) -> None:
    """Replace a convolution that `fold_of` serves, and whose result has its channels innermost. Changes `graph`."""
    fold, node = fold_of(conv), conv.node
    assert fold is not None
    to, shape = CallWriter(graph, node), spec_of(node).shape
    x, w = _fold_both(to, fold, *node.args[:2])
    replace(node, to.call(aten.convolution.default, (x, w, conv.b, *PLAIN), shape, channels_last_stride(shape)))


def write_backward(graph: fx.Graph, conv: ConvBackward) -> None:
    """Replace the backward pass of such a convolution, whose gradient has its channels innermost. Changes `graph`."""
    node, fold = conv.node, fold_of(conv)
    assert fold is not None
    g, x, w = node.args[:3]
    filters, channels, high, wide = spec_of(w).shape
    for user in list(node.users):
        to = CallWriter(graph, user)
        if user.args[1] == 2:
            replace(user, to.call(aten.sum.dim_IntList, (g, [0, 2, 3]), (filters,)))
            continue
        images, of_w = _fold_both(to, fold, x, w)
        own = spec_of(of_w)
        args = (g, images, of_w, None, *PLAIN, (False, True, False))
        both = to.call(aten.convolution_backward.default, args, own.shape, own.stride)
        both.meta["spec"] = (None, own, None)
        made = to.permute(to.call(operator.getitem, (both, 1), own.shape, own.stride), (0, 2, 3, 1))
        (rows, columns), (down, across) = fold.kernel, fold.step
        apart = to.permute(to.view(made, filters, rows, columns, channels + fold.more, down, across), BACK)
        whole = to.view(apart, filters, channels + fold.more, rows * down, columns * across)
        for dim, size in ((1, channels), (2, high), (3, wide)):
            spec = spec_of(whole)
            cut = (*spec.shape[:dim], size, *spec.shape[dim + 1 :])
            whole = to.call(aten.slice.Tensor, (whole, dim, 0, size), cut, spec.stride)
        replace(user, to.dense(whole))
    graph.erase_node(node)
