"""How few compiles a program over many sizes needs: sizes of 1 among others, masks given now and then, views that copy."""
from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit
from tests.shapes.test_dynamic import entries


class Attention(nn.Module):
    """Causal or not, with a padding mask or none; the mask's size comes from the tokens'."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(64, 8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, tokens, mask=None):
        b, n = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(n))[None]
        q, k, v = self.qkv(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 8))


def graphs_of(model: Callable, calls: list[tuple]) -> int:
    """Graphs compiled over the calls, each compared with the plain model."""
    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(1)
        gm(*inputs)                 # examples fit the graph, whatever it was traced as
        return gm.forward
    compiled = bytejit.compile(model, backend=backend)
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(compiled(*args), model(*args))
    return len(graphs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mask_that_is_given_now_and_then(causal: bool, seed: int) -> None:
    torch.manual_seed(0)
    rng = random.Random(seed)
    calls: list[tuple] = [(torch.randint(0, 20, (6, 51)),), (torch.randint(0, 20, (1, 27)),)]
    for _ in range(24):
        b, n = rng.randint(1, 8), rng.choice([1, 2, 3, 17, 31, 64])
        tokens, mask = torch.randint(0, 20, (b, n)), torch.rand(b, n) > 0.3
        mask[:, 0] = True
        calls.append((tokens, mask) if rng.random() < 0.5 else (tokens,))
    assert graphs_of(Attention(causal).eval(), calls) <= 4      # with and without a mask are two paths of the program


def test_a_length_that_passes_through_one_while_the_batch_stays() -> None:
    sizes = [(4, 7), (4, 1), (4, 9), (4, 1), (2, 5), (1, 1), (3, 1), (1, 6)]
    assert graphs_of(Attention(False).eval(), [(torch.randint(0, 20, s),) for s in sizes]) == 3


def test_a_size_of_one_that_matters_gets_a_trace_of_its_own() -> None:
    def f(x, y):
        return x + y if x.shape[0] != 1 else x - y
    calls = [(torch.randn(b, 3), torch.randn(c, 3)) for b, c in ((4, 4), (1, 5), (1, 1), (5, 5), (7, 7), (5, 1), (1, 2))]
    assert graphs_of(f, calls) <= 6


def test_what_broadcasts_now_and_not_before() -> None:
    calls = [(torch.randn(a), torch.randn(b)) for a, b in (
        ((4, 3), (4, 3)), ((1, 3), (4, 3)), ((1, 3), (6, 3)), ((1, 3), (1, 3)), ((6, 3), (6, 3)), ((6, 3), (1, 3)))]
    assert graphs_of(lambda x, y: x * y + x.sum(0), calls) <= 5


def writes_the_copy(x):
    y = x * 2
    a = y.transpose(1, 2).contiguous()
    b = a.view(a.shape[0], -1)
    b[:, 0] = 7
    return y.sum(), b


def writes_the_source(x):
    y = x * 2
    a = y.transpose(1, 2).reshape(-1)
    y.add_(1)
    return a + 1


def both_leave(x):
    y = x * 2
    return y, y.transpose(1, 2).contiguous()


def copies_an_input(x):
    return x.transpose(1, 2).flatten()


def is_it_the_same(x):
    z = (x * 2).transpose(1, 2)
    a = z.contiguous()
    return a + (a is z)


def breaks_between(x):
    y = x * 2
    z = y.transpose(1, 2).reshape(-1)
    bytejit.graph_break()
    z += 1
    return y.sum() + z


def stays_inside(x):
    a = (x * 2).transpose(1, 2).reshape(x.shape[0], -1)
    return a.exp() + a.sum()


@pytest.mark.parametrize("f, limit", [(writes_the_copy, 4), (writes_the_source, 4), (both_leave, 4), (copies_an_input, 4),
                                      (is_it_the_same, 4), (breaks_between, 8), (stays_inside, 2)])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_views_or_copies_by_size(f: Callable, limit: int, backend: str) -> None:
    """A transposed tensor of which a size is 1 is contiguous: what follows is a view there, and a copy elsewhere."""
    def memories(x, out):
        of = [t.untyped_storage()._cdata for t in (x, *(out if isinstance(out, tuple) else (out,)))]
        return [of.index(m) for m in of]
    compiled = bytejit.compile(f, backend=backend)
    for size in ((3, 4, 5), (4, 5, 6), (1, 5, 7), (3, 1, 6), (2, 6, 1), (1, 1, 4), (1, 1, 1), (5, 4, 3)):
        x = torch.randn(size)
        mine, plain = x.clone(), x.clone()
        want, got = f(plain), compiled(mine)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, plain)
        assert memories(mine, got) == memories(plain, want)
    assert entries(compiled) <= limit


def test_conditions_on_products_and_quotients_are_said_of_their_parts() -> None:
    from bytejit.shapes.environment import Env
    env = Env()
    a, b = env.symbol("a", 6, 1), env.symbol("b", 9, 1)
    assert b // 2 != 0 and b // 2 != 1 and (b // 2) ** 2 != 0 and 16 * a * (b // 2) != 0 and a * b != 0
    assert [c.text() for c, _ in env.conditions] == ["1 <= b//2", "2 <= b//2"]
    assert 8 * a != 8 and env.range(a.node.e)[0] == 2


@pytest.mark.parametrize("sizes", [((2, 3), (4, 5)), ((2, 3), (1, 4))])
def test_a_symbolic_trace_keeps_no_tensor_of_the_program(sizes: tuple) -> None:
    def made():
        k = torch.ones(3)
        return bytejit.compile(lambda x: x.t().reshape(-1) + k.sum(), backend="eager"), weakref.ref(k)
    compiled, k = made()
    for size in sizes:
        compiled(torch.ones(size))
    del compiled
    gc.collect()
    assert k() is None
