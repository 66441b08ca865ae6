"""bytejit and torch.compile in one process: each compiles what the other made, and neither looks into the other."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref

import pytest
import torch

import bytejit

from .forked import COMPILER, run_forked

HEAD = """
import torch, bytejit
x = torch.linspace(-1, 1, 12).reshape(3, 4)
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)])
    def forward(self, x):
        for layer in self.layers[:2]:
            x = torch.relu(layer(x))
        return x
torch.set_grad_enabled(False)
m = M()
want = m(x)
"""
# before: what is compiled with bytejit before torch.compile is used first
CASES = {
    "slices of a ModuleList after torch.compile ran": """
torch.compile(lambda x: x + 1, backend="eager")(x)
assert torch.equal(bytejit.compile(m, backend="eager", fullgraph=True)(x), want)
""",
    "torch.compile of what bytejit compiled": """
c, f = bytejit.compile(m, backend="eager"), bytejit.compile(lambda x: m(x) + 1, backend="eager")
c(x), f(x)
t = torch.compile(c, backend="eager", fullgraph=True)
assert torch.equal(t(x), want) and t._orig_mod is m
assert torch.equal(torch.compile(f, backend="eager", fullgraph=True)(x), want + 1)
assert torch.equal(torch.compiler.disable(f)(x), want + 1)
""",
    "bytejit within torch.compile, compiled before and after": """
c, f = bytejit.compile(m, backend="eager"), bytejit.compile(lambda x: m(x) + 1, backend="eager")
c(x), f(x)
outer = torch.compile(lambda x: c(x * 1) + f(x * 1) * 2, backend="eager")
for _ in range(2):
    assert torch.equal(outer(x), want + (want + 1) * 2)
g = bytejit.compile(lambda x: m(x) * 3, backend="eager")
outer = torch.compile(lambda x: g(x * 1) + f(x * 1), backend="eager")
for y in (x, x, torch.cat([x, x])):
    assert torch.equal(outer(y), m(y) * 3 + (m(y) + 1))
from torch._dynamo.utils import counters
assert not [why for why in counters["graph_break"] if "disable" not in why], counters["graph_break"]
""",
    "torch.compile within bytejit": """
t, f = torch.compile(m, backend="eager"), torch.compile(lambda x: m(x) + 1, backend="eager")
t(x), f(x)
m.compile(backend="eager")
n = bytejit.counters.total("graphs")
c = bytejit.compile(lambda x: t(x) + f(x) * 2 + m(x), backend="eager", fullgraph=True)
for _ in range(2):
    assert torch.equal(c(x), want + (want + 1) * 2 + want)
assert bytejit.counters.total("graphs") == n + 1
assert torch.equal(bytejit.compile(m, backend="eager", fullgraph=True)(x), want)
""",
    "an optimizer that torch.compile leaves alone, after it ran": """
torch.compile(lambda x: x + 1, backend="eager")(x)
torch.set_grad_enabled(True)
opt = torch.optim.LBFGS(m.parameters(), max_iter=2)
def closure():
    opt.zero_grad()
    loss = m(x).square().sum()
    loss.backward()
    return loss
step = bytejit.compile(lambda: opt.step(closure), backend="eager")
step(), step()
assert bytejit.counters.total("graphs") > 3, bytejit.counters
""",
}


@pytest.mark.parametrize("case", CASES)
def test_in_one_process(case):
    # torch's compiler is imported after ours in each; where the case is about what ours did before that, by the case
    first = "c(x), f(x)" in CASES[case].splitlines()
    preload = COMPILER if first else (*COMPILER, "torch._dynamo")
    done = run_forked("-c", HEAD + CASES[case], preload=preload, BYTEJIT_SUPPRESS_ERRORS="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bytejit" not in done.stderr, done.stderr[-3000:]


def test_compiled_code_has_a_hash():
    f = bytejit.compile(lambda x: x + 1, backend="eager")
    f(torch.ones(2))
    assert {f.__code__: 1}[f.__code__] == 1 and f.__code__ == f.__code__


# ---- a compiled module is the module -----------------------------------------------------------------------------------
class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = torch.nn.Linear(4, 4), 1.0

    def forward(self, x):
        return torch.nn.functional.dropout(self.lin(x), 0.5, self.training) * self.scale


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_compile_of_a_compiled_module_leaves_the_original():
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    m = Net().eval()
    c = bytejit.compile(m, backend="eager")
    want = c(X)
    before = dict(m.__dict__)
    assert c.compile(backend=backend, fullgraph=True) is None
    assert m.__dict__ == before and type(m) is Net and m._compiled_call_impl is None
    assert torch.equal(c(X), want) and len(seen) == 1 and c._orig_mod is m
    c.compile(disable=True)
    assert torch.equal(c(X), want) and type(c) is Net and len(seen) == 1


def test_state_through_a_compiled_module():
    m = Net()
    c = bytejit.compile(m, backend="eager")
    assert isinstance(c, Net) and c._orig_mod is m and list(c.state_dict()) == list(m.state_dict()) == ["lin.weight", "lin.bias"]
    c.eval()
    assert not m.training and torch.equal(c(X), m(X))
    c.scale = 3.0
    assert m.scale == 3.0 and torch.equal(c(X), m.lin(X) * 3)
    m.scale = 2.0
    assert torch.equal(c(X), m.lin(X) * 2)
    other = Net().eval()
    c.load_state_dict(other.state_dict())
    assert torch.equal(m.lin.weight, other.lin.weight) and torch.equal(c(X), other(X) * 2)
    c.train()
    torch.manual_seed(0)
    got = c(X)
    torch.manual_seed(0)
    assert m.training and torch.equal(got, m(X))


def test_copies_and_pickles():
    m = Net().eval()
    c = bytejit.compile(m, backend="eager")
    c(X)
    back = pickle.loads(pickle.dumps(c))
    assert type(back) is Net and torch.equal(back(X), m(X))
    twin = copy.deepcopy(c)
    twin.scale = 5.0
    assert m.scale == 1.0 and torch.equal(twin(X), m.lin(X) * 5) and twin._orig_mod is not m
    assert twin._orig_mod.scale == 5.0


def test_a_compiled_module_does_not_keep_the_original():
    m = Net()
    c, gone = bytejit.compile(m, backend="eager"), weakref.ref(m)
    gc.disable()
    try:
        del m
        assert gone() is None and type(c._orig_mod) is Net and c._orig_mod.lin is c.lin
    finally:
        gc.enable()


def test_a_wrapper_is_no_compiled_function():
    """torch's compiler finds the function below a compiled one by attributes that functools.wraps copies."""
    f = bytejit.compile(lambda x: x + 1, backend="eager")

    @functools.wraps(f)
    def wrapper(x):
        return f(x) * 2

    assert torch.equal(bytejit.compile(wrapper, backend="eager")(X), (X + 1) * 2)
    assert torch.equal(torch.compile(wrapper, backend="eager")(X), (X + 1) * 2)


def test_methods_that_all_modules_share_have_sites_of_their_own():
    nets = [Net().eval() for _ in range(12)]
    n = bytejit.counters.total("recompiles")
    for m in nets:
        call = bytejit.compile(m.__call__, backend="eager", fullgraph=True)
        assert torch.equal(call(X), m(X))
    assert bytejit.counters.total("recompiles") == n
