"""flex_attention on a GPU: our kernel beside eager's in float64, recorded too. Skipped without one."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import bytejit
from bytejit.kernels import flex_triton

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i - j).abs() <= 100 + 50 * h + 20 * b


def late(b, h, i, j):
    return (i >= 200) & (i >= j)


def alibi(s, b, h, i, j):
    return s - (i - j) * torch.exp2(-(h + 1) * 0.5)


def capped(s, b, h, i, j):
    return 20 * torch.tanh(s / 20)


CASES = {
    "causal, a bias": ((2, 4, 2, 1024, 1024, 64, 64), alibi, causal, None, 128),
    "by head and batch": ((2, 4, 4, 500, 700, 64, 64), capped, window, (2, 4), 128),
    "rows that see nothing": ((1, 4, 4, 512, 512, 128, 128), None, late, None, 64),
    "no mask": ((2, 4, 1, 333, 257, 40, 72), alibi, None, None, 128),
    "heads of 256": ((1, 2, 2, 384, 384, 256, 256), capped, causal, None, 128),
    "one query": ((2, 8, 2, 1, 3000, 128, 128), alibi, None, None, 128),
    "blocks of 40": ((1, 2, 2, 200, 200, 64, 64), None, causal, None, 40),
    "long": ((1, 2, 2, 8192, 8192, 64, 64), None, causal, None, 128),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_against_eager(monkeypatch, case, dtype, mode):
    (b, h, g, n, m, d, e), score, mask, by, block = CASES[case]
    q, k, v = (torch.randn(*s, device="cuda", dtype=dtype).transpose(1, 2) for s in ((b, n, h, d), (b, m, g, d), (b, m, g, e)))
    of = None if mask is None else flex.create_block_mask(mask, *(by or (None, None)), n, m, device="cuda", BLOCK_SIZE=block)

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score, of, enable_gqa=h != g, return_lse=True)

    flex_triton.launcher.cache_clear()
    before = bytejit.counters["fallbacks"].copy()
    c = bytejit.compile(f, mode=mode, fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            made, sums = (x.clone() for x in c(q, k, v))
        assert bytejit.counters["fallbacks"] == before
        assert flex_triton.launcher.cache_info().currsize == 1
        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        want, sums_want = f(*(x.double() for x in (q, k, v)))
    near = TOLERANCE[dtype]
    torch.testing.assert_close(made.double(), want, rtol=near, atol=near)
    torch.testing.assert_close(sums.double(), sums_want.double(), rtol=near, atol=near)
    assert made.stride() == want.stride()


def test_documents_and_a_table():
    n = 640
    documents, table = torch.arange(n, device="cuda") // 97, torch.randn(4, n, n, device="cuda")
    of = flex.create_block_mask(lambda b, h, i, j: documents[i] == documents[j], None, None, n, n, device="cuda")
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda") for _ in range(3))

    def f(q, k, v):
        return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i, j], of)

    with torch.no_grad():
        made = bytejit.compile(f, fullgraph=True)(q, k, v)
    mask = torch.where(documents[:, None] == documents, table, -torch.inf).double()
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask)
    torch.testing.assert_close(made.double(), want, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_what_is_written_out():
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda", requires_grad=True) for _ in range(3))
    of = flex.create_block_mask(causal, None, None, 256, 256, device="cuda")
    made = bytejit.compile(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=of), fullgraph=True)(q, k, v)
    got = torch.autograd.grad(made.square().sum(), (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    for a, b in zip(got, torch.autograd.grad(want.square().sum(), (q, k, v))):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
