"""Compiled graphs with gradients beside eager: kinds of outputs and inputs, and what a program may do around them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

import bytejit

from .beside import BACKENDS, beside

nn = torch.nn
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def back(f, *args):
    """A step: the sum of squares of all results that have gradients, backward."""
    outs = f(*args)
    loss = sum(t.abs().square().sum() for t in (outs if isinstance(outs, tuple) else (outs,)) if wants(t))
    loss.backward()
    return outs


def wants(t: object) -> bool:
    return isinstance(t, torch.Tensor) and t.requires_grad


# ---- modules -----------------------------------------------------------------------------------------------------------
MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), (5, 4)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5)), (6, 4)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        (2, 3, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "lstm": (lambda: nn.LSTM(4, 5, batch_first=True), (2, 3, 4)),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.LayerNorm(6)), (2, 4, 6)),
    "in place": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), (3, 4)),
    "in place, wrong": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Hardswish(inplace=True)), (3, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name, backend):
    make, shape = MODULES[name]
    m = make()
    call = m.forward.__func__

    def first(m, x):
        out = call(m, x)
        return out[0] if isinstance(out, tuple) else out

    beside(backend, first, lambda: (make(), torch.randn(shape)), back, torch_runs=name == "in place, wrong")


def test_embedding(backend):
    def f(table, head, ids):
        return head(table(ids).mean(1)).log_softmax(-1)

    ids = torch.tensor([[1, 2, 2], [0, 1, 5]])
    beside(backend, f, lambda: (nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 3), ids), back)


# ---- outputs -----------------------------------------------------------------------------------------------------------
def test_views_of_inputs_and_the_inputs_themselves(backend):
    def f(x, w):
        y = x * w
        return y, w, w.t(), w.detach(), x[1:], y > 0

    beside(backend, f, lambda: (torch.randn(3, 3), leaf(3, 3)), back)


def test_outputs_in_one_memory(backend):
    def f(x, w):
        y = x * w
        a, b = y.chunk(2)
        return a, b, y.view(-1), y.detach()

    beside(backend, f, lambda: (torch.randn(4, 3), leaf(4, 3)), back)


def test_changes_of_outputs_in_place(backend):
    def drive(f, x, w):
        a, b = f(x, w)
        b.mul_(2)
        a.add_(1)
        (a * b).sum().backward()
        return a, b

    beside(backend, lambda x, w: (x * w, (x + w).view(-1)), lambda: (torch.randn(4), leaf(4)), drive)


def test_outputs_without_gradients(backend):
    def f(x, w):
        with torch.no_grad():
            y = x * w
        values, places = (w * 2).max(-1)
        return values, places, y, (w.detach() * x).long(), 3, x.shape[0]

    beside(backend, f, lambda: (torch.randn(4, 3), leaf(4, 3)), back)


def test_one_output_twice(backend):
    def f(w):
        y = w.sin()
        return y, y, w.cos()

    beside(backend, f, lambda: (leaf(4),), lambda f, w: [t := f(w), t[0] is t[1], (t[0] * t[1] * t[2]).sum().backward()])


def test_outputs_computed_from_outputs(backend):
    """The program goes back from one to the other, and sees its gradient."""

    def f(m, x):
        first = m(x)
        second = (first.relu() + x) * 2
        with torch.no_grad():
            largest = second.max()
        a, b = (second @ m.weight).chunk(2, -1)
        return first, second, a.sin() + b + largest, largest, 3

    def drive(f, m, x):
        first, second, third, largest, three = f(m, x)
        first.retain_grad()
        second.register_hook(lambda g: g * 2)
        (between,) = torch.autograd.grad(third.sum(), first, retain_graph=True)
        (third.square().sum() + first.sum()).backward()
        return between, first.grad, largest, three

    beside(backend, f, lambda: (nn.Linear(4, 4), torch.randn(3, 4)), drive)


def test_logits_and_loss(backend):
    def f(m, x, y):
        logits = m(x)
        return logits, nn.functional.cross_entropy(logits, y)

    def drive(f, m, x, y):
        logits, loss = f(m, x, y)
        loss.backward()
        return logits, loss

    beside(backend, f, lambda: (nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])), drive)


# ---- inputs ------------------------------------------------------------------------------------------------------------
def test_an_unused_input_gets_no_gradient(backend):
    beside(backend, lambda a, b, c: (a * 2, b.detach() * a), lambda: (leaf(3), leaf(3), leaf(3)), back)


def test_results_of_operations_before(backend):
    def drive(f, w):
        h = w * 2
        h.retain_grad()
        f(h, w).sum().backward()
        return h.grad

    beside(backend, lambda h, w: (h * w).exp(), lambda: (leaf(3),), drive)


def test_one_tensor_twice(backend):
    beside(backend, lambda a, b: a * b + a, lambda: (leaf(3),), lambda f, w: back(f, w, w))


def test_buffers_are_written(backend):
    def f(m, x):
        m.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        m.steps += 1
        return m.linear(x) * 2

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("steps", torch.tensor(0))

    beside(backend, f, lambda: (Mean(), torch.randn(4, 3)), back)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype, backend):
    def f(x, w):
        return (x @ w).tanh() * x if dtype is not torch.float16 else (x * w).tanh()

    tol = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-5
    beside(backend, f, lambda: (torch.randn(3, 3).to(dtype), leaf(3, 3, dtype=dtype)), back, tol=tol)


# ---- tangents ----------------------------------------------------------------------------------------------------------
def test_tangents_of_other_layouts(backend):
    def drive(f, x, w):
        y = f(x, w)
        y.t().contiguous().t().square().sum().backward(retain_graph=True)
        y.backward(torch.ones(4, 3).t(), retain_graph=True)
        y.backward(torch.ones(()).expand(3, 4))

    beside(backend, lambda x, w: (x * w).exp(), lambda: (torch.randn(3, 4), leaf(3, 4)), drive)


def test_only_some_outputs_are_used(backend):
    """Inputs of the others get None, not zeros."""
    f = lambda a, b, c: (a * c, (b * c).sin())  # noqa: E731
    beside(backend, f, lambda: (leaf(3), leaf(3), leaf(3)), lambda f, *args: f(*args)[0].sum().backward())
    beside(backend, f, lambda: (leaf(3), leaf(3), leaf(3)), lambda f, *args: f(*args)[1].sum().backward())


def test_what_is_not_used_makes_no_nan(backend):
    """The slope of an output that is not used may be infinite."""

    def f(x, w):
        x = x * w
        return x.log(), (x * 2).sin(), torch.stack([x, x.sqrt()])

    def drive(f, x, w):
        outs = f(x, w)
        outs[1].sum().backward(retain_graph=True)
        (outs[1] + outs[2][0]).sum().backward(retain_graph=True)
        outs[0][1:].sum().backward()

    beside(backend, f, lambda: (torch.tensor([0.0, 1.0, 2.0]), leaf(3)), drive)


def test_grad_of_some_inputs(backend):
    def drive(f, a, b):
        return torch.autograd.grad(f(a, b).sum(), b), torch.autograd.grad(f(a, b).sum(), (a, b))

    beside(backend, lambda a, b: a.sin() * b, lambda: (leaf(3), leaf(3)), drive)


# ---- what a program does around the two passes -------------------------------------------------------------------------
def test_backward_twice(backend):
    def again(f, w):
        y = f(w).sum()
        y.backward(retain_graph=True)
        y.backward()
        y.backward()

    beside(backend, lambda w: w.sin() * w, lambda: (leaf(3),), again)


def test_gradients_of_gradients(backend):
    def drive(f, x, w):
        (first,) = torch.autograd.grad(f(x, w).sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), w, create_graph=True)
        (second * w).sum().backward()
        return first, second

    def f(x, w):
        return torch.nn.functional.dropout((x @ w).sin(), 0.5) * w

    beside(backend, f, lambda: (torch.randn(3, 3), leaf(3, 3)), drive, torch_runs=2)


def test_gradients_of_gradients_of_views_with_buffers(backend):
    def drive(f, m, x):
        x = x.detach().requires_grad_()
        a, b = f(m, x)
        (first,) = torch.autograd.grad((a.sum() * b.sum()), x, create_graph=True)
        first.square().sum().backward()
        return first

    def f(m, x):
        y = m(x).sigmoid()
        return y[1:], y[:1]

    beside(backend, f, lambda: (nn.BatchNorm1d(3), torch.randn(4, 3)), drive, torch_runs=2)


def test_a_saved_tensor_is_written(backend):
    def drive(f, x, w):
        y = f(x, w)
        x.add_(1)
        y.sum().backward()

    beside(backend, lambda x, w: x * w, lambda: (torch.randn(3), leaf(3)), drive)


def test_a_saved_output_is_written(backend):
    def drive(f, w):
        y = f(w)
        y.mul_(2)
        y.sum().backward()

    beside(backend, lambda w: w.exp(), lambda: (leaf(3),), drive)


def test_what_is_not_saved_may_be_written(backend):
    def drive(f, x, w):
        y = f(x, w)
        x.add_(1)
        y.sum().backward()

    beside(backend, lambda x, w: (x + w) * 2, lambda: (torch.randn(3), leaf(3)), drive)


def test_backward_in_another_thread(backend):
    def drive(f, w):
        y = f(w).sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()

    beside(backend, lambda w: w.sin() * w, lambda: (leaf(3),), drive)


def test_backward_later_and_never(backend):
    def drive(f, w):
        first, second = f(w), f(w * 2)
        f(w)
        second.sum().backward()
        first.sum().backward()

    beside(backend, lambda w: w.sin() * w, lambda: (leaf(3),), drive)


def test_memory_is_let_go(backend):
    """After backward nothing that was saved lives on; without it, all goes with the result."""
    f = bytejit.compile(lambda x, w: (x * w).sin() * x, backend=backend)
    w = leaf(3)
    for backward in (True, False):
        x = torch.randn(3)
        y, seen = f(x, w), weakref.ref(x)
        if backward:
            y.sum().backward()
            del x
            assert seen() is None
        else:
            del x, y
            gc.collect()
            assert seen() is None


def test_saved_tensors_hooks(backend):
    def drive(f, x, w):
        with torch.autograd.graph.save_on_cpu():
            y = f(x, w)
        y.sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
            y = f(x, w)
        y.sum().backward()

    beside(backend, lambda x, w: (x * w).exp(), lambda: (torch.randn(3), leaf(3)), drive, torch_runs=2)


def test_anomaly_mode(backend):
    def drive(f, w):
        y = f(w)
        with torch.autograd.detect_anomaly(check_nan=True):
            y = f(w)
            y.sum().backward()

    beside(backend, lambda w: (w * 0).sqrt() / (w * 0), lambda: (leaf(3),), drive, torch_runs=2)


def test_compiled_in_anomaly_mode(backend):
    """One warning, about the program's operation"""

    def drive(f, w):
        with pytest.warns(UserWarning) as given, torch.autograd.set_detect_anomaly(True):
            with pytest.raises(RuntimeError, match="SqrtBackward0.*nan"):
                f(w).backward()
        assert ["SqrtBackward0" in str(each.message) for each in given] == [True], given.list
        return w

    drive(bytejit.compile(lambda w: (w / w).sqrt().sum(), backend=backend), torch.zeros(3, requires_grad=True))


