"""Biases of products that their reader adds: which are, and that results stay eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.codegen.libraries import linear
from bytejit.codegen.libraries.loose_biases import row_step
from bytejit.common.spec import Spec

pytestmark = pytest.mark.cxx


def heads(x, w, b):
    """The reader is a copy in another order."""
    return F.linear(x, w, b).view(2, 5, 4, 2).transpose(1, 2).reshape(2, 4, 10)


LOOSE = {
    "pointwise": lambda x, w, b: F.linear(x, w, b).sigmoid(),
    "behind views": lambda x, w, b: F.linear(x, w, b).transpose(1, 2).tanh(),
    "reduction": lambda x, w, b: F.layer_norm(F.linear(x, w, b), (8,)),
    "copy": heads,
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w.t()).relu(),
    "one row": lambda x, w, b: F.linear(x[0, 0], w, b).relu(),
    "transposed operand": lambda x, w, b: F.linear(x.transpose(0, 1)[:, :1].transpose(0, 1), w, b).relu(),
    "operand that is no matrix": lambda x, w, b: F.linear(x.transpose(0, 1), w, b).relu(),
    "rows apart": lambda x, w, b: F.linear(torch.cat([x, x], -1)[..., :6], w, b).relu(),
}
KEPT = {
    "output": lambda x, w, b: F.linear(x, w, b),
    "two readers": lambda x, w, b: ((y := F.linear(x, w, b)).sin(), y @ w)[1].sum() + y.sum(),
    "library reads": lambda x, w, b: F.linear(x, w, b) @ w,
    "no bias": lambda x, w, b: F.linear(x, w).relu(),
    "matrix of biases": lambda x, w, b: torch.addmm(b.expand(5, 8), x[0], w.t()).relu(),
}


def loosened(monkeypatch, f) -> int:
    """How many biases are added by readers; results are eager's."""
    found = []
    real = linear.loosen
    monkeypatch.setattr(linear, "loosen", lambda graph, product: (found.append(product), real(graph, product)))
    torch.manual_seed(0)
    args = torch.randn(2, 5, 6), torch.randn(8, 6), torch.randn(8)
    with torch.no_grad():
        got, expected = bytejit.compile(f)(*args), f(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    return len(found)


@pytest.mark.parametrize("name", LOOSE)
def test_a_reader_adds_the_bias(monkeypatch, name: str) -> None:
    assert loosened(monkeypatch, LOOSE[name]) == 1


@pytest.mark.parametrize("name", KEPT)
def test_a_bias_stays(monkeypatch, name: str) -> None:
    assert loosened(monkeypatch, KEPT[name]) == 0


def test_in_training_what_is_saved_keeps_its_bias() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    x = torch.randn(5, 6)
    net(x).square().sum().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    bytejit.compile(net)(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected)


@pytest.mark.parametrize(
    "shape, stride, step",
    [
        ((4, 3), (3, 1), 3),
        ((1, 4, 3), (99, 1, 4), 1),
        ((2, 4, 3), (12, 3, 1), 3),
        ((2, 4, 3), (3, 6, 1), None),
        ((2, 1, 3), (7, 5, 1), 7),
        ((3,), (1,), 3),
    ],
)
def test_rows_as_one_dim(shape: tuple, stride: tuple, step: int | None) -> None:
    assert row_step(Spec(shape, stride, torch.float32, torch.device("cpu"))) == step
