"""What is computed of a view that has been written lies in memory as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

VIEWS: dict[str, Callable] = {
    "t": lambda w: w.t(),
    "swapaxes": lambda w: w.swapaxes(0, -1),
    "permuted": lambda w: w.view(3, 2, 2).permute(2, 0, 1),
    "a part": lambda w: w[1:].t(),
    "as it is": lambda w: w.view(4, 3),
}
WRITES: dict[str, Callable] = {
    "zero_": lambda v: v.zero_(),
    "fill_": lambda v: v.fill_(2),
    "copy_": lambda v: v.copy_(torch.arange(v.numel() * 1.0).view(v.shape)),
    "add_": lambda v: v.add_(torch.ones(v.shape)),
    "uniform_": lambda v: v.uniform_(3, 3),
    "zero_, add_": lambda v: v.zero_().add_(1),
}


@pytest.mark.cxx
@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_strides_behind_a_write(view: str, write: str, made: bool, backend: str) -> None:
    """Results of operations that keep their input's layout."""

    def f(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = w.exp() if made else w
        v = VIEWS[view](w)
        WRITES[write](v)
        return v.flip(0), v.exp(), v.clone(), torch.empty_like(v).fill_(1), v * v.sum(), w, v

    seen = []
    for g in (f, bytejit.compile(f, backend=backend)):
        found = g(torch.linspace(-1, 1, 12).view(3, 4))
        seen.append(([t.stride() for t in found], found))
    assert seen[0][0] == seen[1][0]
    torch.testing.assert_close(seen[1][1], seen[0][1])
