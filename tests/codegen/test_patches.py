"""Convolutions whose patches do not overlap, as products: graphs as if on a GPU, rewritten, and run on the CPU against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import normalised, on_gpu
from torch import fx, nn

from bytejit.codegen.aten.rewrite import aten, spec_of
from bytejit.codegen.libraries import patches
from bytejit.codegen.libraries.biases import split_biases
from bytejit.codegen.libraries.convolution import is_nhwc, match_conv, match_conv_backward
from bytejit.codegen.libraries.convolution_times import time_conv
from bytejit.kernels import library
from bytejit.kernels.tune import Choice


class AsSaid(fx.Interpreter):
    """Runs a graph; each result has the sizes and strides that its node says."""

    def run_node(self, n: fx.Node) -> object:
        made = super().run_node(n)
        if n.op == "call_function" and n.target is not aten.add.Tensor:  # layouts set those of what follows
            assert (tuple(made.shape), made.stride()) == (spec_of(n).shape, spec_of(n).stride), n
        return made


def products(net: nn.Module, x: torch.Tensor, split: bool = True) -> fx.Graph:
    """The network's graph with every convolution replaced that can be."""
    graph = on_gpu(normalised(net, x))
    if split:
        split_biases(graph, None)
    for conv in filter(None, map(match_conv, list(graph.nodes))):
        if patches.serves(conv):
            patches.write(graph, conv)
    graph.lint()
    return graph


@pytest.mark.pairs
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("size", [(2, 2), (3, 1), (4, 8)])
def test_as_eager(size: tuple[int, int], inner: bool, bias: bool) -> None:
    net = nn.Conv2d(3, 5, size, size, bias=bias).requires_grad_(False)
    x = torch.randn(2, 3, 12, 16)
    if inner:
        x, net = x.to(memory_format=torch.channels_last), net.to(memory_format=torch.channels_last)
    graph = products(net, x, split=inner)
    names = [n.target for n in graph.nodes]
    assert not {aten.mm.default, aten.addmm.default}.isdisjoint(names) and aten.convolution.default not in names
    (made,) = (n for n in graph.nodes if n.target is aten.permute.default and len(spec_of(n).shape) == 4)
    assert is_nhwc(spec_of(made))
    got = AsSaid(fx.GraphModule({}, graph)).run(x, *net.parameters())
    torch.testing.assert_close(got[0], net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False), (True, False, False)])
def test_backward(mask: tuple[bool, ...]) -> None:
    def f(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        how = [5] if mask[2] else None, [3, 2], [0, 0], [1, 1], False, [0, 0], 1, list(mask)
        return tuple(made for made in aten.convolution_backward(g, x, w, *how) if made is not None)

    inner = torch.channels_last
    g, x, w = torch.randn(2, 5, 4, 6).to(memory_format=inner), torch.randn(2, 3, 12, 12), torch.randn(5, 3, 3, 2)
    graph = on_gpu(normalised(f, g, x, w))
    (conv,) = filter(None, map(match_conv_backward, graph.nodes))
    assert patches.serves_backward(conv)
    patches.write_backward(graph, conv)
    graph.lint()
    got = AsSaid(fx.GraphModule({}, graph)).run(g, x, w)
    torch.testing.assert_close(tuple(got), f(g, x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(2, 2), (3, 1)])
def test_transposed(size: tuple[int, int]) -> None:
    net = nn.ConvTranspose2d(3, 5, size, size, bias=False).requires_grad_(False)
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)  # as the choice of layouts gives it
    got = AsSaid(fx.GraphModule({}, products(net, x))).run(x, net.weight)
    torch.testing.assert_close(got[0], net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "net",
    [nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1, 2, bias=False), nn.ConvTranspose2d(6, 4, 3), nn.ConvTranspose2d(6, 4, (4, 2), 2)],
    ids=str,
)
def test_pixels(net: nn.Module) -> None:
    net, x = net.requires_grad_(False), torch.randn(3 if isinstance(net, nn.ConvTranspose2d) else 1, 6, 1, 1)
    graph = on_gpu(normalised(net, x))
    patches.take_pixels(graph)
    graph.lint()
    assert aten.convolution.default not in [n.target for n in graph.nodes]
    got = AsSaid(fx.GraphModule({}, graph)).run(x, *net.parameters())
    torch.testing.assert_close(got[0], net(x), rtol=1e-4, atol=1e-5)
    assert got[0].stride() == net(x).stride()


def test_pixels_of_several_images_are_left() -> None:
    """The library's convolution of them is faster."""
    graph = on_gpu(normalised(nn.Conv2d(6, 4, 1).requires_grad_(False), torch.randn(3, 6, 1, 1)))
    patches.take_pixels(graph)
    assert aten.convolution.default in [n.target for n in graph.nodes]


@pytest.mark.parametrize(
    "net",
    [
        nn.Conv2d(4, 4, 2, 2, groups=2),
        nn.Conv2d(4, 4, 2, 2, padding=1),
        nn.Conv2d(4, 4, 2, 3),
        nn.Conv2d(4, 4, 2, 2, dilation=2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 5, 5),
        nn.ConvTranspose2d(4, 4, 2, 3),
        nn.ConvTranspose2d(4, 4, 2, 2, output_padding=1),
    ],
    ids=str,
)
def test_what_is_left(net: nn.Module) -> None:
    graph = products(net.requires_grad_(False), torch.randn(1, 4, 12, 12))
    assert aten.convolution.default in [n.target for n in graph.nodes]


# ---- timing ---------------------------------------------------------------------------------------------------------
class RunsAll:
    """Stands for a tuner: runs every candidate once, on operands on the CPU. ran: their names."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def candidate(self, name: str, call: Callable, prepare: Callable | None) -> tuple:
        return name, call, prepare

    def choose(self, op: str, specs: list, candidates: list, *args: object, **how: object) -> Choice:
        operands = [torch.empty_strided(s.shape, s.stride, dtype=s.dtype).normal_() for s in specs]
        for name, call, prepare in candidates:
            call(*(prepare(*operands) if prepare else operands))
            self.ran.append(name)
        return Choice("", (), dict.fromkeys(self.ran, 1.0), {})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_way_runs_where_it_is_timed(transposed: bool, bias: bool) -> None:
    """Before the bias is split off, too: layouts of a joint graph are chosen then."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    graph = on_gpu(normalised(kind(3, 5, 4, 4, bias=bias).requires_grad_(False), torch.randn(2, 3, 8, 8)))
    (conv,) = filter(None, map(match_conv, graph.nodes))
    tuner = RunsAll()
    times = time_conv(conv, tuner, library, packs=False)
    assert times is not None and {"conv_nchw", "conv_nhwc"} < set(tuner.ran) | {patches.PATCHES}
    assert (patches.PATCHES in tuner.ran) == patches.serves(conv)
