"""sizes that only the run knows, under nopython"""

import math

import pytest
import torch
from torch import nn

import bytejit

from . import targets


def masked(x):
    y = torch.zeros_like(x)
    y[x > 0] = x[x > 0] * 2
    rows = x.sum(1) > 0
    y[rows, :] += x[rows, :]
    return y, x[rows, 1:], x.masked_select(rows[:, None]), x[x < 0].sum()


def places(x):
    k = torch.nonzero(x > 0)
    a, b = torch.where(x > 0.5)
    return k, x[tuple(k.t())], k.shape[0], x.new_zeros(k.shape[0] + 2), x[a, b], torch.argwhere(x < 0), k.shape


def items(x):
    n = (x > 0).sum().item()
    counts = (x > 0).sum(1).tolist()
    return x * n, torch.arange(n), torch.full((n, 2), 3.0), counts, [p.sum() for p in x[x > 0].split(counts)], sum(counts)


def lengths(x):
    kinds, counts = (x * 2).round().unique(return_counts=True)
    times = (x[0] > 0).long() + 1
    return (
        kinds,
        counts.sum(),
        torch.repeat_interleave(times),
        torch.repeat_interleave(x, times, dim=1),
        torch.bincount(times),
        torch.unique_consecutive(times),
    )


def padded(x):
    parts = [row[row > 0] for row in x]
    most, least = max(p.shape[0] for p in parts), min(parts[0].shape[0], 9)
    out = torch.zeros(len(parts), most)
    for i, p in enumerate(parts):
        out[i, : p.shape[0]] = p
    return out, most, least


def floats(x):
    s = x.abs().sum().item() + 1
    y = x / s
    picked = x.add(x, alpha=s), torch.tensor([s, 1.0]), nn.functional.pad(x, (1, 1), value=s), torch.where(x > s, x, s)
    return (
        *picked,
        y.clamp(max=s),
        s,
        [float(x[0, 0]) * 2, {"k": -s}],
        torch.full((2,), s),
        type(s) is float,
        math.sqrt(s),
        int(y.abs().sum() * 10),
        y[0].tolist(),
    )


def after_writes(x):
    y = x.t()
    y.add_(1)
    picked = x[x > 1]
    x.mul_(2)
    return picked, y[y > 2], torch.rand(3)


def inputs() -> list[torch.Tensor]:
    made = [torch.randn(4, 5, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    return [*made, torch.zeros(4, 5), torch.full((4, 5), -1.0), torch.ones(4, 5)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("f", [masked, places, items, lengths, padded, floats, after_writes])
def test_one_graph(f, backend):
    """One graph for all inputs, or the original code where what the graph relied on does not hold; random numbers agree"""
    targets.reset()
    whole = bytejit.compile(f, backend=backend, fullgraph=True)
    for x in inputs():
        theirs, ours = x.clone(), x.clone()
        torch.manual_seed(0)
        want = f(theirs)
        torch.manual_seed(0)
        torch.testing.assert_close(whole(ours), want, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert torch.equal(theirs, ours)
    assert sum(bytejit.counters["graphs"].values()) == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients(backend):
    """Gradients flow through what a mask picks"""

    def f(x, w):
        y = x @ w
        return y[y > 0].sum() + y.masked_select(x > 0).square().sum()

    targets.reset()
    whole = bytejit.compile(f, backend=backend, fullgraph=True)
    w = torch.eye(5).requires_grad_()
    for x in inputs()[:3]:
        grads = [torch.autograd.grad(g(x, w), w)[0] for g in (f, whole)]
        torch.testing.assert_close(grads[1], grads[0])


def test_where_it_breaks_otherwise():
    """Without nopython the same breaks the graph, as before"""
    targets.reset()
    counter = targets.Counter("eager")
    plain = targets.compiled(masked, counter)
    x = inputs()[0]
    torch.testing.assert_close(plain(x), masked(x))
    assert counter.count > 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x if x[x > 0].shape[0] > 3 else -x,
        lambda x: {len(x[x > 0]): x},
        lambda x: [x * i for i in range((x > 0).sum().item())],
        lambda x: x if x.sum() > 0 else -x,
    ],
)
def test_what_decides_is_refused(f):
    """A measured number that decides a branch, a key or a loop is no part of a graph"""
    targets.reset()
    with pytest.raises(targets.unsupported()):
        bytejit.compile(f, backend="eager", fullgraph=True)(inputs()[0])


def test_what_does_not_hold_runs_as_it_is():
    """The graph raises where the sizes that it measured do not fit; the call is the original's, errors too"""

    def f(x, y):
        return x[x > 0] + y

    targets.reset()
    whole = bytejit.compile(f, backend="eager", fullgraph=True)
    x = torch.tensor([1.0, -1.0, 2.0])
    torch.testing.assert_close(whole(x, torch.ones(2)), f(x, torch.ones(2)))
    torch.testing.assert_close(whole(-x, torch.ones(2)), f(-x, torch.ones(2)))  # one element: it is broadcast
    with pytest.raises(RuntimeError, match="must match the size"):
        whole(x.abs(), torch.ones(2))
    assert any("NotAsTraced" in k for k in bytejit.counters["fallbacks"])


def test_long_work_is_no_break(monkeypatch):
    """Many instructions between two operations (a configuration is read over and over): under nopython they are traced"""
    from bytejit.tracer.core import limits

    monkeypatch.setattr(limits, "LONG_WORK", 100)

    def f(x):
        return x * sum(i % 3 for i in range(100))

    targets.reset()
    whole = bytejit.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(inputs()[0]), f(inputs()[0]))
