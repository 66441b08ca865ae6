"""The backend `tvm`: rows of the ONNX table, models, indices out of range, sizes, writes. Skipped without TVM."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit.common import registry
from tests.models.zoo import hf, tv

from .onnx_cases import FAMILIES

pytest.importorskip("onnx", reason="the package onnx is not installed: pip install onnx")
pytest.importorskip("tvm", reason="TVM is not installed: pip install apache-tvm")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_each_row_is_eager_or_stays_with_torch(family) -> None:
    from .test_onnx import graph_of

    gm, inputs, texts = graph_of(family())
    inputs = [t.nan_to_num(1.0, torch.inf, -torch.inf) if t.is_floating_point() else t for t in inputs]  # its kernels lose nan
    want = gm.forward(*inputs)
    got = registry.lookup_backend("tvm")(gm, inputs)(*inputs)
    for text, a, b in zip(texts, got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=True, msg=lambda said, text=text: f"{text}: {said}")
    assert not bytejit.counters["fallbacks"], bytejit.counters


@pytest.mark.parametrize("model", [tv("resnet18", 32), hf("Bert", hidden_size=32, num_hidden_layers=2, num_attention_heads=4)])
def test_models(model) -> None:
    module, args, kwargs = model.build()
    with torch.no_grad():
        want, got = (f(*args, **kwargs) for f in (module.eval(), bytejit.compile(module, backend="tvm")))
        want, got = (t if isinstance(t, torch.Tensor) else t[0] for t in (want, got))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert not bytejit.counters["fallbacks"]


def test_an_index_out_of_range_raises() -> None:
    def fn(table, at):
        return (torch.nn.functional.embedding(at, table) * 2).relu()

    table = torch.randn(4, 3)
    compiled = bytejit.compile(fn, backend="tvm")
    torch.testing.assert_close(compiled(table, torch.tensor([1])), fn(table, torch.tensor([1])))
    with pytest.raises(IndexError, match="index out of range"):
        compiled(table, torch.tensor([9]))


def test_sizes_that_change_and_writes() -> None:
    def fn(x, w):
        x.mul_(2)
        return (x[1:] @ w).tanh()

    compiled = bytejit.compile(fn, backend="tvm")
    for rows in (3, 5, 7):
        x, w = torch.randn(rows, 4), torch.randn(4, 2)
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(ours, w), fn(theirs, w))
        torch.testing.assert_close(ours, theirs)
    assert any("known at the call only" in what for what in bytejit.counters["externs"])


def test_training() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled, x = bytejit.compile(layers, backend="tvm"), torch.randn(3, 4)
    gradients = [torch.autograd.grad(f(x).square().sum(), [*layers.parameters()]) for f in (layers, compiled)]
    torch.testing.assert_close(*gradients)
    assert not bytejit.counters["fallbacks"]
