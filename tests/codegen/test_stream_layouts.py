"""Sums that eager lays out as a convolution's result are laid out in rows where norms and products read them; what the program
sees keeps eager's strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.aten.rewrite import spec_or_none
from bytejit.codegen.libraries.linear_cuda import lay_rows
from bytejit.codegen.libraries.stream_layouts import lay_out_streams
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_like


class Encoder(nn.Module):
    """A convolution, then residual linears over its channels, as in encoders of speech. shown: the stream is returned, too."""

    def __init__(self, shown: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.shown = nn.Conv1d(5, 32, 3, padding=1), nn.LayerNorm(32), shown
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        x = F.gelu(self.conv(x)).permute(0, 2, 1) * 2
        for layer in self.layers:
            x = x + layer(self.norm(x))
        return (self.norm(x), x) if self.shown else self.norm(x)


class Mixer(Encoder):
    """Every second linear is over the places."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.ModuleList(nn.Linear(20, 20) for _ in range(3))

    def forward(self, x):
        x = self.conv(x).transpose(1, 2)
        for layer, places in zip(self.layers, self.places):
            x = x + places(self.norm(x).transpose(1, 2)).transpose(1, 2)
            x = x + layer(self.norm(x))
        return x.mean(1)


def softmax_over_places(x):
    """All that reads the sums walks along the places."""
    h = x.transpose(1, 2) + 1
    return (h + x.transpose(1, 2)).softmax(1) * 2


def flat(x):
    """A view of a sum needs its strides."""
    return (x.transpose(1, 2) + 1).transpose(1, 2).view(-1).cumsum(0) + F.layer_norm(x.transpose(1, 2) + 1, (5,)).sum()


VIEWS = {torch.ops.aten.permute.default, torch.ops.aten.transpose.int}
X = torch.randn(2, 5, 20)
PROGRAMS = {
    "encoder": (Encoder(), 4),
    "shown": (Encoder(shown=True), 0),
    "mixer": (Mixer(), 6),
    "softmax": (softmax_over_places, 0),
    "flat": (flat, 0),
}


def across(graph: torch.fx.Graph) -> set[str]:
    specs = {n.name: n.meta.get("spec") for n in graph.nodes if n.op == "call_function" and n.target not in VIEWS}
    return {name for name, s in specs.items() if hasattr(s, "shape") and len(s.shape) == 3 and s.stride[-1] != 1}


@pytest.mark.parametrize("name", PROGRAMS)
def test_which_values_move(name: str) -> None:
    program, moved = PROGRAMS[name]
    found = []

    def keep(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        graph = normalise(gm, [fake_like(x) for x in inputs]).graph
        before = across(graph)
        lay_out_streams(graph, None)
        found.append(before - across(graph))
        return gm

    with torch.no_grad():
        bytejit.compile(program, backend=keep, fullgraph=True)(X)
    assert len(found[0]) == moved


@pytest.mark.cxx
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_eager(name: str, learns: bool) -> None:
    program, _ = PROGRAMS[name]
    with torch.set_grad_enabled(learns):
        for got, expected in zip(*(r if isinstance(r, tuple) else (r,) for r in (bytejit.compile(program)(X), program(X)))):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            assert got.stride() == expected.stride()
            if got.requires_grad:
                weight = program.conv.weight
                a, b = (torch.autograd.grad(t.square().sum(), weight, retain_graph=True)[0] for t in (got, expected))
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def two_linears_of_columns(x, one):
    w = torch.ones(7, 20)
    h = x.transpose(1, 2)
    return F.linear(h.transpose(1, 2) + 1, w), F.linear(h.contiguous().transpose(1, 2), w), F.linear(one.transpose(1, 2), w)


def test_linears_on_a_gpu_read_rows() -> None:
    """What lies across is copied once for all linears; one matrix of columns is not. The GPU is pretended."""
    args = (torch.randn(3, 5, 20), torch.randn(1, 20, 5))
    graph = normalise(torch.fx.symbolic_trace(two_linears_of_columns), [fake_like(x) for x in args]).graph
    for node in graph.nodes:
        if (s := spec_or_none(node)) is not None:
            node.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    lay_rows(graph)
    linears = [n for n in graph.nodes if n.target is torch.ops.aten.linear.default]
    assert [n.args[0].target is torch.ops.aten.clone.default and n.args[0].meta["spec"].stride[-1] == 1 for n in linears] == [
        False,
        True,
        False,
    ]
