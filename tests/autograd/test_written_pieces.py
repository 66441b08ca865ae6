"""Inputs that are one of several views, written without gradients: autograd refuses any use of them behind the write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

PIECES: dict[str, Callable] = {
    "chunk": lambda w: w.chunk(2)[0],
    "split": lambda w: w.split(2)[1],
    "unbind": lambda w: w.view(2, 2).unbind()[0],
    "a slice": lambda w: w[:2],
    "in two": lambda w: w.view(2, 2).chunk(2)[0][:, 1],
}
WRITES: dict[str, Callable] = {
    "exp_": lambda v, w: v.exp_(),
    "add_": lambda v, w: v.add_(1),
    "twice": lambda v, w: v.add_(1).mul_(2),
    "with its base": lambda v, w: (v.add_(1), w.mul_(2)),
}
ENDS: dict[str, Callable] = {"scaled": lambda v: v * 2, "summed": lambda v: v.sum() * 3, "kept": lambda v: v.sin()}


@pytest.mark.cxx
@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_is_used_and_then_written(piece: str, write: str, end: str, backend: str) -> None:
    """Its history is that of before the write; it is written once."""

    def f(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        v = PIECES[piece](w)
        bytejit.disable(lambda: None)()
        y = ENDS[end](v)
        with torch.no_grad():
            WRITES[write](v, w)
        return y, w

    compiled = bytejit.compile(f, backend=backend)
    for n in range(3):
        seen = []
        for g in (f, compiled):
            w = torch.linspace(0, 1, 4).add(n).requires_grad_()
            y, same = g(w)
            assert same is w
            try:
                gradient: object = [round(x, 4) for x in torch.autograd.grad(y.sum(), w)[0].tolist()]
            except RuntimeError as e:
                gradient = str(e).partition(":")[0]
            seen.append((w._version, gradient, y.tolist(), w.tolist()))
        assert seen[0][:2] == seen[1][:2]
        torch.testing.assert_close(seen[1][2:], seen[0][2:], rtol=1e-5, atol=1e-6)
