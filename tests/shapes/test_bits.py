"""Bitwise operators of a size and a constant: one symbol for all sizes, whatever bits the constant has."""

import pytest
import torch

import bytejit

CONSTANTS = [0, 1, 5, 7, 10, 12, 63, -1, -3, -8, ~6]


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_size_and_a_constant(constant):
    def f(x, k):
        n = x.shape[0]
        return x * (n & constant) + (constant ^ k), n | constant, k & constant, n ^ constant

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for k in range(2, 13):
        x = torch.ones(k + 3)
        got, want = compiled(x, k), f(x, k)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert bytejit.counters.total("graphs") <= 3
