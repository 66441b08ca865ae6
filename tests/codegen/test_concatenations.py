"""Concatenations that start alike, and their layouts between convolutions."""

from __future__ import annotations

import copy

import pytest
import torch
from graphs import aten
from torch import nn

import bytejit
from bytejit.codegen.aten.concatenations import share_concatenations


def growing(dim: int, *xs: torch.Tensor) -> list[torch.Tensor]:
    """The sum of all before, again and again."""
    return [torch.cat(xs[:n], dim).sin() for n in range(2, len(xs) + 1)]


@pytest.mark.parametrize("dim", (0, -1))
def test_a_later_one_is_an_earlier_one_and_the_rest(dim: int) -> None:
    xs = [torch.randn(3, 3) for _ in range(6)]
    graph = aten(lambda *xs: growing(dim, *xs), *xs)
    share_concatenations(graph.graph)
    graph.graph.lint()
    cats = [n for n in graph.graph.nodes if n.target is torch.ops.aten.cat.default]
    assert [len(n.args[0]) for n in cats] == [2, 3, 2, 2, 2]
    made = torch.fx.Interpreter(torch.fx.GraphModule({}, graph.graph)).run(*xs)
    assert all(torch.equal(a, b) for a, b in zip(made, growing(dim, *xs), strict=True))


def test_others_stay() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [a, b, a.double(), b]
        return torch.cat([a, b, a]), torch.cat([a, b, a, b], 1), torch.cat([b, b, a, a]), torch.cat(parts), torch.cat([*parts, a])

    graph = aten(fn, torch.randn(2, 2), torch.randn(2, 2))
    share_concatenations(graph.graph)
    cats = [n for n in graph.graph.nodes if n.target is torch.ops.aten.cat.default]
    assert sorted(len(n.args[0]) for n in cats)[:3] == [3, 4, 4]


class Dense(nn.Module):
    """Layers that each read all before them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, padding=1) for i in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for conv in self.convs:
            found.append(conv(torch.relu(torch.cat(found, 1))))
        return torch.cat(found, 1)


@pytest.mark.cxx
@pytest.mark.parametrize("form", (torch.contiguous_format, torch.channels_last))
def test_between_convolutions(form: torch.memory_format) -> None:
    net, x = Dense().eval(), torch.randn(2, 8, 12, 12).contiguous(memory_format=form)
    compiled = bytejit.compile(copy.deepcopy(net))
    with torch.no_grad():
        for _ in range(2):
            got, want = compiled(x), net(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
