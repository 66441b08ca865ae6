"""The option `activation_memory_budget`: fewer bytes are saved, the rest is computed again, gradients stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bytejit
from bytejit.autograd.budget import repeatable, work
from bytejit.autograd.joint import Joint, make_joint
from bytejit.autograd.partition import Parts, partition
from bytejit.backends.surround import fakes_of
from bytejit.codegen.aten.graph import positions
from bytejit.codegen.aten.rewrite import bytes_of
from bytejit.common.graph_info import info_of

from .beside import beside
from .test_partition import calls

BUDGETS = (0, 0.25, 0.5, 0.75, 1)


class Block(nn.Module):
    """Attention and two layers, both with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + F.dropout(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), 0.2)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.2)


def perceptron():
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)
    )


def convolutions():
    layers = [part for i in (3, 4, 4) for part in (nn.Conv2d(i, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))


MODELS = {"perceptron": (perceptron, (5, 8)), "block": (Block, (2, 6, 16)), "convolutions": (convolutions, (2, 3, 6, 6))}


def step(f, *args):
    out = f(*args)
    out.square().mean().backward()
    return out


def model_and_input(name: str):
    make, shape = MODELS[name]
    return make(), torch.randn(shape)


def called(m, *args):
    return m(*args)


def check(backend: str, inputs, budget: float, f=called) -> None:
    """Three steps: one step's statistics are read by the next."""
    with bytejit.config.patch(activation_memory_budget=budget):
        beside(backend, f, inputs, step, steps=3)


def joint_of(f, *args) -> tuple[Joint, frozenset[int]]:
    """The joint graph of a program, and which inputs are weights."""
    found = []

    def backend(gm, examples):
        found.append((make_joint(gm, fakes_of(gm)), info_of(gm).weights))
        return gm.forward

    bytejit.reset()
    bytejit.compile(f, backend=backend)(*args)
    return found[0]


def saved_bytes(parts: Parts) -> float:
    flat = list(parts.forward.graph.nodes)[-1].args[0]
    outs = parts.forward.outputs[parts.results : parts.results + parts.saved]
    return sum(bytes_of(flat[p].meta["spec"]) for p in {p for o in outs for p in positions(o)})


@pytest.mark.parametrize("budget", (0, 0.5, 1))
@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_random_numbers_are_those_of_eager(name, budget):
    check("aot_eager", lambda: model_and_input(name), budget)


@pytest.mark.cxx
@pytest.mark.parametrize("name", MODELS)
def test_the_same_in_kernels(name):
    check("inductor", lambda: model_and_input(name), 0.25)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_fits_the_budget(name):
    joint, weights = joint_of(*model_and_input(name))
    found = [saved_bytes(partition(joint, weights, b)) for b in BUDGETS]
    least, most = found[0], found[-1]
    assert found == sorted(found) and least < 0.35 * most
    assert all(size <= least + b * (most - least) for b, size in zip(BUDGETS, found))
    assert most == saved_bytes(partition(joint, weights))


def test_what_costs_least_time_is_computed_again_first():
    """An elementwise op before a product of the same size."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    joint, weights = joint_of(model, torch.randn(32, 64, requires_grad=True))
    half, none = (partition(joint, weights, b) for b in (0.5, 0))
    assert half.recomputed == ("gelu",) and "addmm" in none.recomputed
    by_name = {str(n.target): work(n) for n in joint.forward if n.op == "call_function"}
    assert by_name["aten.t.default"] == 0 < by_name["aten.gelu.default"] < by_name["aten.addmm.default"]


@pytest.mark.parametrize("budget", (0, 0.5))
def test_random_numbers_are_saved_at_every_budget(budget):
    joint, weights = joint_of(*model_and_input("block"))
    parts = partition(joint, weights, budget)
    assert calls(parts.forward).count("bernoulli") == 2 and not any("bernoulli" in c for c in calls(parts.backward))


def test_what_is_not_computed_again():
    """Random numbers, sizes that the values decide, writes."""
    programs = (lambda x: torch.bernoulli(x.sigmoid()) @ x, lambda x: x.exp()[torch.ones(3, dtype=torch.bool).nonzero()[:, 0]])
    said: dict[str, bool] = {}
    for f in programs:
        said.update((str(n.target), repeatable(n)) for n in joint_of(f, torch.rand(3, 3, requires_grad=True))[0].forward)
    assert (
        not said["aten.bernoulli.default"]
        and said["aten.sigmoid.default"]
        and said["aten.mm.default"]
        and said["aten.exp.default"]
    )
    assert not said.get("aten.nonzero.default")
    graph = torch.fx.Graph()
    write = graph.call_function(torch.ops.aten.relu_.default, (graph.placeholder("x"),))
    write.meta["spec"] = next(n.meta["spec"] for n in joint_of(programs[0], torch.rand(3, 3, requires_grad=True))[0].forward)
    assert not repeatable(write)


def test_what_is_computed_again_comes_just_before_its_use():
    """So that it lives as briefly as it can: not all of it at the start."""
    layers = [part for _ in range(4) for part in (nn.Linear(8, 8), nn.GELU())]
    joint, weights = joint_of(nn.Sequential(*layers, nn.Linear(8, 8)), torch.randn(5, 8))
    nodes = list(partition(joint, weights, 0.5).backward.graph.nodes)
    again = [n for n in nodes if str(n.target) == "aten.gelu.default"]
    assert len(again) == 4
    assert all(min(map(nodes.index, n.users)) - nodes.index(n) == 1 for n in again)
    assert nodes.index(again[-1]) - nodes.index(again[0]) > 15


def test_checkpoints_keep_their_rules():
    """Twice: a part that draws at random, and one that does not."""

    def f(m, x):
        return m[1](checkpoint(m[0], x, use_reentrant=False)).exp().sum()

    for first in (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Tanh())):
        check("aot_eager", lambda: (nn.ModuleList([first, nn.Linear(4, 4)]), torch.randn(3, 4)), 0, f)


def test_sizes_known_at_the_call_only():
    with bytejit.config.patch(activation_memory_budget=0, dynamic=True):
        beside("aot_eager", called, lambda: (perceptron(), torch.randn(7, 8)), step)


def test_explain_says_it():
    m, x = model_and_input("perceptron")
    f = bytejit.compile(m, backend="aot_eager", options={"activation_memory_budget": 0.5})
    said = str(bytejit.explain(f, x))
    assert "Saved for the backward pass:" in said and "budget 0.5" in said and "MiB at 1, 0.00 MiB at 0" in said


@pytest.mark.parametrize("value", (-0.1, 1.5, float("nan"), "half"))
def test_a_budget_is_between_0_and_1(value):
    with pytest.raises(ValueError, match="activation_memory_budget is"):
        bytejit.compile(perceptron(), options={"activation_memory_budget": value})


def test_torchs_own_setting_is_heard():
    config = pytest.importorskip("torch._functorch.config")
    m, x = model_and_input("perceptron")
    with config.patch(activation_memory_budget=0.5):
        said = str(bytejit.explain(bytejit.compile(m, backend="aot_eager"), x))
        own = bytejit.compile(m, backend="aot_eager", options={"activation_memory_budget": 0.25})
        assert "budget 0.5" in said and "budget 0.25" in str(bytejit.explain(own, x))
