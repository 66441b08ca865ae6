"""Recurrent layers that stay one call, as on a GPU: no break, results and strides as eager's. Here the CPU stands for the GPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import bytejit
from bytejit.backends.recording import draws
from bytejit.fake import sized

LAYERS = {
    "lstm": (torch.nn.LSTM, {}),
    "both ways, batch first": (torch.nn.LSTM, {"batch_first": True, "bidirectional": True}),
    "gru": (torch.nn.GRU, {"batch_first": True, "dropout": 0.5}),
    "rnn": (torch.nn.RNN, {"nonlinearity": "relu"}),
    "no bias": (torch.nn.LSTM, {"bias": False}),
}


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized, "ONE_CALL", frozenset({"cpu"}))
    kind, options = LAYERS[name]
    layer, x = kind(8, 16, 2, **options).eval(), torch.randn(5, 4, 8)
    with torch.no_grad():
        compiled = bytejit.compile(layer, backend=backend, fullgraph=True)
        for batch in (x, torch.randn(5, 4, 8), torch.randn(3, 4, 8), torch.randn(2, 4, 8), torch.randn(5, 8)):
            for got, expected in zip(tree_leaves(compiled(batch)), tree_leaves(layer(batch)), strict=True):
                torch.testing.assert_close(got, expected)
                assert got.stride() == expected.stride()


@pytest.mark.parametrize(("dropout", "training", "expected"), [(0.0, True, False), (0.5, False, False), (0.5, True, True)])
def test_dropout_draws(dropout: float, training: bool, expected: bool) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.gru.input, (x, x, [x], True, 1, dropout, training, False, False))
    assert draws(node) is expected
    assert draws(graph.call_function(torch.ops.aten.bernoulli.default, (x,)))
    assert not draws(graph.call_function(torch.ops.aten.scaled_dot_product_attention.default, (x, x, x)))
