"""Several results, each with a backward pass of its own: which passes raise, what they compute, and what stays in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bytejit
from bytejit.autograd.runtime import BackwardPass
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


# ---- passes for some inputs ------------------------------------------------------------------------------------------------
def sum_of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.exp() + w.sin()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.exp() * w.sin()


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + (x @ w).tanh()


def two_heads(x: torch.Tensor, w: torch.Tensor) -> tuple:
    return x.exp() + w.sin(), w.cos() - x


def quotient(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """The gradient of `w` is computed from the result, which eager does not save."""
    return x / w.exp(), x.sinh()


FOR_INPUTS = (sum_of_two, product, residual, two_heads, quotient, disjoint, shared_plain, chain, linear, views)


def steps_of(f: Callable, steps: tuple) -> tuple:
    """Passes, each (results, inputs, retain_graph, whether by `backward`), and writes: of an input by its number, of a result by
    its number less 10. Returns: gradients, and the text of the error that ends it."""
    torch.manual_seed(0)
    given = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    outs, found, error = f(*given), [], ""
    outs = (outs,) if isinstance(outs, torch.Tensor) else outs
    try:
        for step in steps:
            if isinstance(step, int):
                with torch.no_grad():
                    (given[step] if step >= 0 else outs[(step + 10) % len(outs)].detach()).mul_(1.5)
                continue
            results, inputs, retain, backward = step
            sums, wanted = [outs[k % len(outs)].sum() for k in results], [given[i] for i in inputs]
            if not backward:
                found += torch.autograd.grad(sums, wanted, retain_graph=retain, allow_unused=True)
                continue
            torch.autograd.backward(sums, retain_graph=retain, inputs=wanted)
            found += [t if t is None else t.clone() for t in (given[0].grad, given[1].grad)]
    except RuntimeError as e:
        error = str(e).partition("[")[0]
    return found, error


@pytest.mark.parametrize("f", FOR_INPUTS)
def test_passes_for_inputs(f: Callable) -> None:
    """A pass for some inputs frees what is on its way, and compares the versions of that only."""
    compiled = bytejit.compile(f, fullgraph=True)
    passes = [(r, i, retain, False) for r in ((0,), (1,), (0, 1)) for i in ((0,), (1,), (0, 1)) for retain in (False, True)]
    programs = [pair for pair in itertools.product(passes, passes) if not pair[1][2]]
    programs += [(write, p) for write in (0, 1, -10, -9) for p in passes if not p[2]]
    programs += [(a, write, b) for write in (0, -10) for a, b in itertools.product(passes[:6], passes[:6])]
    programs += [((r, i, False, True), (r, j, False, True)) for r in ((0,), (0, 1)) for i, j in (((0,), (1,)), ((1,), (1,)))]
    for steps in programs:
        (want, error), (got, said) = steps_of(f, steps), steps_of(compiled, steps)
        assert said == error, (steps, said, error)
        torch.testing.assert_close(got, want, msg=lambda m: f"{steps}: {m}")


def test_what_is_left_for_an_input() -> None:
    """After a pass for one input what the other needs is held, and no more."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ x).exp() + (w @ w).tanh()

    x, w = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    y = bytejit.compile(program, fullgraph=True)(x, w)
    node = y.grad_fn
    torch.autograd.grad(y.sum(), x)
    assert len([t for t in node.held.values.values() if t is not x and t is not w]) == 1, node.held.values
    torch.autograd.grad(y.sum(), w)
    assert node.held is None and node.others is None


