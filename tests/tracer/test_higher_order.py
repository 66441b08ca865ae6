"""torch's higher-order operators in one graph: loops, scans, attention with functions of scores and places."""

from __future__ import annotations

import math

import pytest
import torch
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention import flex_attention as flex

import bytejit

X = torch.arange(1.0, 5.0)


def whole(f, *args, backend="aot_eager"):
    return bytejit.compile(f, backend=backend, fullgraph=True)(*args)


# ---- loops --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_loop_that_a_tensor_decides(backend):
    w = torch.tensor([0.5, 1.0, 1.5, 2.0])

    def f(i, x):
        last, y = while_loop(lambda i, x: (i < 5) & (x.sum() < 400), lambda i, x: (i + 1, x * 2 + w), (i, x + 1))
        return last, y.sin()

    def plain(i, x):
        x = x + 1
        while (i < 5) & (x.sum() < 400):
            i, x = i + 1, x * 2 + w
        return i, x.sin()

    c = bytejit.compile(f, backend=backend, fullgraph=True)
    for i, x in ((0, X), (3, X), (9, X), (0, X * 30)):
        torch.testing.assert_close(c(torch.tensor(i), x), plain(torch.tensor(i), x))


def test_a_loop_that_a_number_decides_is_unrolled():
    def f(x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))

    assert whole(f, X)[0] == 3
    torch.testing.assert_close(whole(f, X)[1], X * 8)


def test_a_loop_within_a_loop_and_gradients():
    def f(x):
        def body(i, x):
            j, y = while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, y.sin() + y), (torch.zeros_like(i), x))
            return i + j, y

        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1]

    def plain(x):
        for _ in range(4):
            x = x.sin() + x
        return x

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    made, want = whole(f, x), plain(y)
    made.sum().backward()
    want.sum().backward()
    torch.testing.assert_close((made, x.grad), (want, y.grad))


@pytest.mark.parametrize(
    "body, why",
    [
        (lambda x: (x[:2],), "changing shape"),
        (lambda x: (x.double(),), "changing shape"),
        (lambda x: (x,), "what it was given"),
        (lambda x: (x.add_(1),), "side effects"),
    ],
)
def test_loops_that_no_graph_can_hold(body, why):
    with pytest.raises(bytejit.exc.Unsupported, match=why):
        whole(lambda x: while_loop(lambda x: x.sum() < 100, body, (x,)), X.clone())


def test_scan_and_map():
    def f(init, xs):
        carry, ys = scan(lambda c, x: (c + x["a"], c * x["b"]), init, {"a": xs, "b": xs + 1}, dim=1, reverse=True)
        return carry, ys, hop_map(lambda row, k: (row * k, row.sum()), xs, 3.0 * torch.ones(()))

    xs = torch.arange(12.0).reshape(4, 3)
    # torch's own, not written out: in 2.11 the results lie along the first dim, whatever dim the rows were taken from
    torch.testing.assert_close(whole(f, X, xs), f(X, xs))


def test_a_nested_region_is_followed():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return self.linear(x).relu()

    net = torch.nn.Sequential(Block(), Block())
    torch.testing.assert_close(whole(net, X), net(X))


# ---- attention ----------------------------------------------------------------------------------------------------------------
Q, K, V = (torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
DOCUMENTS = torch.tensor([0] * 5 + [1] * 6 + [2] * 5)


def attention(score, seen, q, k, v, scale=None):
    """What flex_attention stands for: score and seen take scores and places of all dimensions."""
    places = [torch.arange(n).reshape([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate((2, 4, 16, 16))]
    scores = score(q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.shape[-1])), *places)
    scores = torch.where(seen(*places), scores, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def no_change(s, b, h, i, j):
    return s


def alibi(s, b, h, i, j):
    return s + SLOPES[h] * (j - i)


def capped(s, b, h, i, j):
    return 20 * torch.tanh(s / 20) * torch.where(b == 0, 1.0, 0.5)


def causal(b, h, i, j):
    return i >= j


def within_documents(b, h, i, j):
    return (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)


@pytest.mark.parametrize("score, seen", [(no_change, causal), (alibi, within_documents), (capped, causal)])
def test_attention(score, seen):
    def f(q, k, v):
        mask = flex.create_block_mask(seen, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)
        return flex.flex_attention(q, k, v, score_mod=score, block_mask=mask, return_lse=True)

    c = bytejit.compile(f, backend="inductor", fullgraph=True)
    torch.testing.assert_close(c(Q, K, V), attention(score, seen, Q, K, V))
    with pytest.raises(bytejit.exc.Unsupported, match="does not support backward on CPU"):
        c(Q.clone().requires_grad_(), K, V)


@pytest.mark.parametrize("dims", [(2, 4, 5, 16), (2, 4, 1, 16), (1, 4, 1, 16), (2, 1, 1, 16), (1, 1, 5, 16)])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_attention_lies_as_eagers(dims, order, monkeypatch):
    """Sizes of 1 included, whose strides say nothing to `contiguous`"""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    q = torch.randn(*(dims[d] for d in order), 16).permute(*(order.index(d) for d in range(3)), 3)
    k = torch.randn(dims[0], 7, dims[1], 16).transpose(1, 2)
    made = whole(lambda q, k: flex.flex_attention(q, k, k), q, k)
    assert q.shape == dims and made.stride() == flex.flex_attention(q, k, k).stride()


def test_attention_is_eagers(monkeypatch):
    mask = flex.create_block_mask(within_documents, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)

    def f(q, k, v):
        few = flex.flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True, scale=0.3, block_mask=mask)
        return few, flex.flex_attention(q.double(), k.double(), v.double(), score_mod=alibi)

    made = whole(f, Q, K, V)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.testing.assert_close(made, f(Q, K, V))
