"""Arrays of NumPy's without elements: as tensors they have no memory, and strides of 0, so that a load looks the same at each
point. No kernel may read it outside of the loop that never runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bytejit

pytestmark = pytest.mark.cxx

CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "sum": (lambda x: (x * 2).sum(), (0,)),
    "sum of none": (lambda x: (x * 2).sum(1), (3, 0)),
    "none of sums": (lambda x: (x * 2).sum(1) + 1, (0, 3)),
    "mean": (lambda x: x.exp().mean(), (0,)),
    "prod": (lambda x: (x + 1).prod(1), (3, 0)),
    "softmax": (lambda x: x.softmax(-1) * 2, (3, 0)),
    "cumsum": (lambda x: x.cumsum(0) + 1, (0,)),
    "outer": (lambda x: x[:, None] * x[None, :], (0,)),
    "norm": (lambda x: F.layer_norm(x, x.shape[-1:]) + 1, (0, 4)),
}
TABLE = torch.arange(12.0).reshape(4, 3)
INDEXED: dict[str, Callable] = {
    "rows": lambda w, i: w[i] * 2,
    "sums of rows": lambda w, i: (w[i] * 2).sum(0),
    "embedding": lambda w, i: F.embedding(i, w).sum(0) + 1,
    "added": lambda w, i: w.index_add(0, i, w[i] * 2),
    "scattered": lambda w, i: w.index_put((i,), w[i].exp(), accumulate=True),
    "taken": lambda w, i: w.take(i) + 1,
}


def alike(f: Callable, *args: torch.Tensor) -> None:
    want, got = f(*args), bytejit.compile(f)(*args)
    torch.testing.assert_close(got, want, equal_nan=True)
    for out in (want, got):
        out.sum().backward()


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    f, shape = CASES[name]
    alike(f, torch.from_numpy(np.zeros(shape, dtype=np.float32)).requires_grad_())


@pytest.mark.parametrize("name", INDEXED)
def test_as_indices(name: str) -> None:
    alike(INDEXED[name], TABLE.clone().requires_grad_(), torch.from_numpy(np.zeros(0, dtype=np.int64)))
