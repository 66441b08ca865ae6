"""Casts between convolutions have the layout of what they read: with the channels innermost nothing is converted on the way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graphs import normalised, on_gpu
from torch import fx, nn

from bytejit.codegen.aten.rewrite import spec_of
from bytejit.codegen.libraries.convolution import is_nhwc
from bytejit.codegen.libraries.convolution_times import Times
from bytejit.codegen.libraries.layout import _layouts, _match, _places
from bytejit.codegen.libraries.relayout import convert, restride


class Narrow(nn.Module):
    """What autocast makes of two convolutions with an activation in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.Conv2d(8, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = torch.bfloat16
        y = torch.conv2d(x.to(half), self.one.weight.to(half), None, 1, 1).float().sigmoid()
        return torch.conv2d(y.to(half), self.two.weight.to(half)).float()


def block(dtype: torch.dtype) -> nn.Module:
    parts = [p for _ in range(3) for p in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())]
    return nn.Sequential(*parts).to(dtype).eval()


class Backward(nn.Module):
    """What training makes of two convolutions with a batch norm and a pool between them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8, 3, 3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        aten, channels = torch.ops.aten, torch.ones(8)
        y = torch.conv2d(x, self.w, None, 1, 1)
        pooled, at = aten.max_pool2d_with_indices(y.relu(), [2, 2], [2, 2])
        z = torch.conv2d(pooled, self.w, None, 1, 1)
        how = [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        g = aten.convolution_backward(z.relu(), pooled, self.w, *how, [True, False, False])[0]
        g = aten.threshold_backward(aten.max_pool2d_with_indices_backward(g, y, [2, 2], [2, 2], [0, 0], [1, 1], False, at), y, 0)
        statistics = None, None, channels, channels, True, 1e-5
        g = aten.native_batch_norm_backward(g, y, channels, *statistics, [True, True, True])[0]
        return aten.convolution_backward(g, x, self.w, *how, [True, False, False])[0]


def with_cudnn(graph: fx.Graph) -> fx.Graph:
    """The graph with cuDNN's batch norms, as torch calls them on a GPU."""
    for n in graph.nodes:
        if n.target is torch.ops.aten.native_batch_norm_backward.default:
            g, x, weight, _, _, mean, rstd, _, eps, _ = n.args
            n.target, n.args = torch.ops.aten.cudnn_batch_norm_backward.default, (x, g, weight, None, None, mean, rstd, eps, mean)
    return graph


class Blocks(nn.Module):
    """A network that walks down and up again: group norms, borders, and what is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
        self.down, self.up, self.last = (nn.Conv2d(n, 8, 3, bias=False) for n in (8, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.pad(x, (1, 1, 1, 1), mode="reflect"))
        z = self.up(F.pad(F.silu(self.norm(y)), (1, 1, 1, 1)))
        return self.last(torch.cat([F.interpolate(z, scale_factor=2, mode="nearest"), F.interpolate(y, scale_factor=2)], 1))


class Partial(nn.Module):
    """Channels that go two ways and are joined again: only the part that a convolution reads becomes a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (nn.Conv2d(n, m, 1, bias=False) for n, m in ((8, 8), (4, 4), (12, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.one(x).chunk(2, 1)
        return self.last(torch.cat([a, b, self.two(b).relu()], 1))


def activated(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*(p for n in parts for p in (nn.Conv2d(8, 8, 3, padding=1), n))).eval()


CASES = {
    "activations without torch's tag": (
        activated(nn.PReLU(), nn.PReLU(8), nn.Hardswish(), nn.LogSigmoid(), nn.SELU()),
        torch.randn(2, 8, 6, 6),
        2,
    ),
    "parts": (Partial().eval(), torch.randn(2, 8, 6, 6), 3),
    "norms of groups, borders, joined": (Blocks().eval(), torch.randn(2, 8, 6, 6), 2),
    "norms of halves": (block(torch.float16), torch.randn(2, 8, 6, 6).half(), 2),
    "norms of floats": (block(torch.float32), torch.randn(2, 8, 6, 6), 2),
    "training": (Backward(), torch.randn(2, 8, 6, 6), 2),
    "autocast": (Narrow().eval(), torch.randn(2, 8, 6, 6), 2),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_conversions(name: str, device: str) -> None:
    """Only what comes in, and what the program sees"""
    net, x, ends = CASES[name]
    if device == "cpu" and name in ("norms of halves", "autocast"):
        pytest.skip("convolutions of 16 bits are torch's there")
    graph = normalised(net, x)
    graph = with_cudnn(on_gpu(graph)) if device == "cuda" else graph
    places = _places(graph)
    convs = [n for n in graph.nodes if _match(n) is not None]
    assert len(convs) >= 2
    inner, conversions = _layouts(places, frozenset(convs), {n: Times(1.0, 0.5, "conv_nhwc") for n in convs})
    assert all(inner[n] for n in convs)
    assert len({t for _, t in conversions}) <= ends, conversions
    convert(graph, inner, conversions)
    for p in places:
        restride(p.node, inner[p.node], p.kind)
    graph.lint()
    for n in convs:
        assert all(map(is_nhwc, map(spec_of, n.args[: 1 + (n.target is torch.ops.aten.convolution_backward.default)]))), n
    first, last = conversions[0][1], conversions[-1]
    assert first.op == "placeholder" or first.args[0].op == "placeholder"
    assert last[0].op == "output"
