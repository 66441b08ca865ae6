"""Inputs whose elements share places, as an expanded weight's do: views of them that are returned have eager's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .beside import BACKENDS, beside

pytestmark = [pytest.mark.pairs, pytest.mark.parametrize("backend", BACKENDS)]

INPUTS = {
    "expanded": lambda: torch.arange(5.0).expand(5, 5).detach().requires_grad_(),
    "windows": lambda: torch.arange(9.0).as_strided((5, 5), (1, 1)).detach().requires_grad_(),
}
CALLS: dict[str, Callable] = {
    "diagonal": lambda x: (x.diagonal(), x.diagonal().flip(0) + 1),
    "row": lambda x: (x[1], x[1] * 2),
    "slices": lambda x: (x[1:3], x[:, 2:], x.sin()),
    "expanded again": lambda x: (x[:1].expand(5, 5), x[0].sin()),
    "transposed": lambda x: (x.t(), x.t() + 1),
    "of what was made": lambda x: ((x * 2)[:1].expand(5, 5)[1:], (x * 2).diagonal()),
}


@pytest.mark.parametrize("made", INPUTS)
@pytest.mark.parametrize("call", CALLS)
def test_views_of_shared_places(call: str, made: str, backend: str) -> None:
    """Each element has its own gradient, though several lie in one place"""

    def drive(f: Callable, x: torch.Tensor) -> object:
        outs = f(x)
        return torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in outs), x), outs

    beside(backend, CALLS[call], lambda: (INPUTS[made](),), drive, torch_runs=None)
