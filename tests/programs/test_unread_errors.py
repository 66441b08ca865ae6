"""What nothing reads raises as in eager: calls that torch's kernels refuse for their values, whose results are dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

X = torch.arange(20.0).view(4, 5)
FAR, NONE = torch.tensor([9]), torch.zeros(1, dtype=torch.long)
UNREAD: dict[str, Callable] = {
    "index": lambda x: x[FAR],
    "embedding": lambda x: F.embedding(FAR, x),
    "embedding_bag": lambda x: F.embedding_bag(FAR[None], x),
    "gather": lambda x: x.gather(0, FAR.view(1, 1)),
    "index_select": lambda x: x.index_select(0, FAR),
    "take": lambda x: x.take(FAR * 100),
    "scatter": lambda x: x.scatter(0, FAR.view(1, 1), 1.0),
    "index_add": lambda x: x.index_add(0, FAR, x[:1]),
    "index_put": lambda x: x.index_put((FAR,), x[0]),
    "index_copy": lambda x: x.index_copy(0, FAR, x[:1]),
    "put": lambda x: x.put(FAR * 100, x[0, :1]),
    "nll_loss": lambda x: F.nll_loss(x, FAR.expand(4)),
    "cross_entropy": lambda x: F.cross_entropy(x, FAR.expand(4)),
    "one_hot": lambda x: F.one_hot(FAR, 3),
    "bincount": lambda x: torch.bincount(-FAR),
    "multinomial": lambda x: torch.multinomial(-x, 2),
    "bernoulli": lambda x: torch.bernoulli(x),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(-FAR.expand(4), 0),
    "max_unpool1d": lambda x: F.max_unpool1d(x[None], torch.full((1, 4, 5), 99), 2),
    "ctc_loss": lambda x: F.ctc_loss(x.view(4, 1, 5), torch.tensor([[7]]), torch.tensor([4]), torch.tensor([1])),
    "cholesky": lambda x: torch.linalg.cholesky(-x[:4, :4]),
    "inv": lambda x: torch.linalg.inv(x[:4, :4] * 0),
    "solve": lambda x: torch.linalg.solve(x[:4, :4] * 0, x),
    "eigh": lambda x: torch.linalg.eigh(x[:4, :4] * float("nan")),
    "integers by 0": lambda x: FAR // NONE,
    "remainder by 0": lambda x: FAR % NONE,
    "an integer to -1": lambda x: FAR**-1,
    "bools to -1": lambda x: (FAR > 1) ** -1,
}


def outcome(f: Callable) -> object:
    try:
        return f(X)
    except Exception as e:
        return type(e)


@pytest.mark.parametrize("name", UNREAD)
def test_results_that_are_dropped(name: str) -> None:
    """The error of a call whose result is dropped, or its absence"""

    def f(x: torch.Tensor) -> torch.Tensor:
        UNREAD[name](x)
        return x + 1

    want, got = outcome(f), outcome(bytejit.compile(f))
    assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got is want
