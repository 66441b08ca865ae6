"""What is scattered into zeros and then added goes into the other addend at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten

import bytejit
from bytejit.codegen.aten.scattered_sums import scatter_into_addends

WORDS, AT = 50, torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(1))
AT[0], AT[1, :8] = 3, 0


def tied(padding: int | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss of a weight that is both an embedding and the last layer."""
    return lambda w, at: F.cross_entropy((F.embedding(at, w, padding).tanh() @ w.t()).flatten(0, 1), at.flatten())


LOSSES = {
    "tied": tied(None),
    "padding": tied(0),
    "rows": lambda w, at: (w[at] ** 2).sum() + (w.sin() * w).sum() + w.index_select(0, at[0]).cos().sum(),
    "gather": lambda w, at: w.gather(0, at[:, :8]).exp().sum() + (w.cos() @ w.t()).sum(),
}


@pytest.mark.parametrize("sizes", [(4,), (4, 3, 2)], ids=["one size", "several sizes"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_as_near_to_float64_as_those_of_eager(name: str, sizes: tuple[int, ...]) -> None:
    def step(w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        loss = LOSSES[name](w, at)
        loss.backward()
        return loss.detach()

    start = torch.randn(WORDS, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for call, dtype in ((step, torch.float64), (step, torch.float32), (bytejit.compile(step, fullgraph=True), torch.float32)):
        w = start.clone().to(dtype).requires_grad_()
        for n in (*sizes, sizes[-1]):  # the second time into a gradient that is there
            call(w, AT[:n])
        found.append(w.grad.double())
    eager, ours = ((g - found[0]).abs().max() for g in found[1:])
    assert ours <= 2 * eager + 1e-7
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"]


def changed(fn: Callable, *xs: torch.Tensor) -> tuple[list[str], bool]:
    """The calls of a graph after the pass, and whether it computes what it did."""
    graph = aten(fn, *xs)
    scatter_into_addends(graph.graph)
    graph.graph.lint()
    made = torch.fx.Interpreter(torch.fx.GraphModule({}, graph.graph)).run(*xs)[0]
    return [n.name for n in graph.graph.nodes if n.op == "call_function"], torch.allclose(made, fn(*xs))


def scattered(g: torch.Tensor, at: torch.Tensor, padding: int = -1, by_frequency: bool = False) -> torch.Tensor:
    """The gradient of an embedding."""
    return torch.ops.aten.embedding_dense_backward(g, at, WORDS, padding, by_frequency)


def test_the_zeros_go() -> None:
    g, a, at = torch.randn(4, 16, 8), torch.randn(WORDS, 8), AT
    for padding in (-1, 3):
        names, same = changed(lambda g, a, at, p=padding: a.sin() + scattered(g, at, p), g, a, at)
        assert same and "index_put" in names[-1] and not any("embedding" in n for n in names)


def test_others_stay() -> None:
    g, a, at = torch.randn(4, 16, 8), torch.randn(WORDS, 8), AT
    for fn in (
        lambda g, a, at: (lambda e: (a + e) * e)(scattered(g, at)),  # read twice
        lambda g, a, at: torch.add(a, scattered(g, at), alpha=2),
        lambda g, a, at: a[:1] + scattered(g, at),  # another shape
        lambda g, a, at: a + scattered(g, at, by_frequency=True),
        lambda g, a, at: a.half() + scattered(g.half(), at),  # added up in single precision
    ):
        names, same = changed(fn, g, a, at)
        assert same and any("embedding" in n for n in names)
