"""torch's recurrent layers go backward: whole in the library, with what it keeps for that, or step by step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import bytejit

from .beside import BACKENDS, beside

LAYERS = {
    "lstm": lambda: nn.LSTM(6, 5),
    "two layers, both ways": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "batch first": lambda: nn.LSTM(6, 5, 2, batch_first=True),
    "no bias": lambda: nn.LSTM(6, 5, bias=False),
    "projected": lambda: nn.LSTM(6, 5, proj_size=3),
    "dropout": lambda: nn.LSTM(6, 5, 2, dropout=0.5),
    "float64": lambda: nn.LSTM(6, 5).double(),
    "gru": lambda: nn.GRU(6, 5, 2),
    "relu": lambda: nn.RNN(6, 5, nonlinearity="relu"),
}


def inputs(name: str):
    """The layer and a sequence that wants a gradient."""

    def make() -> tuple:
        m = LAYERS[name]()
        return m, torch.randn(7, 4, 6, dtype=next(m.parameters()).dtype, requires_grad=True)

    return make


def both(m, x):
    """All results of a layer."""
    y, state = m(x)
    return y, state


def of_all(f, m, x):
    """A loss of the sequence and of the last states."""
    y, state = f(m, x)
    last = state if isinstance(state, tuple) else (state,)
    (y.cos().sum() + sum(s.sin().sum() for s in last)).backward()
    return y.detach()


def of_last(f, m, x):
    """The sequence itself is not used: its gradient is undefined."""
    state = f(m, x)[1]
    (state[1] if isinstance(state, tuple) else state).sin().sum().backward()


@pytest.mark.pairs
@pytest.mark.parametrize("drive", [of_all, of_last])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, backend, drive):
    beside(backend, both, inputs(name), drive)


def given_states(f, m, x):
    """States of the caller's, from whom gradients are wanted too."""
    h, c = (torch.randn(1, 4, 5, requires_grad=True) for _ in range(2))
    y, (last, _) = f(m, x, (h, c))
    (y.sum() + last.cos().sum()).backward()
    return h.grad, c.grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_given_states(backend):
    beside(backend, lambda m, x, s: m(x, s), inputs("lstm"), given_states)


def kept_on_cpu(f, m, x):
    """What the library keeps is a saved tensor like others."""
    with torch.autograd.graph.save_on_cpu():
        y = f(m, x)[0]
    y.cos().sum().backward()


def twice(f, m, x):
    y = f(m, x)[0]
    y.cos().sum().backward(retain_graph=True)
    y.sin().sum().backward()


def frozen(f, m, x):
    """Only the sequence wants a gradient."""
    m.requires_grad_(False)
    f(m, x)[0].cos().sum().backward()


def differentiated(f, m, x):
    """The library's backward pass has none of its own: as eager, in words too."""
    (g,) = torch.autograd.grad(f(m, x)[0].cos().sum(), x, create_graph=True)
    g.sum().backward()


@pytest.mark.parametrize("drive", [kept_on_cpu, twice, frozen, differentiated])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ways_of_going_backward(backend, drive):
    beside(backend, both, inputs("two layers, both ways"), drive, torch_runs=2 * (drive is differentiated))


def checkpointed(m, x):
    return torch.utils.checkpoint.checkpoint(lambda x: m(x)[0].cos(), x, use_reentrant=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed(backend):
    beside(backend, checkpointed, inputs("two layers, both ways"), lambda f, m, x: f(m, x).sum().backward())


def model(kind: type) -> nn.Module:
    """Words, a recurrent layer, words."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(50, 16), kind(16, 16, 2, batch_first=True), nn.Linear(16, 50)

        def forward(self, ids):
            return self.head(self.rnn(self.embed(ids))[0])

    return Words()


@pytest.mark.cxx
@pytest.mark.parametrize("budget", [0.0, 1.0])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_whole_steps_in_one_graph(kind, budget):
    """Forward, loss, backward and optimizer: one graph that never falls back; weights after three steps as close to float64
    as eager's, within a factor of two."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (4, 9))
    start = model(kind)

    def step(m, opt):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        return loss

    def trained(run, dtype):
        m = copy.deepcopy(start).to(dtype)
        opt = torch.optim.SGD(m.parameters(), 0.5)
        return [*(run(m, opt).detach().double() for _ in range(3)), *(p.detach().double() for p in m.parameters())]

    bytejit.reset()
    bytejit.counters["fallbacks"].clear()
    compiled = bytejit.compile(step, fullgraph=True, options={"activation_memory_budget": budget})
    wanted, eager, ours = trained(step, torch.float64), trained(step, torch.float32), trained(compiled, torch.float32)
    assert not bytejit.counters["fallbacks"]
    for w, e, o in zip(wanted, eager, ours):
        assert (o - w).norm() <= 2 * (e - w).norm() + 2.0**-22 * w.norm()


@pytest.mark.parametrize("train", [True, False])
def test_form_of_the_layer(train):
    """The form that keeps a workspace stands only in graphs that go backward."""
    bytejit.reset()
    m = nn.LSTM(6, 5).requires_grad_(train)
    text = str(bytejit.explain(m, torch.randn(7, 4, 6)))
    assert ("bytejit.recurrent_layer.default" if train else "aten.mkldnn_rnn_layer.default") in text