def test_hooks_on_inputs_and_outputs(backend):
    seen = []

    def drive(f, w):
        handle = w.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        y = f(w)
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
        y.sum().backward()
        handle.remove()
        return y.grad, seen[-1]

    beside(backend, lambda w: w.sin() * w, lambda: (leaf(3),), drive)


def test_grad_mode_set_inside_and_around(backend):
    def inside(x, w):
        with torch.no_grad():
            scale = (x * w).mean()
        with torch.enable_grad():
            y = x * w * scale
        return y, y.detach() * w

    def drive(f, x, w):
        outs = back(f, x, w)
        with torch.no_grad():
            more = f(x, w)
            more[0].sum().backward()
            return outs, [t.requires_grad for t in more]

    beside(backend, inside, lambda: (torch.randn(3), leaf(3)), drive)


def test_sizes_that_change(backend):
    """The first other batch compiles once more, further ones do not."""
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    e = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    e.load_state_dict(m.state_dict())
    c = bytejit.compile(m, backend=backend)
    bytejit.counters["graphs"].clear()
    bytejit.counters["fallbacks"].clear()
    for n in (8, 6, 5, 9, 3):
        x = torch.randn(n, 4)
        for f in (e, c):
            f(x).square().mean().backward()
    assert sum(bytejit.counters["graphs"].values()) == 2, bytejit.counters["graphs"]
    assert not bytejit.counters["fallbacks"]
    for p, q in zip(e.parameters(), m.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


def test_no_recompile_over_steps(backend):
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    c, opt = bytejit.compile(m, backend=backend), torch.optim.Adam(m.parameters())
    bytejit.counters["graphs"].clear()
    for none in (True, False, True):
        opt.zero_grad(set_to_none=none)
        c(torch.randn(5, 4)).square().mean().backward()
        opt.step()
    assert sum(bytejit.counters["graphs"].values()) == 1


def test_autocast_around_and_inside(backend):
    def inside(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
        return y.float().log_softmax(-1)

    def around(f, m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(m, x)
        y.square().sum().backward()
        return y

    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), torch.randn(5, 8)

    beside(backend, inside, make, back, tol=6e-2)
    beside(backend, lambda m, x: m(x), make, around, tol=6e-2)


def test_gradients_of_what_is_made_inside(backend):
    """No input needs a gradient, and the output does."""
    for size in (1, 5):
        hann = torch.signal.windows.hann
        beside(backend, lambda x, n=size: hann(n, requires_grad=True), lambda: (torch.ones(2),), call, torch_runs=int(size > 1))


def call(f, *args):
    return f(*args)


def test_gradients_of_drawn_numbers(backend):
    """Of operators without a meta kernel of torch's; the Dirichlet distribution's is in an autograd function."""
    of = torch.distributions

    def f(w):
        rate = w.exp()
        return of.Gamma(rate, 2.0).rsample(), of.Beta(rate, rate + 1).rsample(), of.Dirichlet(rate).rsample()

    beside(backend, f, lambda: (leaf(3, 4),), back)


def test_pieces_that_are_no_views(backend):
    """unsafe_chunk: outputs in one memory, each with a gradient of its own."""

    def drive(f, w):
        a, b = f(w)
        (a.sin().sum() + b.cos().sum()).backward()
        return a, b

    beside(backend, lambda w: torch.unsafe_chunk(w * 2, 2), lambda: (leaf(4, 3),), drive)
