"""Convolutions of few channels with a stride, folded: graphs as if on a GPU, rewritten, and run on the CPU against eager."""

from __future__ import annotations

import pytest
import torch
from graphs import normalised, on_gpu
from test_patches import AsSaid, RunsAll
from torch import fx, nn

from bytejit.codegen.aten.rewrite import aten
from bytejit.codegen.libraries import folded
from bytejit.codegen.libraries.convolution import is_nhwc, match_conv, match_conv_backward
from bytejit.codegen.libraries.convolution_times import time_backward, time_conv
from bytejit.common.spec import Spec
from bytejit.kernels import library

KERNELS = [
    (3, 7, 2, 3, (16, 18)),
    (3, 3, 2, 1, (9, 12)),
    (3, 3, 2, 0, (9, 9)),
    (1, (3, 5), 2, (1, 2), (8, 11)),
    (3, 11, 4, 2, (27, 31)),
    (4, 5, (2, 4), 2, (12, 12)),
]


class AsOurs(AsSaid):
    """A kernel of ours writes as its node says."""

    def run_node(self, n: fx.Node) -> object:
        if n.target in (aten.constant_pad_nd.default, aten.convolution_backward.default):
            made = fx.Interpreter.run_node(self, n)
            return made if isinstance(made, tuple) else made.contiguous()
        return super().run_node(n)


def folds(net: nn.Module, x: torch.Tensor) -> fx.Graph:
    """The network's graph with every convolution folded that can be."""
    graph = on_gpu(normalised(net.requires_grad_(False), x))
    for conv in filter(None, map(match_conv, list(graph.nodes))):
        if folded.fold_of(conv) is not None:
            folded.write(graph, conv)
    graph.lint()
    return graph


@pytest.mark.pairs
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(("channels", "size", "step", "padding", "pixels"), KERNELS)
def test_as_eager(channels, size, step, padding, pixels, inner) -> None:
    net, x = nn.Conv2d(channels, 5, size, step, padding, bias=inner), torch.randn(2, channels, *pixels)
    if inner:
        x, net = x.to(memory_format=torch.channels_last), net.to(memory_format=torch.channels_last)
    graph = folds(net, x)
    (conv,) = filter(None, map(match_conv, graph.nodes))
    assert conv.geometry["stride"] == (1, 1) and conv.w.meta["spec"].shape[1] % folded.GROUP == 0
    (got,) = AsOurs(fx.GraphModule({}, graph)).run(x, *net.parameters())
    torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "size", "step", "padding", "pixels"), KERNELS)
def test_backward(channels, size, step, padding, pixels) -> None:
    net = nn.Conv2d(channels, 5, size, step, padding)
    x, w = torch.randn(2, channels, *pixels), net.weight.detach()
    g = torch.randn_like(net(x)).to(memory_format=torch.channels_last)

    def f(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        how = [5], net.stride, net.padding, [1, 1], False, [0, 0], 1, [False, True, True]
        return tuple(aten.convolution_backward(g, x, w, *how)[1:])

    graph = on_gpu(normalised(f, g, x, w))
    (conv,) = filter(None, map(match_conv_backward, graph.nodes))
    tuner = RunsAll()
    time_backward(conv, tuner, None)
    assert folded.FOLDED in tuner.ran
    folded.write_backward(graph, conv)
    graph.lint()
    got = AsOurs(fx.GraphModule({}, graph)).run(g, x, w)
    torch.testing.assert_close(tuple(got), f(g, x, w), rtol=1e-4, atol=1e-4)
    assert got[0].stride() == w.stride()


@pytest.mark.parametrize(
    "net",
    [
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(3, 4, 3, (1, 2)),
        nn.Conv2d(8, 4, 3, 2),
        nn.Conv2d(3, 4, 3, 2, dilation=2),
        nn.Conv2d(3, 4, 2, 2),
        nn.Conv2d(3, 4, 7, 5),
        nn.Conv2d(3, 3, 3, 2, groups=3),
    ],
    ids=str,
)
def test_what_is_left(net: nn.Module) -> None:
    graph = folds(net, torch.randn(1, net.in_channels, 12, 12))
    assert aten.constant_pad_nd.default not in [n.target for n in graph.nodes]


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_timed(bias: bool) -> None:
    graph = on_gpu(normalised(nn.Conv2d(3, 5, 7, 2, 3, bias=bias).requires_grad_(False), torch.randn(2, 3, 16, 16)))
    (conv,) = filter(None, map(match_conv, graph.nodes))
    tuner = RunsAll()
    times = time_conv(conv, tuner, library, packs=False)
    assert times is not None and {"conv_nhwc", folded.FOLDED} < set(tuner.ran)


@pytest.mark.parametrize(("channels", "size", "step", "padding", "pixels"), KERNELS)
def test_what_is_timed_computes_the_convolution(channels, size, step, padding, pixels) -> None:
    """Its operands are made by the calls that are written into the graph."""
    net, x = nn.Conv2d(channels, 5, size, step, padding).requires_grad_(False), torch.randn(2, channels, *pixels)
    (conv,) = filter(None, map(match_conv, on_gpu(normalised(net, x)).nodes))
    fold = folded.fold_of(conv)
    assert fold is not None
    for w in (net.weight, net.weight.to(memory_format=torch.channels_last)):
        images, filters, bias = folded.operands(fold)(x, w, net.bias)
        assert is_nhwc(Spec.of(images)) and is_nhwc(Spec.of(filters))
        torch.testing.assert_close(folded.convolve(images, filters, bias), net(x), rtol=1e-4, atol=1e-5)
