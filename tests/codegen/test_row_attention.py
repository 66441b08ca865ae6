"""Attention of one query as sums, in Triton's interpreter, against eager; which ones are taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both import TRITON
from graphs import normalised

import bytejit
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.row_attention import SCALED, take_row_attentions

pytestmark = [pytest.mark.cxx, pytest.mark.triton, pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")]
attend = torch.nn.functional.scaled_dot_product_attention


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


HALF = torch.bfloat16
Q, K, V = r(2, 4, 1, 8), r(2, 4, 19, 8), r(2, 4, 19, 5)
SOME = (r(2, 1, 1, 19) > 0) | (torch.arange(19) == 3)
NONE = SOME & (torch.arange(2) == 0)[:, None, None, None]  # no key for the second of the batch
# program, arguments, whether it is taken
CASES: dict[str, tuple[Callable, tuple[torch.Tensor, ...], bool]] = {
    "plain": (lambda q, k, v: attend(q, k, v), (Q, K, V), True),
    "scale": (lambda q, k, v: attend(q, k, v, scale=0.3) * 2, (Q, K, V), True),
    "groups": (lambda q, k, v: attend(q, k, v, enable_gqa=True), (Q, K[:, :2], V[:, 1:3]), True),
    "repeated": (
        lambda q, k, v: attend(q, *(t[:, :, None].expand(2, 2, 2, 19, t.shape[3]).reshape(2, 4, 19, -1) for t in (k, v))),
        (Q, K[:, :2], V[:, :2]),
        True,
    ),
    "bools": (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, SOME), True),
    "nothing left": (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, NONE), True),
    "numbers": (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, r(4, 1, 19)), True),
    "one mask": (lambda q, k, v, m: attend(q, k, v, m), (Q, K, V, r(1, 19)), True),
    "halves": (lambda q, k, v: attend(q, k, v), tuple(t.to(HALF) for t in (Q, K, V)), True),
    "heads aside": (
        lambda q, k, v: attend(q, k, v).transpose(1, 2).reshape(2, -1),
        (r(2, 1, 4, 8).transpose(1, 2), r(2, 19, 4, 8).transpose(1, 2), r(2, 19, 4, 8).transpose(1, 2)),
        True,
    ),
    "two queries": (lambda q, k, v: attend(q, k, v), (r(2, 4, 2, 8), K, V), False),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), (Q, K, V), False),
    "three dims": (lambda q, k, v: attend(q, k, v), (Q[0], K[0], V[0]), False),
    "float64": (lambda q, k, v: attend(q, k, v), tuple(t.double() for t in (Q, K, V)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, args, taken = CASES[name]
    graph = normalised(fn, *args)
    before = sum(n.target is SCALED for n in graph.nodes)
    take_row_attentions(graph, Choices(None, None))
    assert before - sum(n.target is SCALED for n in graph.nodes) == taken
    with torch.no_grad():
        expected, got = fn(*args), bytejit.compile(fn, options={"interpret": True})(*args)
    assert got.stride() == expected.stride() and got.dtype is expected.dtype
    narrow = got.dtype is HALF
    torch.testing.assert_close(got, expected, **({"rtol": 2e-2, "atol": 2e-2} if narrow else {"rtol": 1e-5, "atol": 1e-5}))
    assert not bytejit.counters["fallbacks"], bytejit.counters
