"""Tensors indexed by NumPy's arrays."""

from __future__ import annotations

import pytest
import torch

import bytejit

np = pytest.importorskip("numpy")

PLACES = np.array([2, 0, 1])
LOWER = np.tril_indices(4, -1)
INDICES = {
    "integers": PLACES,
    "of 32 bits": PLACES.astype(np.int32),
    "of 8 bits, negative": np.array([-1, -3], dtype=np.int8),
    "columns": (slice(None), PLACES),
    "pairs": LOWER,
    "two dims": (slice(None), np.array([[0, 1], [2, 3]])),
    "beside others": (0, ..., None, PLACES),
}
MASKS = {"mask": np.array([True, False, True, True]), "bytes": np.array([1, 0, 1, 0], dtype=np.uint8)}
OTHERS = {
    "no dims": np.array(2),
    "nothing": np.array([], dtype=np.int64),
    "floats": np.array([1.0, 0.0]),
    "out of bounds": np.array([9]),
}


def reads(x, i):
    return x[i] * 2


def writes(x, i):
    x = x.clone()
    x[i] = 0.5
    x[i] += 1
    return x


def changed(x):
    """torch keeps an index of int64 as it is, not a copy: without gradients nothing reads it later."""
    with torch.no_grad():
        at = np.arange(3)
        y = x[at]
        at[:] = 3
        y = y + x[at]
    return x.sum() + y


def both(f, *args):
    """What it returns or raises, with the gradient."""
    x = torch.arange(16.0).reshape(4, 4).requires_grad_()
    try:
        out = f(x, *args)
    except Exception as e:
        return [type(e).__name__]
    out.square().sum().backward()
    return [out.detach(), x.grad]


def alike(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("program", [reads, writes])
@pytest.mark.parametrize("name", [*INDICES, *MASKS, *OTHERS])
def test_given_or_from_outside(name, program):
    index = {**INDICES, **MASKS, **OTHERS}[name]
    whole = name in INDICES
    alike(both(bytejit.compile(program, fullgraph=whole), index), both(program, index))
    alike(both(bytejit.compile(lambda x: program(x, index), fullgraph=whole)), both(program, index))
    assert not whole or not bytejit.counters["breaks"]


def made(x):
    at = np.arange(3)
    y = x[at] + x[:, np.array([True, False, True, True])].t()
    return y[:, at[::-1].copy() % 2]


def of_a_tensor(x):
    return x[(x.detach() > 3).sum(0).numpy() - 1]


@pytest.mark.parametrize("program", [made, changed, of_a_tensor])
def test_made_in_the_region(program):
    alike(both(bytejit.compile(program, fullgraph=True)), both(program))


class Lower(torch.nn.Module):
    """A triangular layer, as in flows."""

    def __init__(self):
        super().__init__()
        self.places = np.tril_indices(4, -1)
        self.entries = torch.nn.Parameter(torch.randn(6))

    def forward(self, x):
        lower = self.entries.new_zeros(4, 4)
        lower[self.places[0], self.places[1]] = self.entries
        return x @ lower


def test_arrays_that_a_module_holds_and_that_change():
    m = Lower()
    compiled, x = bytejit.compile(m, fullgraph=True), torch.randn(3, 4)
    for _ in range(2):
        m.zero_grad()
        compiled(x).sum().backward()
        got = m.entries.grad.clone()
        m.zero_grad()
        m(x).sum().backward()
        torch.testing.assert_close(got, m.entries.grad)
        m.places[0][:] = m.places[0][::-1].copy()
    m.places = np.triu_indices(4, 1)
    assert torch.equal(compiled(x), m(x))
