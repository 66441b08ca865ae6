"""Buffers that a graph writes and computes results with gradients from: codebooks, queues, power iterations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .beside import BACKENDS, beside

pytestmark = [pytest.mark.pairs, pytest.mark.parametrize("backend", BACKENDS)]


def iterated(w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """A spectral norm: the vector is brought nearer, then the weight is divided by what it gives."""
    with torch.no_grad():
        u.copy_(F.normalize(w @ (w.t() @ u), dim=0))
    return w / (u @ w).norm()


def codebook(x: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes that follow the inputs, and a straight-through estimate."""
    with torch.no_grad():
        nearest = torch.cdist(x, codes).argmin(1)
        hot = F.one_hot(nearest, codes.shape[0]).to(x.dtype)
        codes.lerp_(hot.t() @ x / hot.sum(0).clamp(min=1)[:, None], 0.1)
    found = codes[nearest]
    return x + (found - x).detach(), (x - found).square().mean()


def queue(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read, partly written, read again, written through a view."""
    before = x @ rows.clone().t()
    with torch.no_grad():
        rows[1:3] = x.detach()[:2] * 2
        rows.t()[0].add_(1.0)
    return before, (x * 0.5) @ rows.t()


def buffer(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


CASES = {
    "iterated": (iterated, lambda: (torch.randn(4, 6, requires_grad=True), buffer(4))),
    "codebook": (codebook, lambda: (torch.randn(5, 3, requires_grad=True), buffer(4, 3))),
    "queue": (queue, lambda: (torch.randn(4, 3, requires_grad=True), buffer(6, 3))),
}


def loss_of(outs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum(t.square().sum() for t in (outs if isinstance(outs, tuple) else (outs,)))


def once(f: Callable, *args: torch.Tensor) -> object:
    outs = f(*args)
    loss_of(outs).backward()
    return outs


def twice(f: Callable, *args: torch.Tensor) -> object:
    """Two backward passes through one graph."""
    loss = loss_of(f(*args))
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def differentiated(f: Callable, *args: torch.Tensor) -> object:
    """A gradient's gradient: computed from the buffer as it was before the graph wrote it."""
    loss = loss_of(f(*args))
    (grad,) = torch.autograd.grad(loss, args[0], create_graph=True)
    grad.square().sum().backward()
    return grad


@pytest.mark.parametrize("drive", [once, twice, differentiated], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CASES)
def test_a_buffer(name: str, drive: Callable, backend: str) -> None:
    f, inputs = CASES[name]
    beside(backend, f, inputs, drive, tol=1e-4, torch_runs=2 if drive is differentiated else 0)


def test_modules_of_torch(backend: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.utils.spectral_norm(nn.Linear(5, 2))
        )

    def drive(f: Callable, m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = f(m, x)
        out.square().sum().backward()
        return out

    beside(backend, lambda m, x: m(x), lambda: (make(), torch.randn(3, 4)), drive, steps=3, tol=1e-4)
