"""Layers with weights and activations of int8 (prepare and convert): a break each, and the layer runs as it is."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import bytejit

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of what follows torch.ao.quantization


class Added(nn.Module):
    """A residual layer and a head of floats behind the part that is quantised."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.linear, self.sum, self.act = nn.Linear(8, 8), nn.quantized.FloatFunctional(), nn.ReLU()
        self.head = nn.Sequential(nn.LayerNorm(8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.quant(x * 2)
        q = self.act(self.sum.add(self.linear(q), q))
        return self.head(self.dequant(q)) + 1


def pictures() -> nn.Module:
    parts = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1), nn.Flatten()
    return nn.Sequential(quantization.QuantStub(), *parts, quantization.DeQuantStub())


def converted(model: nn.Module, x: torch.Tensor) -> nn.Module:
    model.eval().qconfig = quantization.default_qconfig
    if isinstance(model, Added):
        model.head.qconfig = None
    quantization.prepare(model, inplace=True)
    model(x)
    return quantization.convert(model)


@pytest.mark.parametrize("make, shape", [(Added, (5, 8)), (pictures, (2, 3, 8, 8))])
def test_right_with_a_break_a_layer(make, shape):
    bytejit.reset()
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = converted(make(), x)
    compiled = bytejit.compile(model, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x))
    breaks = bytejit.counters["breaks"]
    assert len(breaks) <= 4, breaks
    assert not any("/quantized/" in place for place in breaks), breaks  # no layer was taken apart
    assert not bytejit.counters["fallbacks"]


def test_floats_after_quantised_tensors_are_compiled():
    """The same code, called with quantised tensors first."""
    bytejit.reset()

    def twice(x):
        return x.relu() + x.relu() if not x.is_quantized else x

    def f(x):
        return twice(x)

    compiled, x = bytejit.compile(f, backend="eager"), torch.randn(4)
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    assert torch.equal(compiled(q).dequantize(), q.dequantize())
    before = bytejit.counters["graphs"].total()
    assert torch.equal(compiled(x), f(x))
    assert bytejit.counters["graphs"].total() == before + 1
