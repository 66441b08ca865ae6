"""Checkpointed parts in compiled graphs: nothing of them is kept, what they draw at random is drawn again."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import bytejit
from bytejit.compat import checkpoint_frames

from .beside import BACKENDS, beside
from .test_partition import calls, parts_of

BOTH = pytest.mark.parametrize("backend", BACKENDS)
SAVED = [torch.ops.aten.mm.default]


def data():
    return torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)


def back(f, *args):
    out = f(*args)
    out.sum().backward()
    return out


def block(x, w):
    return F.dropout((x @ w).sin(), 0.4).exp().tanh()


def chain(x, w, **options):
    for _ in range(3):
        x = checkpoint(block, x, w, use_reentrant=False, **options)
    return x


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is SAVED[0] else CheckpointPolicy.PREFER_RECOMPUTE


def keeps(ops, ctx, op, *args, last, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in ops and last == 2 else CheckpointPolicy.PREFER_RECOMPUTE


def contexts():
    return create_selective_checkpoint_contexts(policy)


def nested(x, w):
    inner = functools.partial(checkpoint, block, use_reentrant=False)
    return checkpoint(lambda x: inner(inner(x.cos(), w), w) * 2, x + w.sum(), use_reentrant=False)


def reentrant(x, w):
    y = checkpoint(lambda x: block(x, w).square(), x @ w, use_reentrant=True)
    return checkpoint(lambda a, b: a @ b, y, w, use_reentrant=True, preserve_rng_state=False)


def mixed(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return checkpoint(block, x, w, use_reentrant=False).float()


PROGRAMS = {
    "chain": chain,
    "other numbers": lambda x, w: chain(x, w, preserve_rng_state=False, early_stop=False),
    "selective, operators": lambda x, w: chain(x, w, context_fn=functools.partial(create_selective_checkpoint_contexts, SAVED)),
    "selective, policy": lambda x, w: chain(x, w, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)),
    "selective, policy with arguments": lambda x, w: chain(
        x,
        w,
        context_fn=functools.partial(create_selective_checkpoint_contexts, functools.partial(keeps, frozenset(SAVED), last=2)),
    ),
    "selective, function": lambda x, w: chain(x, w, context_fn=contexts),
    "nested": nested,
    "reentrant": reentrant,
    "autocast": mixed,
    "function by name": lambda x, w: checkpoint(function=lambda: block(x, w), use_reentrant=False),
    "keywords": lambda x, w: checkpoint(block, x, w=w, use_reentrant=False) * F.dropout(w.sum() + x, 0.5),
}


# since torch 2.15 functions and methods are decorated, too
DECORATES = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters
if DECORATES:
    again = checkpoint(use_reentrant=False)(block)
    PROGRAMS["decorated"] = lambda x, w: again(x, w=w) + again(x, w)
    PROGRAMS["decorated there"] = lambda x, w: checkpoint(use_reentrant=False, preserve_rng_state=True)(block)(x, w)
    PROGRAMS["hooks"] = lambda x, w: chain(x, w, respect_saved_tensors_hooks=True)


@BOTH
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend):
    beside(backend, PROGRAMS[name], data, back, tol=5e-2 if name == "autocast" else 1e-5)


def step(x, w):
    """The backward pass in the region."""
    out = nested(chain(x, w), w)
    out.sum().backward()
    return out.detach()


def test_whole_steps():
    beside("inductor", step, data, lambda f, *args: f(*args))


def plain(x, w):
    return ((x @ w).sin().exp() @ w).tanh()


@pytest.mark.parametrize("options", [{}, {"use_reentrant": True}])
def test_nothing_inside_is_saved(options):
    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    parts = parts_of(lambda x, w: checkpoint(plain, x, w, **{"use_reentrant": False, **options}).square(), x, w)
    assert parts.saved == 1 and len(parts.saved_inputs) == 2, parts.summary()  # the result, which is squared
    assert calls(parts.backward).count("mm") == 2 + 4
    assert parts_of(lambda x, w: plain(x, w).square(), x, w).saved > 1


def test_selected_values_are_saved():
    x, w = torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)
    chosen = functools.partial(create_selective_checkpoint_contexts, SAVED)
    parts = parts_of(lambda x, w: checkpoint(plain, x, w, use_reentrant=False, context_fn=chosen), x, w)
    assert parts.saved == 2 and calls(parts.backward).count("mm") == 3, parts.summary()


def test_a_whole_step_computes_again():
    """In one graph too: products are made again, and nothing merges them with the first ones."""
    seen = []
    x, w = torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)

    def compiler(gm, examples):
        seen.append(sum(n.target is torch.ops.aten.mm.default for n in gm.graph.nodes))
        return gm.forward

    def f(x, w):
        checkpoint(plain, x, w, use_reentrant=False).sum().backward()

    bytejit.compile(f, backend=bytejit.backends.aot(forward=compiler))(x, w)
    assert seen == [2 + 2 + 3], seen


def test_grad_through_a_reentrant_checkpoint():
    """torch refuses it."""

    def drive(f, x, w):
        return torch.autograd.grad(f(x, w).sum(), w)

    beside("aot_eager", reentrant, data, drive, torch_runs=2)


@BOTH
@pytest.mark.parametrize("reentrant", [False, True])
def test_statistics_are_written_twice(reentrant, backend):
    """A batch norm in a checkpoint counts each batch again in the backward pass"""

    def program(x, norm, last):
        return last(checkpoint(lambda x: norm(x).relu(), x.sin(), use_reentrant=reentrant))

    def inputs():
        return torch.randn(6, 4, requires_grad=True), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def drive(f, x, norm, last):
        out = f(x, norm, last)
        once = [b.clone() for b in norm.buffers()]
        out.sum().backward()
        return out, x.grad, once, [b.clone() for b in norm.buffers()], [p.grad for p in last.parameters()]

    beside(backend, program, inputs, drive)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu().exp()


class Broken(Layer):
    def forward(self, x):
        y = self.linear(x).relu()
        print(end="")
        return y.exp() * y


def by_hooks(layer):
    return pytest.importorskip("torch.distributed._composable").checkpoint(layer)


def decorated(layer):
    class Decorated(type(layer)):
        forward = checkpoint(use_reentrant=False)(type(layer).forward)

    return Decorated()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [Layer, Broken])
@pytest.mark.parametrize("begun", [by_hooks, *([decorated] if DECORATES else [])])
def test_what_is_run_again_saves_what_was_saved(begun, made):
    """A checkpoint that begins in compiled code, or breaks the graph, runs the original code again: it saves the same then"""
    plain, compiled = (nn.Sequential(begun(made()), nn.Linear(3, 3)) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    f = bytejit.compile(compiled)
    checkpoint_frames._names_hold.cache_clear()  # what looks at torch's checkpoints begins one, within this one
    for _ in range(2):
        xs = [torch.linspace(-1, 1, 18).view(6, 3).requires_grad_() for _ in range(2)]
        for g, x in zip((plain, f), xs):
            g(x).square().sum().backward()
        torch.testing.assert_close(xs[1].grad, xs[0].grad)
    for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


def test_compiled_code_that_is_run_again():
    """A checkpoint around it, in code that is not compiled, runs the kernels both times"""
    layer = Layer()
    f = bytejit.compile(layer)
    for g in (f, lambda x: checkpoint(f, x, use_reentrant=False)):
        xs = [torch.linspace(-1, 1, 18).view(6, 3).requires_grad_() for _ in range(2)]
        layer(xs[0]).sum().backward()
        checkpoint(g, xs[1], use_reentrant=False).sum().backward()
        torch.testing.assert_close(xs[1].grad, xs[0].grad)
    assert not bytejit.counters.total("fallbacks")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_its_hooks_raise_in_compiled_code(backend):
    """Compiled code that runs again is ended by an exception of the checkpoint's, as soon as all is there: not begun anew"""
    plain, compiled = (by_hooks(nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3))) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    f = bytejit.compile(compiled, backend=backend)
    for n in (3, 5, 7, 3):
        xs = [torch.linspace(-1, 1, 3 * n).view(n, 3).requires_grad_() for _ in range(2)]
        for g, x in zip((plain, f), xs):
            g(x).square().sum().backward()
        torch.testing.assert_close(xs[1].grad, xs[0].grad)
    for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert not [reason for reason in bytejit.counters["fallbacks"] if "raised" in reason]
