"""Several results, each with a backward pass of its own: which passes raise, what they compute, and what stays in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bytejit
from tests.programs.test_autograd import Square


def disjoint(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return (x * w[0]).exp(), (x * w[1]).sin()


def shared_saving(x: torch.Tensor, w: torch.Tensor) -> tuple:
    h = (x * w).exp()
    return h.sum(0), h + 1


def shared_plain(x: torch.Tensor, w: torch.Tensor) -> tuple:
    h = x + w
    return h.exp(), h.sin(), h - 1


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """The first shares a node with the second, the second one with the third."""
    a, b = x.exp(), w.sin()
    return a.sum(0), a + b, b.mean()


def linear(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return x + w, x.view(-1).sum(), (w - 1).t()


def some_plain(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return (x.exp() * w).sum(), x + 1


def views(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = x.exp()
    return y[0], y[1], w.tanh()


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False), (w * 2).cos()


def heads(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return tuple((x @ w[:, k : k + 1]).relu() for k in range(3))


def function(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return Square.apply(x), w.exp()


def dependent(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """Two parts: the pass from the first result runs through the node of the second one, with nothing for it."""
    h = (x * w).exp()
    return x + 1, (h + 0).t(), h


PROGRAMS = (disjoint, shared_saving, shared_plain, chain, linear, some_plain, views, checkpointed, heads, function, dependent)


def passes(f: Callable, order: tuple, retain: int) -> list:
    """Backward passes one by one, the first `retain` with retain_graph. Returns: gradients, or whether that error came."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    outs, found = f(x, w), []
    for n, k in enumerate(order):
        try:
            torch.autograd.backward([outs[i].sum() for i in k], retain_graph=n < retain)
            found += [t if t is None else t.clone() for t in (x.grad, w.grad)]
        except RuntimeError as e:
            found.append("a second time" in str(e))
            break  # what a failed pass has added before it failed is nobody's business
    return found


@pytest.mark.parametrize("f", PROGRAMS)
def test_passes(f: Callable) -> None:
    """Every order of single results, of a result and all, of the same result twice; with and without retain_graph."""
    compiled = bytejit.compile(f, fullgraph=True)
    every = range(len(f(torch.ones(3, 3), torch.ones(3, 3))))
    orders = [tuple((k,) for k in p) for p in itertools.permutations(every)]
    orders += [o for k in every for o in (((k,), (k,)), ((k,), tuple(every)), (tuple(every), (k,)))]
    orders.append((tuple(every[:2]), tuple(every[2:])) if len(every) > 2 else (tuple(every),))
    for order, retain in itertools.product(orders, (0, 1)):
        want, got = passes(f, order, retain), passes(compiled, order, retain)
        torch.testing.assert_close(got, want, msg=lambda m: f"{order}, retain {retain}: {m}")


def test_freed_as_early() -> None:
    """After its own pass nothing of a result's history is held; of another's, what it saved."""

    def products(x: torch.Tensor, w: torch.Tensor) -> tuple:
        return (x @ w).exp().sum(0), (w @ x).tanh().sum(0)

    x, w = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    first, second = bytejit.compile(products, fullgraph=True)(x, w)
    node = first.grad_fn
    assert len([t for t in node.saved_tensors if t is not x and t is not w]) == 2
    first.sum().backward()
    assert len([t for t in node.held.values.values() if t is not x and t is not w]) == 1, node.held.values
    second.sum().backward()
    assert node.held is None and node.others is None

    first, second = bytejit.compile(shared_saving, fullgraph=True)(x, w)
    first.sum().backward()  # the other cannot go backward any more
    assert first.grad_fn.held is None and first.grad_fn.others is None


def test_written_between() -> None:
    """What only the second pass reads was written before the first: the first works, the second raises as eager does."""
    for when in (0, 1):
        for f in (disjoint, bytejit.compile(disjoint, fullgraph=True)):
            x, w = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
            first, second = f(x, w)
            if not when:
                first.detach().zero_()  # exp saves its result
            second.sum().backward()
            if when:
                first.detach().zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                first.sum().backward()


def test_differentiated_afterwards() -> None:
    """The second pass is differentiated again."""
    found = []
    for f in (disjoint, bytejit.compile(disjoint)):
        x, w = torch.ones(3, 3).requires_grad_(), torch.ones(3, 3).requires_grad_()
        first, second = f(x, w)
        first.sum().backward()
        (g,) = torch.autograd.grad(second.sum(), x, create_graph=True)
        g.sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0])


def test_saved_on_the_cpu() -> None:
    """Hooks of torch's pack what is saved."""
    found = []
    for f in (disjoint, bytejit.compile(disjoint)):
        x, w = torch.ones(3, 3).requires_grad_(), torch.ones(3, 3).requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            first, second = f(x, w)
        first.sum().backward()
        second.sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0])
