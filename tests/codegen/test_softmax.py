"""The softmax of attentions whose masks may leave nothing, as a kernel against eager, and its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit

NOTHING = -float("inf")


@pytest.mark.cxx
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_of_nothing_are_zero(dtype: torch.dtype) -> None:
    """Rows of which all, some, none is -inf; nan and inf in a row; over the last dim and another"""
    x = torch.randn(3, 6, 9).to(dtype)
    x[0, 0], x[:, 3, 4], x[1, 1, :5], x[1, 2, 3], x[2, 2, 3] = NOTHING, NOTHING, NOTHING, float("nan"), float("inf")

    def both(x):
        return torch._safe_softmax(x, -1), torch._safe_softmax(x * 2, 1)

    for a, b in zip(bytejit.compile(both, fullgraph=True)(x), both(x), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride()
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"]


@pytest.mark.cxx
def test_attention_with_dropout_and_a_mask_that_leaves_nothing() -> None:
    q, mask = torch.randn(2, 3, 8, 4, requires_grad=True), torch.rand(2, 1, 8, 8) > 0.5
    mask[0, 0, 3] = False

    def attend(q, mask):
        return F.scaled_dot_product_attention(q, q, q, mask, dropout_p=0.1).square().sum()

    grads = []
    for f in (attend, bytejit.compile(attend, fullgraph=True)):
        torch.manual_seed(1)
        grads += torch.autograd.grad(f(q, mask), q)
    torch.testing.assert_close(*grads)
    assert not any("softmax" in name for name in bytejit.counters["externs"]) and not bytejit.counters["fallbacks"]
