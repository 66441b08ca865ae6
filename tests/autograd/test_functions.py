"""autograd functions of the program's in compiled graphs: their own backward passes, traced."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bytejit
from tests.programs.test_autograd import Reverse, Reversible, Same, Split, Square

from .beside import BACKENDS, beside
from .test_partition import calls, parts_of

BOTH = pytest.mark.parametrize("backend", BACKENDS)
EPS = 0.5
NAMED: dict = {}


class Clip(torch.autograd.Function):
    """Not linear in the gradient; a context with attributes that are no tensors; a value of the forward's saved."""

    @staticmethod
    def forward(ctx, x, limit, name=None):
        ctx.limit, ctx.name, ctx.shape = limit, name, x.shape
        ctx.dirty, ctx.materialize = x > limit, False  # names that torch has no use for
        ctx.kept = (x * 3).sigmoid()
        return x.clamp(-limit, limit)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        assert grad.shape == ctx.shape and not ctx.materialize
        return grad.clamp(-ctx.limit, ctx.limit) * ctx.kept, None, None


class Ones(torch.autograd.Function):
    """Its gradient does not depend on the one that it is given."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return torch.ones_like(a) + b + 1


class Maybe(torch.autograd.Function):
    """Gradients that are not there are None."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return (a * 10 if a is not None else 0) + (b * 100 if b is not None else 0)


class Norm(torch.autograd.Function):
    """Reads a parameter that is no argument's gradient to give, and module-level functions."""

    @staticmethod
    def forward(ctx, x, w, flags):
        r = x.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = inner(g * w, x, r)
        if ctx.needs_input_grad[1]:
            gw = (g * x * r).sum(0)
        return gx, gw, None


class Turned(torch.autograd.Function):
    """Its result is transposed: so is the gradient that its backward pass is traced with."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 2).transpose(0, 1)

    @staticmethod
    def backward(ctx, grad):
        g = grad.clone().transpose(0, 1)
        g[1:] += g[:-1] * ctx.saved_tensors[0][1:]
        return g


def inner(g, x, r):
    return r * (g - x * r * r * (g * x).mean(-1, keepdim=True))


class Reads(torch.autograd.Function):
    """Looks at a global value in both passes."""

    @staticmethod
    def forward(ctx, x):
        return x * EPS

    @staticmethod
    def backward(ctx, g):
        return g * EPS


class Limits:
    lowest = 0.25


class ReadsLater(torch.autograd.Function):
    """Its backward pass looks at constants: a global, those of a class and of a dict, and pi."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(min=Limits.lowest) * EPS * math.pi + NAMED.get("shift", 0)


class Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = torch.rand_like(x) > 0.5
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask * torch.rand(())


class Half(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.to(x.dtype) @ w.t(), x.t() @ g


def data():
    return torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)


def back(f, *args):
    out = f(*args)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    return out


