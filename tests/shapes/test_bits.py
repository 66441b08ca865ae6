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


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
def test_two_numbers_that_change(signs):
    def f(x, m, n):
        return x * (m & n) - (m | n), m & n, m | n, m ^ n, (m & n) < (m | n)

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for m, n in ((12, 10), (7, 9), (300, 44), (6, 17), (8, 5), (33, 97)):
        args = torch.ones(3), signs[0] * m, signs[1] * n
        got, want = compiled(*args), f(*args)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert bytejit.counters.total("graphs") == 2


def test_a_size_made_of_the_bits_of_two_sizes():
    def f(x, y):
        n = x.shape[0] & y.shape[0]
        return x[:n].cumsum(0) + y[: n ^ 1].sum() * (x.shape[0] | y.shape[0])

    compiled = bytejit.compile(f, fullgraph=True)
    for m, n in ((14, 10), (7, 11), (29, 23), (6, 23), (9, 13), (41, 58)):
        args = torch.randn(m), torch.randn(n)
        torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-4, atol=1e-4)
    assert bytejit.counters.total("graphs") <= 3
