"""torch.istft within a graph."""

from __future__ import annotations

import pytest
import torch

import bytejit

N, HOP = 16, 4


def spectrum(seed: int, frames: int, bins: int = N // 2 + 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, bins, frames, dtype=torch.complex64, generator=g).requires_grad_()


@pytest.mark.parametrize(
    "options, bins",
    [
        ({}, 9),
        ({"length": 20, "normalized": True}, 9),
        ({"win_length": 12}, 9),
        ({"onesided": False, "win_length": 16}, 16),
        ({"return_complex": True}, 16),
    ],
    ids=str,
)
def test_one_graph_of_any_length(options, bins):
    window = torch.hann_window(options.get("win_length", N)) + 0.1
    fn = lambda s, w: torch.istft(s * 2, N, HOP, window=w, **options)  # noqa: E731
    compiled = bytejit.compile(fn, backend="aot_eager", fullgraph=True)
    for i, frames in enumerate((6, 8, 9, 11)):
        results = []
        for f in (fn, compiled):
            s, w = spectrum(i, frames, bins), window.clone().requires_grad_()
            y = f(s, w)
            y.abs().square().sum().backward()
            results.append((y.detach(), s.grad, w.grad, y.stride()))
        torch.testing.assert_close(results[1], results[0])
    assert bytejit.counters.total("graphs") == 2


def test_errors_are_torchs():
    window = torch.hann_window(N)
    for make in (
        lambda s: torch.istft(s, N, N, window=window, center=False),
        lambda s: torch.istft(s, N, HOP, window=window[1:]),
        lambda s: s.istft(N, 2 * N, N, window),
    ):
        compiled, said = bytejit.compile(make, backend="eager"), []
        for f in (make, compiled, compiled):
            with pytest.raises(RuntimeError) as e:
                f(spectrum(0, 6))
            said.append(str(e.value))
        assert said[0] == said[1] == said[2]