def amp(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Half.apply(x, w).float()


PROGRAMS = {
    "own gradient": lambda x, w: Square.apply(x @ w, 2.0) * 3,
    "two results": lambda x, w: Split.apply(x @ w, x)[0] + 1,
    "reversed": lambda x, w: Reverse.apply(x @ w, 0.5).sin() + Same.apply(w.sum() * x) * 2,
    "attributes": lambda x, w: Clip.apply(x @ w, 0.7, "name").cos(),
    "constant": lambda x, w: Ones.apply(x @ w)[0] * 2,
    "parameters": lambda x, w: Norm.apply(x, w[0], [1, 2]) + Norm.apply(x @ w, w[1].detach(), None),
    "a gradient in one place": lambda x, w: Turned.apply(x @ w).sum(),
    "a gradient row by row": lambda x, w: Turned.apply(x @ w).reshape(-1) * torch.arange(24.0),
    "a gradient of a part": lambda x, w: Turned.apply(x @ w)[1:].sin(),
    "a gradient of windows": lambda x, w: Turned.apply(x @ w).unfold(0, 2, 1).cos(),
    "numbers at random": lambda x, w: Noisy.apply(F.dropout(x @ w, 0.3)),
    "in a checkpoint": lambda x, w: checkpoint(lambda x: Square.apply(x @ w).sin(), x + 1, use_reentrant=False),
    "under no_grad": lambda x, w: x @ w + without(x, w),
    "autocast": amp,
}


def without(x, w):
    with torch.no_grad():
        return Square.apply(x @ w)


@BOTH
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend):
    beside(backend, PROGRAMS[name], data, back, tol=5e-2 if name == "autocast" else 1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_steps(name):
    def step(x, w):
        out = PROGRAMS[name](x, w)
        out.sum().backward()
        return out.detach()

    beside("aot_eager", step, data, lambda f, *args: f(*args), tol=5e-2 if name == "autocast" else 1e-5)


LEFT = {
    "a global value": lambda x, w: Reads.apply(x @ w),
    "a graph within": lambda x, w: Reversible.apply(torch.sin, x @ w),
    "gradients that are None": lambda x, w: Maybe.apply(x @ w)[0].sin(),
    "too few gradients": lambda x, w: Short.apply(x @ w, x),
    "a view that is returned": lambda x, w: Reverse.apply(w, 0.5),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name):
    beside("aot_eager", LEFT[name], data, back, torch_runs=1)


@BOTH
@pytest.mark.parametrize("function, runs", [(Ones, 2), (Maybe, 2)])
def test_an_output_that_is_not_used(function, runs, backend):
    """Its gradient is zeros for some functions, None for others."""
    beside(backend, lambda x, w: function.apply(x @ w), data, back, torch_runs=runs)


class Affine(torch.autograd.Function):
    """Two outputs. Its backward makes something of zeros."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x * w, x + w

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * x + 1 + second.sin(), first + second * 2 + 3


@pytest.mark.parametrize("used, through", [((2, 3), 0), ((2, 3, 4), 0), ((0, 1, 5), 2), ((2,), 2), ((4,), 2)])
def test_outputs_behind_and_beside_functions_that_are_not_used(used, through):
    """A compiled backward pass runs where each output of each function gets a gradient from an output that is used."""

    def program(x, w):
        first, second = Affine.apply(x, w)
        third, fourth = Affine.apply(first.sin(), x.cos())
        return first * 2, second.exp(), third + first, fourth * second, x.sin(), w * 2

    def drive(f, x, w):
        outputs = f(x, w)
        sum(outputs[i].sum() * (i + 1) for i in used).backward()

    beside("inductor", program, lambda: [torch.linspace(0.1, k, 4).requires_grad_() for k in (1, 2)], drive, torch_runs=through)


def test_a_value_that_changes_before_the_backward_pass():
    def drive(f, x, w):
        global EPS
        out = f(x, w)
        EPS *= 3
        out.sum().backward()
        EPS /= 3

    beside("aot_eager", lambda x, w: Reads.apply(x @ w) * 1, data, drive, torch_runs=1)


@BOTH
@pytest.mark.parametrize("change", ["nothing", "a global", "a class", "a dict", "a key"])
def test_what_a_backward_pass_looks_at(change, backend):
    """Compiled with what was there, and right where it is another by then"""

    def drive(f, x, w):
        global EPS
        out = f(x, w)
        kept = EPS, Limits.lowest, dict(NAMED)
        if change == "a global":
            EPS *= 3
        elif change == "a class":
            Limits.lowest = 0.75
        elif change == "a dict":
            NAMED["other"] = 3
        elif change == "a key":
            NAMED["shift"] = 2
        out.sum().backward()
        EPS, Limits.lowest = kept[:2]
        NAMED.clear()
        return out.detach()

    beside(backend, lambda x, w: ReadsLater.apply(x @ w).sin(), data, drive, torch_runs=None if change != "nothing" else 0)
    runs = {"nothing": 0, "a dict": 0}.get(change, 2)
    found = {k: n for k, n in bytejit.counters["fallbacks"].items() if "through torch" in k}
    assert sum(found.values()) == runs, found


def test_errors_of_versions():
    """A value that the function saved, written before the backward pass."""

    def drive(f, x, w):
        out = f(x, w)
        with torch.no_grad():
            w.mul_(2)
        out.sum().backward()

    beside("aot_eager", lambda x, w: Square.apply(w) + x[:4], data, drive)


def test_what_the_function_does_not_save_is_not_saved():
    x, w = torch.randn(6, 4), torch.randn(6, 4, requires_grad=True)
    parts = parts_of(lambda x, w: Clip.apply(x * w, 0.5), x, w)
    assert parts.saved <= 1 and calls(parts.backward).count("clamp") == 1, parts.summary()


def test_differentiated_twice():
    def drive(f, x, w):
        (g,) = torch.autograd.grad(f(x, w).sum(), w, create_graph=True)
        g.sum().backward()
        return g.detach()

    beside("aot_eager", lambda x, w: Square.apply(x @ w), data, drive, torch_runs=2)


def test_a_result_that_the_region_went_back_through() -> None:
    """An output of a function of the program's, whose backward pass ran in the region: its saved tensors are gone"""

    def f(x):
        y = Square.apply(x)
        return y, *torch.autograd.grad(y.sum(), x)

    x = torch.arange(3.0, requires_grad=True)
    for got, want in zip(bytejit.compile(f)(x), f(x)):
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad


class Calls(torch.autograd.Function):
    """Calls what it is given in both passes."""

    @staticmethod
    def forward(ctx, function, x, by):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x) * by

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            made = ctx.function(x)
        return None, *torch.autograd.grad(made, x, grad), None


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = torch.nn.Linear(3, 3), 2.0

    def curve(self, x):
        return self.inner(x).tanh() * self.scale

    def forward(self, x, shift=3):
        x = Calls.apply(self.curve, x, 1.0) + Calls.apply(lambda v, by=shift: self.curve(v) + by, x, 0.5)
        return Calls.apply(self.inner, x, 2.0) + Calls.apply(rounded, x, 1.0)


def rounded(x):
    return x.sin() * EPS


@BOTH
def test_functions_as_arguments(backend):
    """Bound methods, functions that the region makes, modules"""
    layer = Layer()
    compiled = bytejit.compile(layer, backend=backend, fullgraph=True)
    for scale in (2.0, 3.0):
        layer.scale = scale
        found = []
        for f in (layer, compiled):
            x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
            f(x).sum().backward()
            found += [(f(x).detach(), x.grad)]
        torch.testing.assert_close(*found)


def test_functions_as_arguments_that_hold_what_the_region_makes():
    def counts(x):
        seen = []
        made = Calls.apply(lambda v: (seen.append(1), v * 2)[1], x, 1.0)
        return made, seen

    x = torch.ones(3, requires_grad=True)
    compiled = bytejit.compile(counts, backend="eager")
    assert len(compiled(x)[1]) == len(compiled(x)[1]) == len(counts(x)[1]) == 1


def test_a_module_that_is_an_argument_is_not_kept_alive():
    layer = Layer()
    compiled = bytejit.compile(Layer.forward, backend="eager", fullgraph=True)
    compiled(layer, torch.ones(2, 3, requires_grad=True))
    seen = weakref.ref(layer)
    del layer
    gc.collect()
    assert seen() is None
