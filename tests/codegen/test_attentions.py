"""Which attentions our own serves, and that a graph with it gives what eager gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.codegen.libraries import attention
from bytejit.codegen.libraries.choices import Choices
from bytejit.kernels import library
from bytejit.kernels.tune import Tuner

pytestmark = pytest.mark.cxx
sdpa = F.scaled_dot_product_attention


def qkv(*shape: int, keys: int = 0, groups: int = 0, dtype=torch.float32) -> list[torch.Tensor]:
    b, h, rows, d = shape
    torch.manual_seed(sum(shape))
    return [torch.randn(b, g or h, n or rows, d).to(dtype) for g, n in ((0, 0), (groups, keys), (groups, keys))]


SERVED = {
    "plain": (lambda q, k, v: sdpa(q, k, v), qkv(2, 3, 20, 8)),
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True) + 1, qkv(2, 3, 20, 8, keys=30)),
    "scale": (lambda q, k, v: sdpa(q, k, v, scale=0.3), qkv(2, 3, 20, 8)),
    "split": (
        lambda x: sdpa(*(t.unflatten(-1, (2, 8)).transpose(1, 2) for t in x.chunk(3, -1))).transpose(1, 2).flatten(2),
        [torch.ones(2, 20, 48).cumsum(1) / 20],
    ),
    "bools": (lambda q, k, v: sdpa(q, k, v, torch.ones(20, 30, dtype=torch.bool).tril(4)), qkv(2, 3, 20, 8, keys=30)),
    "numbers": (lambda q, k, v, m: sdpa(q, k, v, m.expand(2, 3, 20, 30)), [*qkv(2, 3, 20, 8, keys=30), torch.rand(2, 1, 1, 30)]),
    "grouped": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), qkv(2, 6, 20, 8, groups=2)),
    "turned": (lambda q, k, v: sdpa(q.mT, k.mT, v), qkv(2, 3, 12, 12)),
}
LEFT = {
    "few rows": (lambda q, k, v: sdpa(q, k, v), qkv(2, 3, 1, 8, keys=40)),
    "double": (lambda q, k, v: sdpa(q, k, v), qkv(2, 3, 20, 8, dtype=torch.float64)),
    "half": (lambda q, k, v: sdpa(q, k, v), qkv(2, 3, 20, 8, dtype=torch.bfloat16)),
    "three dimensions": (lambda q, k, v: sdpa(q[0], k[0], v[0]), qkv(2, 3, 20, 8)),
    "a batch that broadcasts": (lambda q, k, v: sdpa(q, k[:1], v[:1]), qkv(2, 3, 20, 8)),
}


@pytest.mark.parametrize("name", SERVED)
def test_served(own, name) -> None:
    fn, args = SERVED[name]
    with torch.no_grad():
        got, want = bytejit.compile(fn)(*args), fn(*args)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.stride() == want.stride() and own == [1]


def test_served_at_changing_sizes(own) -> None:
    def fn(x, mask):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in x.chunk(3, -1))
        return sdpa(q, k, v, mask).transpose(1, 2).flatten(2) + sdpa(q, k, v, is_causal=True).mean()

    compiled = bytejit.compile(fn, dynamic=True)
    for batch, rows in ((2, 20), (3, 33), (1, 400)):
        x = torch.randn(batch, rows, 48, generator=torch.Generator().manual_seed(rows))
        mask = torch.ones(rows, rows, dtype=torch.bool).tril(3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, mask), fn(x, mask), rtol=1e-5, atol=1e-5)
    assert own and set(own) == {2}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(own, name) -> None:
    fn, args = LEFT[name]
    with torch.no_grad():
        got, want = bytejit.compile(fn)(*args), fn(*args)
    torch.testing.assert_close(got, want)
    assert own == [0]


def test_dropout_is_left_to_torch(own) -> None:
    args = qkv(2, 3, 20, 8)
    with torch.no_grad():
        compiled = bytejit.compile(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5))
        torch.manual_seed(1)
        got = compiled(*args)
        torch.manual_seed(1)
        want = sdpa(*args, dropout_p=0.5)
    torch.testing.assert_close(got, want)
    assert own == [0]


def test_timed_operands_can_be_filled(monkeypatch) -> None:
    """Expanded operands are timed dense, masks of bools as numbers."""
    monkeypatch.setattr(attention, "LEAST_WORK", 0)
    found = []

    class Look(Tuner):
        def choose(self, op, specs, candidates, cold=(), attrs="", **sample):
            tensors = self._operands(specs, frozenset())[0]
            found.append([(tuple(t.shape), t.dtype) for t in tensors])
            shapes = [tuple(c.call(*tensors).shape) for c in candidates]
            assert shapes == [(2, 3, 20, 8)] * len(candidates)
            return None

    graph = torch.fx.Graph()
    nodes = []
    for shape, dtype in (
        ((2, 3, 20, 8), torch.float32),
        ((2, 3, 30, 8), torch.float32),
        ((2, 3, 30, 8), torch.float32),
        ((2, 3, 20, 30), torch.bool),
    ):
        nodes.append(graph.placeholder(f"p{len(nodes)}"))
        one = torch.zeros((shape[0], 1, *shape[2:]) if len(nodes) != 1 else shape, dtype=dtype).expand(shape)
        nodes[-1].meta["spec"] = attention.Spec.of(one)
    node = graph.call_function(torch.ops.aten.scaled_dot_product_attention.default, tuple(nodes))
    node.meta["spec"] = attention.Spec.of(torch.zeros(2, 20, 3, 8).transpose(1, 2))
    graph.output(node)
    attention.choose_attentions(graph, Choices(Look(), library))
    assert found == [
        [
            ((2, 3, 20, 8), torch.float32),
            ((2, 3, 30, 8), torch.float32),
            ((2, 3, 30, 8), torch.float32),
            ((2, 1, 20, 30), torch.float32),
        ]
    ]
