"""Hooks of parameters' gradients run in eager's order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit
from bytejit.autograd.leaf_order import Heap, arranged


class Tied(nn.Module):
    """A parameter that is used in several places: its gradient is complete when the last of them has run."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.g, self.e = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.b(self.a(x) * self.g).tanh()) * self.e + self.g


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 3), nn.Bilinear(8, 8, 2)

    def forward(self, x: torch.Tensor) -> tuple:
        h = self.norm(x)
        return self.one(h).sum(), self.two(h, x).sum()


MODELS = {
    "layers": lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 6, bias=False), nn.Linear(6, 2)),
    "tied": Tied,
    "heads": Heads,
    "lstm": lambda: nn.LSTM(8, 4, 2),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
}


def seen(model: nn.Module, call: Callable, needs_grad: bool) -> list[str]:
    """The names of the parameters in the order in which their hooks run."""
    found: list[str] = []
    hooks = []
    for name, p in model.named_parameters():
        hooks.append(p.register_post_accumulate_grad_hook(lambda p, name=name: found.append(name)))
        hooks.append(p.register_hook(lambda g, name=name: found.append("of " + name)))
    out = call(torch.linspace(-1, 1, 240).reshape(5, 6, 8).requires_grad_(needs_grad))
    sum(t.sum() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor)).backward()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("name", MODELS)
def test_hooks_run_in_order(name: str, needs_grad: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    compiled = bytejit.compile(model, backend="aot_eager")
    assert seen(model, compiled, needs_grad) == seen(model, model, needs_grad)


def test_arranged() -> None:
    """Equals leave a heap in an order of its own; who is no leaf, after them."""
    heap = Heap()
    for k in range(6):
        heap.push(k % 2, k)
    assert sorted([heap.pop() for _ in range(3)]) == [1, 3, 5] and sorted([heap.pop() for _ in range(3)]) == [0, 2, 4]
    for n in range(1, 12):
        found = arranged(range(n), [i for i in range(n) if i % 3])
        assert sorted(found) == list(range(n))
        heap = Heap()
        for i in found:
            heap.push(i % 3 > 0, i)
        assert [heap.pop() for _ in range(n)][: n - (n + 2) // 3] == [i for i in range(n) if i % 3]
