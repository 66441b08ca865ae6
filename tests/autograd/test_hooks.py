"""What sees a backward pass from outside: hooks, autocast, transforms around it."""

from __future__ import annotations

import threading

import pytest
import torch

import bytejit

from .beside import beside


def net():
    return (torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)),)


def x():
    return torch.randn(5, 4)


def accumulator(p):
    return p.expand_as(p).grad_fn.next_functions[0][0]


def saved_shapes(f, m):
    log = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: log.append(tuple(t.shape)) or t, lambda t: t):
        out = f(m)
    out.sum().backward()
    return log


def under_autocast(f, m):
    out = f(m).square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.backward()


def batched(f, m):
    out = f(m)
    return torch.autograd.grad(out, list(m.parameters()), torch.ones(2, *out.shape), is_grads_batched=True)


def on_accumulators(f, m):
    log, held = [], {n: accumulator(p) for n, p in m.named_parameters()}
    for n, p in m.named_parameters():
        held[n].register_hook(lambda *_, n=n, p=p: log.append((n, p.grad.clone())))
        held[n].register_prehook(lambda grads: (grads[0] * 2,))
    f(m).sum().backward()
    return [t for _, t in sorted(log, key=lambda row: row[0])]


def in_a_thread(f, m):
    names = []
    for n, p in m.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=n: names.append(n))
    out = f(m).sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    return sorted(names)


def of_nodes(f, m):
    out = f(m)
    out.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    log = []
    torch.autograd.graph.register_multi_grad_hook(tuple(m.parameters()), lambda grads: log.append([g.clone() for g in grads]))
    out.sum().backward()
    return log


@pytest.mark.parametrize(
    "drive, runs",
    [(saved_shapes, 2), (under_autocast, 2), (batched, 2), (on_accumulators, 0), (in_a_thread, 0), (of_nodes, 0)],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_seen_from_outside(drive, runs):
    beside("aot_eager", lambda m: m(torch.ones(5, 4)), net, drive, torch_runs=runs)


def test_torchs_own_hooks_take_compiled_graphs():
    def drive(f, m):
        torch.utils.checkpoint.checkpoint(f, m, use_reentrant=False).sum().backward()

    beside("aot_eager", lambda m: m(torch.ones(5, 4)), net, drive)


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_a_hook_on_an_accumulator_and_a_whole_step(register):
    (m,), log = net(), []
    held = accumulator(m[0].weight)
    getattr(held, register)(lambda *_: log.append("accumulated"))

    def step(x):
        m.zero_grad()
        m(x).sum().backward()

    compiled = bytejit.compile(step, backend="aot_eager")
    compiled(x())
    compiled(x())
    assert log == ["accumulated"] * 2 and held is accumulator(m[0].weight)


# ---- hooks of what gets no gradient: eager does not come to them ----------------------------------------------------------
class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.body(x)
        return self.a(y), self.b(y)


def clipped(make, used):
    torch.manual_seed(0)
    m = Heads()
    log = []
    for n, p in m.named_parameters():
        p.register_hook(lambda g, n=n: log.append(n) or g.clamp(-0.01, 0.01))
    f = make(m)
    for _ in range(3):
        f(torch.ones(2, 4))[used].sum().backward()
    with_both = f(torch.ones(2, 4))
    (with_both[0].sum() + with_both[1].sum()).backward()
    return [p.grad for p in m.parameters()], sorted(log), [type(h) for p in m.parameters() for h in p._backward_hooks.values()]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("used", [0, 1])
def test_hooks_of_parameters_of_a_head_that_is_not_used(used, backend):
    expected = clipped(lambda m: m, used)
    got = clipped(lambda m: bytejit.compile(m, backend=backend, fullgraph=True), used)
    torch.testing.assert_close(got[0], expected[0])
    assert got[1:] == expected[1:]


def apart(a, b):
    return a.sin(), b.cos()


def chained(a, b):
    p = a * 2
    return p, p.sin(), (b * 3).cos()


def with_hooks(a, b):
    p, q = a.sin(), b.cos()
    p.register_hook(LOG.append)
    q.register_hook(LOG.append)
    return p, q


def with_a_break(a, b):
    p, q = a.sin(), b.cos()
    p.register_hook(LOG.append)
    q.register_hook(LOG.append)
    bytejit.graph_break()
    return p * 2, q * 3


def of_a_shared_leaf(a, b):
    return a.sin() * b, b.cos()


LOG: list = []


def seen(f, program, through):
    LOG.clear()
    a, b = (torch.arange(3.0).requires_grad_() for _ in range(2))
    x, y = (a * 1, b * 1) if through else (a, b)
    for t in {a, b, x, y}:
        t.register_hook(LOG.append)
    f(x, y)[-1].sum().backward(retain_graph=True)
    torch.autograd.grad(f(x, y)[-1].sum(), b, retain_graph=True)
    f(x, y)[0].sum().backward()
    assert not any(g is None for g in LOG)
    return sorted(LOG, key=torch.Tensor.tolist), a.grad, b.grad


@pytest.mark.parametrize("through", [False, True], ids=["leaves", "what is made of leaves"])
@pytest.mark.parametrize("program", [apart, chained, with_hooks, with_a_break, of_a_shared_leaf])
def test_hooks_of_what_gets_no_gradient(program, through):
    expected = seen(program, program, through)
    got = seen(bytejit.compile(program, backend="aot_eager"), program, through)
    torch.testing.assert_close(got, expected)


def test_a_hook_that_is_removed_while_it_waits():
    log = []
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    a.register_hook(lambda g: handles.pop().remove())
    handles = [a.register_hook(log.append)]
    f = bytejit.compile(apart, backend="aot_eager")
    f(a, b)[1].sum().backward()
    assert not log and len(handles) == 1 and len(a._backward_hooks) == 2
    f(a, b)[0].sum().backward()
    assert len(log) == 1 and len(a._backward_hooks) == 1


def rows(a, b):
    p, q = (a * b).unbind()
    return p, q


def written(a, b):
    return (a * 2).sin(), a.cos(), b * 3


@pytest.mark.parametrize("program", [apart, chained, rows, written])
def test_hooks_of_a_result_that_is_not_used(program):
    def value(g):
        return g if g is None else torch.round(g, decimals=4).tolist()

    def seen(f):
        log = []
        a, b = (torch.arange(2.0).requires_grad_() for _ in range(2))
        results = f(a, b)
        handles = [
            r.register_hook(lambda g, i=i: log.append((i, value(g))) or (g if g is None else g * 2))
            for i, r in enumerate(results)
        ]
        if program is written:  # from then on it has hooks of its own
            results[1].mul_(3)
            results[1].register_hook(lambda g: log.append((9, value(g))))
        results[-1].sum().backward(retain_graph=True)
        sum(r.sum() for r in results).backward(retain_graph=True)
        handles[0].remove()
        sum(r.sum() for r in results).backward()
        return sorted(log, key=str), value(a.grad), value(b.grad)

    assert seen(bytejit.compile(program, backend="aot_eager")) == seen(program)
