"""Recurrent layers that stay one call, as on a GPU: no break, results and strides as eager's. Here the CPU stands for the GPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import bytejit
from bytejit.backends.recording import draws
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake import sized
from bytejit.fake.tensor import fake_of_spec, infer

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


@pytest.mark.parametrize(
    "kind, options",
    [
        (torch.nn.LSTM, {"dropout": 0.3, "batch_first": True, "bidirectional": True}),
        (torch.nn.LSTM, {"bias": False}),
        (torch.nn.LSTM, {"dropout": 0.3, "proj_size": 3}),
        (torch.nn.GRU, {"dropout": 0.3}),
    ],
)
def test_symbolic_sizes_in_training(kind: type, options: dict) -> None:
    """Results, gradients and random numbers with sizes that change; an LSTM in one op a layer compiles once for all lengths."""
    torch.manual_seed(0)
    layer, results = kind(4, 6, 2, **options), []
    for f in (layer, bytejit.compile(lambda x: layer(x), backend="aot_eager", dynamic=True)):
        torch.manual_seed(1)
        results.append([])
        for steps, batch in ((2, 3), (4, 4), (3, 2)):
            x = torch.randn(steps, batch, 4, requires_grad=True)
            layer.zero_grad()
            made = tree_leaves(f(x))
            sum(t.square().sum() for t in made).backward()
            results[-1] += [*made, x.grad, *(p.grad for p in layer.parameters()), torch.rand(1), [t.stride() for t in made]]
    torch.testing.assert_close(results[1], results[0])
    if kind is torch.nn.LSTM and "proj_size" not in options:
        assert bytejit.counters.total("graphs") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_onednns_layer_are_of_32_bits(dtype: torch.dtype) -> None:
    """Also where this CPU has no such layer of 16 bits, and where torch's meta kernel says 16."""
    layer, x, state = torch.nn.LSTM(8, 16), torch.randn(6, 2, 8), torch.randn(1, 2, 16)
    weights = [w.detach() for w in layer.parameters()]
    how = (
        False,
        2,
        16,
        1,
        True,
        True,
        False,
        [],
        False,
    )  # reverse, mode, hidden, layers, biases, train, both ways, sizes, batch first
    forward = torch.ops.aten.mkldnn_rnn_layer.default
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        y, *last, workspace = forward(x, *weights, state, state, False, [], 2, 16, 1, True, False, False, True)
    made = [x, *weights, state, state, y, *last, y, *last]
    backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
    expected = backward(*made, *how, workspace)
    fakes = [fake_of_spec(Spec(tuple(t.shape), contiguous_stride(t.shape), dtype, t.device)) for t in made]
    said = infer(backward, (*fakes, *how, fake_of_spec(Spec((0,), (1,), torch.uint8, x.device))), {})
    assert [(tuple(g.shape), g.stride(), g.dtype) for g in said] == [(tuple(g.shape), g.stride(), g.dtype) for g in expected]
