"""torch.cond is a node of the graph: both branches are in it, whichever the first call takes."""

from __future__ import annotations

import gc
import linecache
from unittest import mock

import pytest
import torch
import torch.utils.checkpoint

import bytejit

X = torch.arange(1.0, 4.0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.a(y).relu(), lambda y: self.b(y), (x,)) * 2


def plain(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), torch.cos, (x,))


def containers(x):
    def yes(a, b):
        return {"o": a + b, "p": [a * 2, 3]}

    def no(a, b):
        return {"o": a - b, "p": [a * 5, 3]}

    r = torch.cond(x.max() > 0, yes, no, (x, x + 1))
    return r["o"] + r["p"][0] * r["p"][1]


def nested(x):
    def inner(y):
        return torch.cond(y.sum() > 9, lambda z: z + 1, lambda z: z + 2, (y,))

    return torch.cond(x.sum() > 0, inner, lambda y: y - 3, (x,))


def wanted(f, x):
    """What f gives, with torch.cond as the `if` that it stands for: torch's own compiles its branches."""
    with mock.patch.object(torch, "cond", lambda p, a, b, operands=(): a(*operands) if p else b(*operands)):
        return f(x)


@pytest.mark.parametrize("f", [plain, containers, nested, Net()])
def test_both_branches(f):
    for backend in ("eager", "aot_eager", lambda gm, a: gm.forward):
        c = bytejit.compile(f, backend=backend, fullgraph=True)
        for x in (X, -X, X * 4):
            torch.testing.assert_close(c(x), wanted(f, x))
    gm, _ = bytejit.export(f, X)
    assert torch.ops.higher_order.cond in [n.target for n in gm.graph.nodes]
    for x in (X, -X, X * 4):
        torch.testing.assert_close(gm(x), wanted(f, x))


@pytest.mark.cxx
def test_training_through_a_branch():
    """torch's own gives zeros to what only the other branch reads, where an `if` gives no gradient."""
    net = Net()
    c = bytejit.compile(net, fullgraph=True)
    for x in (X, -X):
        grads = []
        for run in (c, lambda x: wanted(net, x)):
            net.zero_grad()
            run(x).sum().backward()
            grads.append([p.grad for p in net.parameters()])
        assert all(torch.allclose(a, torch.zeros_like(a) if b is None else b) for a, b in zip(*grads))


def test_what_is_no_tensor_decides_at_once_and_is_guarded():
    def f(x, flag):
        return torch.cond(flag, lambda y: y + 1, lambda y: y - 1, (x,))

    c = bytejit.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(c(X, True), X + 1) and torch.equal(c(X, False), X - 1)


def test_sizes_may_be_symbolic():
    c = bytejit.compile(plain, backend="eager", dynamic=True, fullgraph=True)
    for n in (3, 5, 9):
        x = torch.ones(n)
        assert torch.equal(c(x), x.sin()) and torch.equal(c(-x), (-x).cos())
    assert bytejit.counters.total("graphs") == 1


@pytest.mark.parametrize(
    "branches",
    [
        (lambda y: y.sin(), lambda y: y[:1]),
        (lambda y: y, lambda y: y.cos()),
        (lambda y: y.add_(1), lambda y: y.cos()),
        (lambda y: (y + 1, 2), lambda y: (y + 1, 3)),
        (lambda y: (y + 1,), lambda y: y + 1),
    ],
)
def test_branches_that_are_no_graph(branches):
    with pytest.raises(bytejit.exc.Unsupported, match=r"torch.cond"):
        bytejit.compile(lambda x: torch.cond(x.sum() > 0, *branches, (x,)), backend="eager", fullgraph=True)(X.clone())


def test_an_aten_graph_of_it_says_that_there_is_none():
    with pytest.raises(bytejit.exc.Unsupported, match=r"torch.cond"):
        bytejit.export(plain, X, aten_graph=True)


def test_the_text_of_graphs_within_graphs_is_forgotten_with_them():
    """torch.fx keeps the source of each graph for ever: that of branches, checkpoints and transforms goes with the graph."""

    def f(x):
        y = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
        return torch.func.vmap(torch.cos)(torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,)))

    x = X.clone().requires_grad_()
    before = {name for name in linecache.cache if "eval_with_key" in name}
    for _ in range(2):
        c = bytejit.compile(f, backend="eager")
        c(x)
        assert {name for name in linecache.cache if "eval_with_key" in name} != before
        del c
        bytejit.reset()
        gc.collect()
    assert {name for name in linecache.cache if "eval_with_key" in name} <= before
