"""What a graph makes counts the writes of the program only, whatever library has written it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

W = torch.linspace(-1, 1, 16).view(4, 4)
RESULTS: dict[str, Callable] = {
    "mm": lambda x: x.view(6, 4) @ W,
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "addmm": lambda x: torch.addmm(x[0, 0], x[0], W),
    "baddbmm": lambda x: torch.baddbmm(x, x, torch.stack([W, W])),
    "a view": lambda x: torch.einsum("abc,cd->bad", x, W)[0],
    "a view and its base": lambda x: (y := x.view(6, 4) @ W, y[0])[1],
    "written": lambda x: (x.view(6, 4) @ W).mul_(2).add_(1),
    "conv": lambda x: torch.conv1d(x, x[:, :, :1]),
}


@pytest.mark.cxx
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", RESULTS)
def test_versions(name: str, mode: Callable) -> None:
    found = []
    for f in (RESULTS[name], bytejit.compile(RESULTS[name])):
        x = torch.linspace(-1, 1, 24).view(2, 3, 4).requires_grad_(mode is torch.enable_grad)
        with mode():
            y = f(x * 1)
        found.append((y.is_inference(), None if y.is_inference() else y._version))
    assert found[0] == found[1]


RESHAPES = {
    "t_": lambda v: v.t_(),
    "transpose_": lambda v: v.transpose_(0, 1),
    "swapaxes_": lambda v: v.swapaxes_(0, 1),
    "squeeze_": lambda v: v.squeeze_(),
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "as_strided_": lambda v: v.as_strided_((2,), (1,)),
    "t_ twice": lambda v: v.t_().t_(),
    "t_, then a write": lambda v: v.t_().add_(1),
}
OF = {
    "a slice": lambda w: w[:1],
    "a view": lambda w: w.view(3, 4),
    "of a view": lambda w: w[1:].T,
    "an alias": lambda w: w.detach(),
}


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.cxx), "aot_eager"])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize("change", RESHAPES)
def test_a_view_gets_another_look(change: str, of: str, made: bool, backend: str) -> None:
    """Eager counts that as a write into what it is a view of: an input, or what the graph makes."""

    def f(w):
        w = w * 2 if made else w
        v = OF[of](w)
        RESHAPES[change](v)
        return v, v * 2, w

    compiled = bytejit.compile(f, backend=backend)
    for n in range(2):
        seen = []
        for g in (f, compiled):
            w = torch.arange(12.0).view(4, 3) + n
            found = g(w)
            seen.append((w._version, w.tolist(), *((t._version, t.stride(), t.tolist()) for t in found)))
        assert seen[0] == seen[1]
