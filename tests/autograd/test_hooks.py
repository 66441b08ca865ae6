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


def test_a_hook_on_an_accumulator_and_a_whole_step():
    (m,), log = net(), []
    held = accumulator(m[0].weight)
    held.register_hook(lambda *_: log.append("accumulated"))

    def step(x):
        m.zero_grad()
        m(x).sum().backward()

    compiled = bytejit.compile(step, backend="aot_eager")
    compiled(x())
    compiled(x())
    assert log == ["accumulated"] * 2
