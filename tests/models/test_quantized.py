"""Layers that torch quantises in the call: their packed weights are objects of torch's C++ classes, and part of one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of what follows torch.ao.quantization
BACKENDS = [pytest.param("eager"), pytest.param("aot_eager"), pytest.param("inductor", marks=pytest.mark.cxx)]


class Words(nn.Module):
    """Embedding, a recurrent layer, a linear layer: sequence and last states."""

    def __init__(self, kind: type, **options: object) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(20, 16), kind(16, 12, **options), nn.LazyLinear(20)

    def forward(self, ids: torch.Tensor) -> tuple:
        y, state = self.rnn(self.embed(ids))
        return self.head(y).log_softmax(-1), y, state


class Steps(nn.Module):
    """A cell in a loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for t in x:
            state = self.cell(t, state)
        return self.head(state[0] if isinstance(state, tuple) else state).sigmoid()


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 8, bias=False), nn.Softmax(-1))


IDS = torch.arange(21).view(3, 7) % 20
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linears": (linears, torch.randn(5, 16)),
    "linears of 3 dimensions": (linears, torch.randn(4, 5, 16).transpose(0, 1)),
    "lstm": (lambda: Words(nn.LSTM), IDS),
    "lstm, two layers, both ways": (lambda: Words(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True), IDS),
    "gru": (lambda: Words(nn.GRU, batch_first=True), IDS),
    "lstm cell": (lambda: Steps(nn.LSTMCell(6, 12)), torch.randn(4, 3, 6)),
    "gru cell": (lambda: Steps(nn.GRUCell(6, 12)), torch.randn(4, 3, 6)),
    "relu cell": (lambda: Steps(nn.RNNCell(6, 12, nonlinearity="relu")), torch.randn(4, 3, 6)),
    "tanh cell": (lambda: Steps(nn.RNNCell(6, 12)), torch.randn(4, 3, 6)),
}


def quantized(model: nn.Module, x: torch.Tensor, dtype: torch.dtype = torch.qint8) -> nn.Module:
    model(x)  # a lazy layer learns its size
    kinds = {nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell}
    return torch.ao.quantization.quantize_dynamic(model.eval(), kinds, dtype=dtype)


def flat(x: object) -> list[torch.Tensor]:
    return [t for part in x for t in flat(part)] if isinstance(x, tuple) else [x]


def equal(got: object, wanted: object) -> None:
    for a, b in zip(flat(got), flat(wanted), strict=True):
        torch.testing.assert_close(a, b)
        assert (a.stride(), a.requires_grad) == (b.stride(), b.requires_grad)


@pytest.mark.pairs
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_one_graph(name, backend, dynamic):
    bytejit.reset()
    make, x = MODELS[name]
    torch.manual_seed(0)
    model = quantized(make(), x)
    compiled = bytejit.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    for given in (x, x[:, :2] if x.dim() == 3 else x[:2]):  # fewer rows: the same graph where sizes are symbols
        equal(compiled(given), model(given))
    assert not failed(), bytejit.counters


def failed() -> list[str]:
    """Fallbacks because a graph raised: the original code ran, and the result was right all the same."""
    return [what for what in bytejit.counters["fallbacks"] if what.startswith("a graph raised")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16(backend):
    bytejit.reset()
    make, x = MODELS["linears"]
    model = quantized(make(), x, torch.float16)
    equal(bytejit.compile(model, backend=backend, fullgraph=True)(x), model(x))
    assert not failed(), bytejit.counters


@pytest.mark.cxx
def test_packed_weights_are_the_same_objects_or_it_compiles_anew():
    make, x = MODELS["linears"]
    first, second = (quantized(make(), x) for _ in range(2))
    compiled = bytejit.compile(lambda m, x: m(x) * 2)
    for model in (first, second, first, copy.deepcopy(second)):
        equal(compiled(model, x), model(x) * 2)
    before = first(x)
    first[0].set_weight_bias(*second[0]._weight_bias())
    assert not torch.equal(before, first(x))
    equal(compiled(first, x), first(x) * 2)


@pytest.mark.cxx
def test_the_graph_holds_the_layers_as_library_calls():
    make, x = MODELS["linears"]
    model = quantized(make(), x)
    report = str(bytejit.explain(model, x))
    assert "1 graph, 0 breaks" in report
    assert "2 x quantized.linear_dynamic.default (library)" in report


@pytest.mark.parametrize("x", [torch.randn(5, 16).double(), torch.randn(5, 15)])
def test_what_a_layer_refuses_is_refused_alike(x):
    model = quantized(linears(), torch.randn(5, 16))
    with pytest.raises(RuntimeError) as wanted:
        model(x)
    with pytest.raises(RuntimeError) as got:
        bytejit.compile(model)(x)
    assert str(got.value) == str(wanted.value)


def test_dropout_between_layers_draws_as_in_eager():
    x = IDS
    model = quantized(Words(nn.LSTM, num_layers=2, dropout=0.5), x)
    model.rnn.train()
    compiled = bytejit.compile(model, backend="aot_eager")
    torch.manual_seed(3)
    wanted = model(x)
    torch.manual_seed(3)
    equal(compiled(x), wanted)


# ---- training for numbers of few bits ------------------------------------------------------------------------------------
SCALE, ZERO = torch.tensor([0.1, 0.3, 0.05, 0.2]), torch.tensor([0, 1, -2, 3], dtype=torch.int32)
ROUNDED = {
    "whole": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 1, -8, 7),
    "whole, by tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALE[0], ZERO[1], -8, 7),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, SCALE, ZERO, 1, -8, 7),
    "learnt": lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, SCALE[:1], ZERO[:1].float(), -8, 7, 1.0),
    "channels learnt": lambda x: torch._fake_quantize_learnable_per_channel_affine(x, SCALE, ZERO.float(), 1, -8, 7, 1.0),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ROUNDED)
def test_values_rounded_to_a_grid(name: str, backend: str) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))

    def f(x: torch.Tensor) -> torch.Tensor:
        return ROUNDED[name](x * 2) + 1

    c = bytejit.compile(f, backend=backend, fullgraph=True)
    for laid in (x, x.transpose(1, 2).contiguous().transpose(1, 2), x.double() if "learnt" not in name else x):
        one, two = laid.detach().clone().requires_grad_(), laid.detach().clone().requires_grad_()
        made, want = c(one), f(two)
        assert torch.equal(made, want) and made.stride() == want.stride()
        made.square().sum().backward(), want.square().sum().backward()
        assert torch.equal(one.grad, two.grad)
    with pytest.raises(RuntimeError, match="quant_min"):
        bytejit.compile(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 7, -8), backend=backend)(x)
