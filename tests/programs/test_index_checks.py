"""Indices out of range are refused as in eager, also where the place in memory does not depend on them: dims of one element,
expanded dims, values that are computed where they are read."""

from __future__ import annotations

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
