# ruff: noqa - the programs are as users write them
"""`tensor._version`: what says whether a tensor was written since"""

import copy

import pytest
import torch
from torch import nn

from .harness import F, Spec, Turn, case, check, program


@program(F(4), calls=5, graphs=1)
def test_cache_by_version():
    """What was computed of weights is kept until they are written"""
    w, kept = torch.ones(4), {}
    n = [0]

    def f(x):
        if kept.get("version") != w._version:
            kept["version"], kept["value"] = w._version, w * 2
        return x * kept["value"]

    def between():
        n[0] += 1
        if n[0] % 2:
            w.add_(1)
        return kept["version"], w._version

    return f, between


def writes(x, n):
    before = x._version
    y = x.sin()
    for _ in range(n):
        x.add_(1)
    return y + x, before


test_read_before_a_write = case(F(4), Turn(1, 3, 2), calls=6)(writes)
test_read_before_a_write.__doc__ = "Read before the region writes it: it is the number of then"
test_read_before_a_write_inductor = case(F(4), Turn(1, 3, 2), calls=6, backend="inductor")(writes)
test_read_before_a_write_inductor.__doc__ = "The same, compiled to kernels"


@case(F(4), calls=3, breaks=True)
def test_read_behind_a_write(x):
    """Read behind a write, of the tensor itself, of a view of it, of what is made in the region"""
    view = x[:2]
    a = x._version
    view.mul_(2)
    y = x + 1
    y.add_(1)
    return a, x._version, view._version, y._version, x.detach()._version, y


@program(F(4), calls=4)
def test_of_aliases():
    """Two tensors that share memory, of which one is written"""
    base = torch.zeros(4)
    views = [base[:2], base[2:], torch.zeros(2)]
    n = [0]

    def f(x, a, b):
        before = a._version, b._version
        a.add_(1)
        return x + a.sum() + b.sum(), before, b._version

    def one(x):
        n[0] += 1
        return made(x, views[0], views[n[0] % 3])

    made = f
    return one, lambda: [v._version for v in views]


@program(F(4), calls=3)
def test_in_a_step():
    """Read before and behind an optimizer's step"""
    torch.manual_seed(0)
    m = nn.Linear(4, 1)
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def f(x):
        before = m.weight._version
        opt.zero_grad()
        loss = m(x).sum()
        loss.backward()
        opt.step()
        return loss.detach(), m.weight._version - before

    return f


@case(F(4))
def test_of_an_inference_tensor(x):
    """It has none"""
    with torch.inference_mode():
        y = x + 1
    try:
        return y._version
    except RuntimeError as e:
        return str(e)[:30]


@program(F(4), calls=2)
def test_version_behind_a_refused_write():
    """Writes that torch refuses are not counted, nor what undoes them"""
    t = torch.zeros(3)

    def f(x):
        before = t._version
        for write in (lambda: t.add_(x), lambda: t.copy_(x), lambda: t.index_fill_(0, torch.tensor([7]), 1.0)):
            try:
                write()
            except (RuntimeError, IndexError):
                pass
        return t._version - before, x * 2

    return f, lambda: (t, t._version)


def expanded_write(x):
    y = x * 2
    try:
        x.add_(1)
    except RuntimeError as e:
        return y, str(e)
    return y, x


shared = Spec(lambda r: r.f(1, 4).expand(3, 4) if r.call < 2 else r.f(3, 4))
test_expanded_input_is_written = case(shared, calls=3)(expanded_write)
test_expanded_input_is_written.__doc__ = "A write into expanded memory is refused, and the program goes on"
test_expanded_input_is_written_inductor = case(shared, calls=3, backend="inductor")(expanded_write)
test_expanded_input_is_written_inductor.__doc__ = "The same, compiled to kernels"


@program(F(4), calls=3, backend="inductor", tol=(1e-5, 1e-6))
def test_view_made_without_gradients_is_written_there():
    """A parameter's view that is made and written without gradients, then a write of the parameter that is refused"""
    w, log = nn.Parameter(torch.ones(1)), []

    def f(x):
        with torch.no_grad():
            w.add_(x.mean())
            v = w.view(1)
            v.mul_(2)
        y = (x * w).sum()
        try:
            w.add_(1)
        except RuntimeError as e:
            log.append(str(e))
        return y, w._version, v.requires_grad

    return f, lambda: (w, log)


def view_and_base(call):
    """A view of a result or of a parameter; what it views is then written in calls 0 and 2."""
    kept = call % 4 < 2
    w = torch.ones(4, requires_grad=True) if kept else torch.ones(4, requires_grad=True) * 2
    with torch.set_grad_enabled(not kept):
        view = w.view(2, 2) if kept else w.chunk(2)[0]
        if call % 2 == 0:
            w.add_(1)
    return view


def call_with_view(f, x, call):
    return f(x, view_and_base(call))


@case(F(4), Turn(0, 1, 2, 3), calls=5, drive=call_with_view, backend="inductor", tol=(1e-5, 1e-6))
def test_views_that_autograd_refuses_are_given(x, v):
    """What asks only for shapes goes on, what uses the view raises"""
    y = x + v.shape[0]
    try:
        return y, (v * 2).sum()
    except RuntimeError as e:
        return y, str(e), v.requires_grad


@program(F(4, 4), calls=3, backend="inductor", tol=(1e-5, 1e-6))
def test_backward_beside_a_refused_view():
    """A training step that keeps a view of a weight, made and written without gradients"""
    w, kept = nn.Parameter(torch.ones(4, 4)), {}

    def f(x):
        with torch.no_grad():
            kept["view"] = w[1:3]
        with torch.no_grad():
            kept["view"].mul_(2).add_(x[1:3])
        y = (w * x).sum()
        y.backward()
        return y.detach(), kept["view"].detach(), kept["view"].requires_grad

    return f, lambda: (w, w._version)


def refused_uses(v, w):
    """All that asks for the history of a view."""
    yield lambda: v.is_leaf
    yield lambda: v.grad_fn
    yield lambda: v.retain_grad()
    yield lambda: v.register_hook(lambda g: g)
    yield lambda: v.register_post_accumulate_grad_hook(lambda p: None)
    yield lambda: setattr(v, "grad", torch.ones(4))
    yield lambda: v.sum().backward()
    yield lambda: v.backward(torch.ones(4))
    yield lambda: torch.autograd.grad(w.sum(), [v])
    yield lambda: w.sum().backward(inputs=[v])
    yield lambda: copy.deepcopy(v)
    yield lambda: v.requires_grad_() is v
    yield lambda: nn.Parameter(v).requires_grad


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("use", range(len([*refused_uses(None, None)])))
def test_each_use_of_a_refused_view(use, backend):
    """A view that the region itself has made so: each use raises as in eager"""
    w, log = nn.Parameter(torch.ones(2, 4)), []

    def f(x):
        with torch.no_grad():
            v = w[0]
            v.mul_(2)
        try:
            result = [*refused_uses(v, w)][use]()
        except RuntimeError as e:
            result = str(e)
        return x * 2, result if isinstance(result, (str, bool)) else type(result).__name__

    def g(x):
        log.append(f(x))
        return x + 1, log[-1]

    check(f, F(4), calls=2, backend=backend, tol=(1e-5, 1e-6))
    check(g, F(4), calls=2, backend=backend, tol=(1e-5, 1e-6))
