"""Gradients are as close to float64 as eager's, within a factor of two, parameter by parameter."""

from __future__ import annotations

import copy

import pytest
import torch

import bytejit

nn = torch.nn


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.block = nn.Embedding(50, 32), nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        return self.head(self.block(self.table(ids)))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)), (32, 64)),
    "conv": (conv, (4, 3, 16, 16)),
    "tokens": (Tokens, (4, 16)),
}


def gradients(m: nn.Module, f, x: torch.Tensor) -> list[torch.Tensor]:
    """Of a loss that is no constant of the model."""
    weights = torch.linspace(-1, 1, 4096, dtype=torch.float64)
    y = f(x)
    w = weights[: y.numel()] if y.numel() <= 4096 else torch.cos(torch.arange(y.numel(), dtype=torch.float64))
    (y.sigmoid() * w.to(y.dtype).view_as(y)).sum().backward()
    return [p.grad.double() for p in m.parameters()]


@pytest.mark.cxx
@pytest.mark.parametrize("name", MODELS)
def test_as_close_as_eager(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    m = make()
    exact, plain = copy.deepcopy(m).double(), copy.deepcopy(m)
    x = torch.randint(0, 50, shape) if name == "tokens" else torch.randn(shape)
    wanted = gradients(exact, exact, x.double() if x.is_floating_point() else x)
    eager, ours = gradients(plain, plain, x), gradients(m, bytejit.compile(m), x)
    for w, e, o in zip(wanted, eager, ours):
        step = 2.0**-23 * w.norm()  # what rounding alone may do
        assert (o - w).norm() <= 2 * (e - w).norm() + step
