"""Embeddings with sparse gradients in training: torch makes that step, what is before and behind it is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bytejit

from .beside import BACKENDS


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(20, 4, sparse=True), nn.Embedding(20, 4, padding_idx=0, sparse=True)
        self.bag = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")
        self.out = nn.Linear(4, 3)


PROGRAMS: dict[str, tuple[Callable, int]] = {  # the program, graphs that run through torch
    "one": (lambda m, i: m.out(m.words(i) * 2).sin(), 0),
    "two": (lambda m, i: m.out(m.words(i) * m.tags(i).sigmoid()), 0),
    "behind other work": (lambda m, i: m.out(m.words((i + 1) % 20).cos()) + m.tags((i * 2) % 20)[..., :3], 0),
    "a bag": (lambda m, i: m.out(m.bag(i)), 0),
    "with weights": (lambda m, i: m.out(m.bag(i, per_sample_weights=m.out.weight[0, 0].detach().expand(i.shape).exp())), 0),
    "tied": (lambda m, i: (m.words(i) @ m.words.weight.t()).sin(), 0),
    "not used": (lambda m, i: m.out(m.words(i).detach()), 0),
    "gathered": (lambda m, i: torch.gather(m.out.weight, 1, i[:3] % 4, sparse_grad=True).exp(), 0),
    "a weight that is made": (lambda m, i: F.embedding(i, m.words.weight * 2, sparse=True), 1),
}


def step(f: Callable, m: Words, i: torch.Tensor) -> list:
    m.zero_grad()
    out = f(m, i)
    out.square().mean().backward()
    torch.optim.SGD(m.parameters(), lr=0.1).step()
    return [out.detach(), *(p.grad for p in m.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps(name: str, backend: str) -> None:
    f, torch_runs = PROGRAMS[name]
    torch.manual_seed(0)
    bytejit.reset()
    bytejit.counters["fallbacks"].clear()
    compiled = bytejit.compile(f, backend=backend)
    mine = Words()
    plain = copy.deepcopy(mine)
    for n in (5, 5, 7, 8):
        i = torch.randint(0, 20, (n, 3))
        for a, b in zip(step(compiled, mine, i), step(f, plain, i)):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.layout is b.layout
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(mine.parameters(), plain.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    found = [k for k in bytejit.counters["fallbacks"] if "through torch" in k]
    assert len(found) == torch_runs, found