def two_parts(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """The last result is computed from the first: of the part behind both, one input leads to one leaf."""
    h = x.exp()
    return h, w * 2, h.exp()


def two_parts_of_plain(x: torch.Tensor, w: torch.Tensor) -> tuple:
    a, b = x.sin(), w * 2
    return b.sin(), b, a.detach() * 1.0


@pytest.mark.parametrize("f", (two_parts, two_parts_of_plain))
def test_passes_beside_the_way(f: Callable) -> None:
    """A node that torch runs because the node before it leads to the input by another result: nothing of it is freed."""
    compiled = bytejit.compile(f)
    passes = [(r, i, False, back) for r in ((0,), (1,), (0, 1), (2, 1)) for i in ((0,), (1,)) for back in (False, True)]
    for steps in itertools.product(passes, passes):
        if f is two_parts_of_plain and any(2 in r for r, *_ in steps):
            continue  # that result has no gradient
        (want, error), (got, said) = steps_of(f, steps), steps_of(compiled, steps)
        assert said == error, (steps, said, error)
        torch.testing.assert_close(got, want, msg=lambda m: f"{steps}: {m}")


def test_written_beside_a_result() -> None:
    """What is saved is the result itself, and what the pass does not come to was written."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.exp() * w.sin()).sigmoid()

    for steps in ((1, ((0,), (0,), False, False)), (1, ((0,), (1,), False, False)), (-10, ((0,), (0,), False, False))):
        want, got = steps_of(program, steps), steps_of(bytejit.compile(program, fullgraph=True), steps)
        assert want[1] == got[1], (steps, want, got)
        torch.testing.assert_close(got[0], want[0])


def test_only_what_is_asked_for() -> None:
    """The backward graph of a pass for the input makes no gradients of the weights; where the whole graph is there already, it is
    compiled for the second such pass."""

    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((x @ w).tanh() @ v).sin().sigmoid().sum()  # of more operations than are timed through torch, in both passes

    def products(back: BackwardPass) -> int:
        return len([at for at in back.places if at is not None])

    given = [torch.randn(3, 3).requires_grad_() for _ in range(3)]
    for before in (0, 1):
        y = bytejit.compile(program, fullgraph=True)(*given)
        node = y.grad_fn.program
        for _ in range(before):
            torch.autograd.grad(y, given, retain_graph=True)
        for n in range(2):
            got = torch.autograd.grad(y, given[0], retain_graph=n == 0)
            torch.testing.assert_close(got, torch.autograd.grad(program(*given), given[0]))
            assert sorted(map(products, node.made.values())) == ([1] if not before else [3] if n == 0 else [1, 3])
        bytejit.reset()


# ---- passes within a region --------------------------------------------------------------------------------------------------
def one_part(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = x.exp() + w.sin()
    return y, torch.autograd.grad(y.sum(), x)[0]


def both_parts(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = x.exp() + w.sin()
    return y, torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(y.sum(), w)[0]


def refused(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = x.exp() * w.sin()
    return y, torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(y.sum(), w)[0]


def by_backward(x: torch.Tensor, w: torch.Tensor) -> tuple:
    h = x.exp()
    h.sum().backward()
    return h * 2 + w.sin(), h


def for_one_input(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = x.exp() + w.sin()
    y.sum().backward(inputs=[x])
    return y, x * w


def of_two(x: torch.Tensor, w: torch.Tensor) -> tuple:
    a, b = x.exp(), w.sin()
    return a, b, a + b, torch.autograd.grad(a.sum(), x)[0]


def after(f: Callable, k: int, inputs: tuple) -> tuple:
    """The results, what a pass from result `k` for some inputs then gives, and whether one was refused."""
    given = torch.ones(3, 3).requires_grad_(), torch.full((3, 3), 2.0).requires_grad_()
    found: list = []
    try:
        outs = f(*given)
        found += [[t.detach() for t in outs], [None if t.grad is None else t.grad.clone() for t in given]]
        found += torch.autograd.grad(outs[k].sum(), [given[i] for i in inputs], allow_unused=True)
    except RuntimeError as e:
        return found, "a second time" in str(e)
    return found, False


@pytest.mark.parametrize("f", (one_part, both_parts, refused, by_backward, for_one_input, of_two))
def test_passes_within(f: Callable) -> None:
    """The region returns a tensor of whose history its own pass has freed a part: what is left goes backward."""
    compiled = bytejit.compile(f)
    for k, inputs in itertools.product((0, 1), ((0,), (1,), (0, 1))):
        (want, error), (got, said) = after(f, k, inputs), after(compiled, k, inputs)
        if error and want and not said:  # all of its history is freed: it has none that leads to an input
            assert got[2:] == [None] * len(inputs)
            continue
        assert said == error, (k, inputs)
        torch.testing.assert_close(got, want, msg=lambda m: f"result {k}, inputs {inputs}: {m}")


def test_refused_after_a_pass() -> None:
    """A second pass that comes to what was written: eager's error, whatever it went through before."""

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        loss = (x @ w.t()).log_softmax(1).exp().sum()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)
        loss.backward()

    for f in (step, bytejit.compile(step)):
        x, w = torch.ones(3, 3).requires_grad_(), torch.ones(2, 3).requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            f(x, w)
        assert w._version == 1 and w.grad is not None
