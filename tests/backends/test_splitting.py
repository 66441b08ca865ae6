"""Graphs cut into parts by a predicate: what they return, write, alias and draw is eager's, whatever the cut is."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch
from torch import fx

import bytejit
from bytejit.backends.splitting import count_refused, in_stages, joined, part_names, split
from bytejit.backends.training import from_aten
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.run import run_aten


def cut(taken: Callable[[fx.Node], bool], seen: list, least: int = 1) -> Callable:
    """A backend that runs the parts of a cut by torch, in memory that nothing else has."""

    def compile(part: Aten) -> Callable:
        run = run_aten(part)
        return lambda *inputs: tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in run(*inputs))

    def build(gm: fx.GraphModule, aten: Aten) -> Callable:
        found = split(aten, lambda n: "" if taken(n) else "not taken", least)
        seen.append(found)
        count_refused(found, "cut")
        return joined(aten, found, compile)

    return lambda gm, example_inputs: from_aten(gm, build)


def by_lot(seed: int) -> Callable[[fx.Node], bool]:
    """Half of all calls."""
    return lambda n: zlib.crc32(f"{n.name} {seed}".encode()) % 2 == 0


def returns_inputs(x, y):
    return x, y.t(), (x + y.t()).t(), x


def writes_inputs(x, y):
    x.mul_(2)
    y[0].add_(x.sum())
    z = x * y.t()
    z[1:] += 1
    return z, z[1:], x.t()


def views_of_results(x, y):
    a = torch.sin(x) + 1
    b = a.view(-1)[2:]
    c = b.exp().split(3)
    return a, b, c[1] * 2, a.t().unsqueeze(0), c[0]


def several_results(x, y):
    values, places = (x * 2).max(1)
    mean, std = torch.var_mean(y.cos(), 0)
    return values + mean.sum(), places, std.exp(), values.view(2, -1)


def draws(x, y):
    a = torch.rand(4) + x.sin().sum()
    b = torch.randn(3) * 2
    return a, torch.dropout(y.cos().exp(), 0.5, True), b


def copies(x, y):
    a = x.clone()
    b = a.t()
    return a, b.contiguous(), x.expand(2, 4, 3), torch.zeros(3), torch.ones(2).sum() + x.sum()


PROGRAMS = (returns_inputs, writes_inputs, views_of_results, several_results, draws, copies)


def observed(fn: Callable) -> list:
    """What a program returns and writes: values, strides, which results share memory and with what."""
    torch.manual_seed(3)
    inputs = torch.randn(4, 3), torch.randn(3, 4)
    outs = fn(*inputs)
    tensors = [*inputs, *outs]
    facts = [(t.tolist(), t.dtype, t.stride(), t.storage_offset()) for t in tensors]
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [facts, [memory.index(m) for m in memory], [any(t is i for i in inputs) for t in outs], torch.rand(1).item()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_any_cut_is_eager(program) -> None:
    wanted = observed(program)
    for taken in (lambda n: True, lambda n: False, *map(by_lot, range(6))):
        seen: list = []
        assert observed(bytejit.compile(program, backend=cut(taken, seen), fullgraph=True)) == wanted
        assert len(seen) == 1
    bytejit.reset()


def test_gradients_and_sizes_of_a_cut() -> None:
    def program(x, w):
        return torch.tanh(x @ w).view(-1, x.shape[0]).sum(1) * x.shape[0]

    for seed in range(3):
        compiled = bytejit.compile(program, backend=cut(by_lot(seed), []), dynamic=True, fullgraph=True)
        for n in (3, 5):
            x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
            got, want = compiled(x, w), program(x, w)
            torch.testing.assert_close(got, want)
            for a, b in zip(torch.autograd.grad(got.sum(), (x, w)), torch.autograd.grad(want.sum(), (x, w))):
                torch.testing.assert_close(a, b)


def test_stages_and_counts() -> None:
    def program(x):
        return (torch.sin(torch.cos(x).exp()) + torch.tanh(x)).log()

    seen: list = []
    took = cut(lambda n: n.target is not torch.ops.aten.exp.default, seen)
    x = torch.rand(5)
    torch.testing.assert_close(bytejit.compile(program, backend=took)(x), program(x))
    text = part_names(seen[0])
    assert len(seen[0].parts) == 2 and "stays with torch: 1 exp.default: not taken" in text, text
    assert bytejit.counters["externs"]["cut: exp.default: not taken: run by torch"] == 1
    assert not any(node.target is torch.ops.aten.exp.default for part in seen[0].parts for node in part)


def test_small_parts_stay_with_torch() -> None:
    seen: list = []
    took = cut(lambda n: n.target is not torch.ops.aten.exp.default, seen, least=2)
    x = torch.rand(5)
    bytejit.compile(lambda x: (torch.cos(x).exp() + 1).tanh(), backend=took)(x)
    assert [len(part) for part in seen[0].parts] == [2]


def test_a_stage_needs_earlier_ones_only() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.ops.aten.sin.default, (x,))
    b = graph.call_function(torch.ops.aten.cos.default, (a,))
    c = graph.call_function(torch.ops.aten.add.Tensor, (a, b))
    graph.output((c,))
    assert in_stages(graph, {a, c}) == ((), (a,), (b,), (c,))
    assert in_stages(graph, {b}) == ((a,), (b,), (c,))
    assert in_stages(graph, set()) == ((a, b, c),)
