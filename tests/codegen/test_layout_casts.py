"""Casts between convolutions have the layout of what they read: with the channels innermost nothing is converted on the way."""

from __future__ import annotations

import pytest
import torch
from graphs import normalised, on_gpu
from torch import nn

from bytejit.codegen.libraries.convolution_times import Times
from bytejit.codegen.libraries.layout import _layouts, _match, _places


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


CASES = {
    "norms of halves": (block(torch.float16), torch.randn(2, 8, 6, 6).half(), 2),
    "norms of floats": (block(torch.float32), torch.randn(2, 8, 6, 6), 2),
    "autocast": (Narrow().eval(), torch.randn(2, 8, 6, 6), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_conversions(name: str) -> None:
    """Only what comes in, and what the program sees"""
    net, x, ends = CASES[name]
    graph = on_gpu(normalised(net, x))
    places = _places(graph)
    convs = [n for n in graph.nodes if _match(n) is not None]
    assert len(convs) >= 2
    inner, conversions = _layouts(places, frozenset(convs), {n: Times(1.0, 0.5, "conv_nhwc") for n in convs})
    assert all(inner[n] for n in convs)
    assert len({t for _, t in conversions}) <= ends, conversions
    first, last = conversions[0][1], conversions[-1]
    assert first.op == "placeholder" or first.args[0].op == "placeholder"
    assert last[0].op == "output"
