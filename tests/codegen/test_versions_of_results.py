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
