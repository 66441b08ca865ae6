"""Outputs computed from one another in functions that run a backward pass themselves: every gradient arrives."""

from __future__ import annotations

import pytest
import torch

import bytejit

from .beside import BACKENDS, beside, places

nn = torch.nn
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def retained(m, x):
    h = m(x)
    loss = (h * 2).sum()
    loss.backward(retain_graph=True)
    return h, loss


def shifted(m, x):  # its history holds no tensors: nothing of it is freed
    h = x + 1
    v = h.sum(0)
    (v.sum() + h.mean()).backward()
    return h, v


def flipped(m, x):
    h = x.flip(0)
    v = h.sum(1)
    (h.square().sum() + v.square().sum()).backward()
    return h, v, x.grad * 2


def several(m, x):
    a, b = (x * 2).split(2, 1)
    h = a.exp()
    v = h * b
    v.sum().backward(retain_graph=True)
    (h.sum() + v.mean()).backward(retain_graph=True)
    return h, v, x.grad * 2


def between(m, x):
    h = m(x) + 1
    v = h.square().sum(0)
    (g,) = torch.autograd.grad(v.sum(), h, retain_graph=True)
    (into,) = torch.autograd.grad(v.sum() + h.mean(), x, retain_graph=True)
    return h, v, g.sin(), into + 1


def penalty(m, x):
    h = m(x).tanh()
    (g,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    loss = ((g.norm(dim=1) - 1) ** 2).mean()
    loss.backward(retain_graph=True)
    return h, loss


def used_afterwards(m, x):
    h = m(x).sigmoid()
    v = (h * h).sum(1)
    v.mean().backward(retain_graph=True)
    return h, v


@pytest.mark.parametrize("f", [retained, shifted, flipped, several, between, penalty, used_afterwards], ids=lambda f: f.__name__)
@pytest.mark.parametrize("again", [False, True])
def test_a_pass_within_and_dependent_outputs(backend, f, again):
    def drive(f, m, x):
        outs = f(m, x)
        if again:
            sum(t.square().sum() for t in outs if t.requires_grad and t.grad_fn is not None).backward()
        return outs, x.grad, [p.grad for p in m.parameters()]

    if again and f in (shifted, flipped):
        pytest.skip("its sums are freed")
    runs = None if f in (shifted, flipped, penalty) else 0
    beside(backend, f, lambda: (nn.Linear(4, 4), leaf(3, 4)), drive, torch_runs=runs, strides=places)


def test_an_index_made_behind_the_cut(backend):
    """A part of a tensor is no single result of a call with several"""

    def f(x):
        h = x.sin()
        i = (h.sum(1) * 10).long() % 3
        return h, h[i], h[:, i]

    x = leaf(3, 4)
    for want, got in zip(f(x), bytejit.compile(f, backend=backend)(x), strict=True):
        torch.testing.assert_close(want, got)


@pytest.mark.parametrize("anomaly", [False, True])
def test_each_part_has_the_casts_of_the_block_around_it(backend: str, anomaly: bool) -> None:
    """Autocast that the function itself turns on, and off again in the last part"""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x.exp()
            v = h @ h
            with torch.autocast("cpu", enabled=False):
                w = h @ x
            u = v @ h
        return h, v, w, u, h @ x

    def run(f: object) -> list:
        x = (torch.arange(9.0).reshape(3, 3) / 9).requires_grad_()
        with torch.autograd.set_detect_anomaly(anomaly):
            made = f(x)
            sum(t.float().square().sum() for t in made).backward()
        return [*made, x.grad]

    compiled = bytejit.compile(f, backend=backend)
    for ours, plain in zip(run(compiled), run(f)):
        assert ours.dtype is plain.dtype
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
