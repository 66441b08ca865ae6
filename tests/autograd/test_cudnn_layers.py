"""Recurrent layers that cuDNN runs as a whole, with a stand-in for it on a CPU: what is traced, saved and read. tests/cuda has
them on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import bytejit
from bytejit.common.recurrent_layers import MODES, How
from bytejit.fake import recurrent, sized

from .beside import BACKENDS, beside
from .test_recurrent import both, frozen, given_states, inputs, kept_on_cpu, of_all, of_last, twice

KEPT = 5  # its size is the library's


def run(x, h, c, w, how: How) -> tuple:
    """The layer as torch's parts compute it."""
    function = {mode: f for f, mode in MODES.items()}[how.mode]
    biased = len(w) // (how.layers * (1 + how.both)) - bool(how.projected) == 4
    return function(x, h if c is None else (h, c), w, biased, how.layers, 0.0, how.train, how.both, how.batch_first)


def forward(x, h, c, w, *how) -> list:
    out, *last = (t.detach() for t in run(x, h, c, w, How(*how)))
    steps_first = out.transpose(0, 1).contiguous().transpose(0, 1) if How(*how).batch_first else out.contiguous()
    return [torch.arange(KEPT, dtype=torch.uint8), steps_first, *last]


def backward(x, h, c, w, out, kept, g_out, g_h, g_c, *how) -> list:
    *how, wanted = how
    assert kept.tolist() == list(range(KEPT))
    x, h, c, *w = (None if t is None else t.detach().requires_grad_() for t in (x, h, c, *w))
    with torch.enable_grad():
        made = run(x, h, c, w, How(*how))
        results, given = zip(*((m, g) for m, g in zip(made, (g_out, g_h, g_c)) if g is not None))
        asked = [t for t, want in zip((x, h, c), wanted) if want] + (w if wanted[3] else [])
        return list(torch.autograd.grad(results, asked, given))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU counts as a device with cuDNN."""
    for module in (recurrent, sized):
        monkeypatch.setattr(module, "ONE_CALL", frozenset({"cpu"}))
    library = torch.library.Library("bytejit", "FRAGMENT")
    library.impl("recurrent_layers", forward, "CPU")
    library.impl("recurrent_layers_backward", backward, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["two layers, both ways", "batch first", "no bias", "projected", "gru", "relu"])
def test_layers(name, backend):
    beside(backend, both, inputs(name), of_all)


@pytest.mark.parametrize("drive", [of_last, kept_on_cpu, twice, frozen])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ways_of_going_backward(backend, drive):
    beside(backend, both, inputs("two layers, both ways"), drive)


@pytest.mark.parametrize("backend", BACKENDS)
def test_given_states(backend):
    beside(backend, lambda m, x, s: m(x, s), inputs("lstm"), given_states)


@pytest.mark.cxx
def test_one_graph_of_a_whole_step_with_sizes_that_change():
    bytejit.reset()
    bytejit.counters.clear()
    m = torch.nn.LSTM(6, 5, 2, batch_first=True)
    opt = torch.optim.SGD(m.parameters(), 0.1)

    @bytejit.compile(fullgraph=True, dynamic=True)
    def step(x):
        opt.zero_grad()
        loss = m(x)[0].square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    first = [step(torch.randn(4, n, 6)) for n in (3, 7, 5, 9)]
    assert all(torch.isfinite(t) for t in first) and bytejit.counters.total("graphs") == 2
    text = str(bytejit.explain(step, torch.randn(4, 6, 6)))
    assert "recurrent_layers.default" in text and "recurrent_layers_backward.default" in text
