"""eval of a text: a constant where no name is in it."""

from __future__ import annotations

import warnings

import pytest
import torch

import bytejit

TEXTS = ["3+4", "  (1, 2.5)[1] * 2", "'a' * 3", "[1, 2]", "n + 1", "(lambda: 2)()", "len('abc')", "1 / 0", "3 +", "a b"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("given", [False, True])
def test_values(text: str, given: bool) -> None:
    def f(x: torch.Tensor, more: str) -> tuple:
        n = 2
        try:
            return x + n, eval(more if given else text)
        except Exception as e:
            return x - n, type(e)

    compiled = bytejit.compile(f, backend="eager")
    x = torch.ones(2)
    for more in (text, "5 * 5", text):
        expected, got = f(x, more), compiled(x, more)
        assert torch.equal(expected[0], got[0])
        assert type(expected[1]) is type(got[1])
        assert expected[1] == got[1]


def test_one_graph() -> None:
    bytejit.reset()
    bytejit.counters["breaks"].clear()
    assert torch.equal(bytejit.compile(lambda x: x + eval("3+4"), backend="eager")(torch.ones(2)), torch.full((2,), 8.0))
    assert not bytejit.counters["breaks"]


def test_a_warning() -> None:
    compiled = bytejit.compile(lambda x: (x + 1, eval("3 is 3")), backend="eager")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        compiled(torch.ones(2))
    assert [w.category for w in found] == [SyntaxWarning]
