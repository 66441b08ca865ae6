"""Indices out of range are refused as in eager, also where the place in memory does not depend on them: dims of one element,
expanded dims, values that are computed where they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bytejit

F = torch.nn.functional

# of x, five numbers, and i: an index tensor with a number that is out of range in each of them
READS = {
    "x[i]": lambda x, i: x[i],
    "one element": lambda x, i: x[:1][i],
    "a row alone": lambda x, i: x[None][i],
    "a column of matrices": lambda x, i: x[:, None].sin()[:, i],
    "index_select": lambda x, i: x[:1].index_select(0, i),
    "index_select of one column": lambda x, i: (x[:, None] + torch.zeros(5, 1)).index_select(1, i),
    "gather": lambda x, i: x[None].gather(0, i[:, None]),
    "take": lambda x, i: torch.take(x[:1].reshape(1, 1), i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x[:1], i, 0),
    "embedding": lambda x, i: F.embedding(i, x[None]),
    "expanded": lambda x, i: x[:1].expand(5)[i],
    "expanded sum": lambda x, i: x.sum().expand(5).clone()[i],
    "a constant": lambda x, i: torch.zeros(5)[i] + x[0],
    "a constant of one element": lambda x, i: torch.zeros(1)[i] + x[0],
    "a sum with a constant": lambda x, i: (x.sin()[:1] + torch.zeros(5))[i],
    "places": lambda x, i: torch.arange(5)[i],
    "one place": lambda x, i: torch.arange(1)[i],
    "nll_loss of one class": lambda x, i: F.nll_loss(x[None, :1].expand(i.numel(), 1), i),
    "cross entropy of one class": lambda x, i: F.cross_entropy(x[None, :1].expand(i.numel(), 1), i),
    "two indices": lambda x, i: x[None][i, i],
    "twice": lambda x, i: x[None][i][:, i],
    "in a reduction": lambda x, i: x[:1][i].sum(),
    "scatter": lambda x, i: x[:1].scatter(0, i, x),
    "scatter of a number": lambda x, i: x[:1].scatter(0, i, 2.0),
    "index_put": lambda x, i: x[:1].index_put((i,), x[0]),
    "index_fill": lambda x, i: x[:1].index_fill(0, i, 2.0),
    "index_put of no dims": lambda x, i: x[0].index_put((i,), x[1]),
    "index_copy": lambda x, i: x[:1].index_copy(0, i, x[:2]),
}


def outcome(f, x, i) -> object:
    try:
        return f(x, i)
    except Exception as e:
        return type(e)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READS)
def test_an_index_out_of_range_is_refused(name, dynamic):
    f, x = READS[name], torch.arange(5.0)
    c = bytejit.compile(f, dynamic=dynamic or None)
    for bad in (0, 5, -9, 2**62, 0):
        i = torch.tensor([0, bad])
        want, got = outcome(f, x, i), outcome(c, x.clone(), i)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got is want, (bad, got, want)


# of x, five numbers, and i: results that raise where a number of i is out of range
UNREAD = {
    **READS,
    "scatter_add": lambda x, i: x.scatter_add(0, i, x),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:2], "mean"),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, x, "sum"),
    "put": lambda x, i: torch.put(x, i, x[:2]),
    "one_hot": lambda x, i: F.one_hot(i, 5),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x[:, None]),
    "written and thrown away": lambda x, i: x.clone().index_fill_(0, i, 0.0),
    "a whole number divided": lambda x, i: torch.arange(2) // (i + 1).clamp(-1, 0),
    "a remainder": lambda x, i: torch.arange(2) % (i + 1).clamp(-1, 0),
    "a loss of numbers that are no chances": lambda x, i: F.binary_cross_entropy(x, x.clone()),
    "drawn without weights": lambda x, i: torch.multinomial(-x, 2),
    "a matrix that is not positive": lambda x, i: torch.linalg.cholesky(-torch.eye(2) * x[1]),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", UNREAD)
def test_what_nobody_reads_is_refused_too(name, grad):
    """A result that is dropped, or of which only the shape is asked for"""
    made = UNREAD[name]

    def f(x, i):
        y = made(x, i)
        return x + 1 if y.dim() > 9 else x * 2

    x = torch.arange(5.0).requires_grad_(grad)
    for bad in (-(2**62), 1):
        bytejit.reset()
        i = torch.tensor([0, bad])
        want, got = outcome(f, x, i), outcome(bytejit.compile(f), x, i)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got is want, (bad, got, want)


# of rows x[i]: what is read of them, or only of some
PARTS = {
    "the first": lambda y: y[0] + 1,
    "two": lambda y: y[:2].sin(),
    "none": lambda y: y[:0] + 1,
    "a column": lambda y: y[:, 0] + 1,
    "the first of a sum": lambda y: y.sum(1)[:1] + 1,
    "the first of a softmax": lambda y: y.softmax(1)[:1] * 2,
    "the diagonal": lambda y: y.diagonal() * 2,
    "cut": lambda y: F.pad(y * 2, (0, 0, 0, -2)) + 1,
    "part of a concatenation": lambda y: torch.cat([y * 2, y * 3])[5:] + 1,
    "rows at places": lambda y: y.sin()[torch.arange(2)] + 1,
    "repeated": lambda y: y[:2].repeat(2, 1) * 2,
    "a part and then all": lambda y: y.sin()[0] + y.sum(),
    "every second": lambda y: y[::2] + 1,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_what_was_refused(name, dynamic):
    """A bad index is seen where only other rows are read"""
    part, x = PARTS[name], torch.rand(6, 4)
    c = bytejit.compile(lambda x, i: part(x[i]), dynamic=dynamic or None)
    for k in range(4):
        good = torch.tensor([3, 2, 1, 0])
        torch.testing.assert_close(c(x, good), part(x[good]))
        bad = good.clone()
        bad[k] = 6
        with pytest.raises(IndexError):
            c(x, bad)


def test_questions_of_torchs_own_code_are_no_results():
    """torch's formulas ask `is_same_size`, a bool that nobody reads: no call of the graph that stays"""

    def loss(w, x):
        return ((w * x).sin() ** 2).sum()

    def f(w, x):
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x), torch.func.jvp(torch.exp, (w,), (x[0],))

    w, x = torch.rand(3), torch.rand(4, 3)
    torch.testing.assert_close(bytejit.compile(f, fullgraph=True)(w, x), f(w, x))
    assert not bytejit.counters["faults"]


BY_METHOD = {
    "a list of bools": lambda x, v: x.__getitem__([True, False, True, False, True]) * 2,
    "a slice": lambda x, v: torch.Tensor.__getitem__(x, slice(1, 4)) + v[1:4],
    "a place written": lambda x, v: x.clone().__setitem__(0, 0.5) or x * v,
    "a NumPy number, which eager refuses": lambda x, v: x.__setitem__(0, np.float32(0.5)) or x * v,
    "a NumPy number of float64, which it takes": lambda x, v: x.__setitem__(0, np.float64(0.5)) or x * v,
}


@pytest.mark.parametrize("name", BY_METHOD)
def test_an_index_by_method_is_an_index(name):
    """`x.__setitem__(i, v)` is what `x[i] = v` is: what is refused, and what stays in the graph"""
    fn, x, y = BY_METHOD[name], torch.randn(5), torch.ones(5)
    refused = name.endswith("refuses")
    compiled = bytejit.compile(fn, backend="eager", fullgraph=not refused)
    for n in (2.0, 3.0):
        mine, eagers = x.clone(), x.clone()
        want, got = outcome(fn, eagers, y * n), outcome(compiled, mine, y * n)
        assert type(got) is type(want) and torch.equal(mine, eagers)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else refused
