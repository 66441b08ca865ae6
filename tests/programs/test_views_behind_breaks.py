# ruff: noqa - the programs are as users write them
"""Views made before a graph break and written behind it: what gradients flow into, and what autograd refuses"""

import pytest
import torch

from .harness import F, check


def brk():
    print("a break", end="")


def detached(x, w):
    h = x.detach()
    v, u = h[0:1], h[1:]
    brk()
    v.mul_(w)
    return h.sum(), u.sum(), v, x.sum()


def detached_twice(x, w):
    v, u = x.detach()[0:1], x.detach()[0:1]
    brk()
    v.mul_(w)
    return u.sum(), v, x.sum()


def detached_result(x, w):
    y = x + 1
    v, u = y.detach()[0], y[0]
    brk()
    u.mul_(w[0])
    return v.requires_grad, v.sum(), y.sum()


def detached_result_is_written(x, w):
    h = x * 2
    v, u = h.detach()[0], h[0]
    brk()
    v.mul_(w[0])
    return u.requires_grad, (u * 2).sum(), (h * 2).sum(), (v * 2).sum()


def data(x, w):
    h = x.data
    v, u = h[0:1], x.data[0]
    brk()
    v.mul_(w)
    return v, h.sum(), u.sum(), x.sum()


def beside_gradients(x, w):
    loss = (w * 2).sum()
    h = x.detach()
    v, u = h[0:1], h[1:]
    brk()
    v.mul_(w)
    return h.sum(), u.sum(), v, loss


def fresh_beside_gradients(x, w):
    loss = (w * 2).sum()
    h = x.detach() * 2
    v = h[0:1]
    brk()
    v.mul_(w)
    return h, v, loss


def made_without_gradients(x, w):
    with torch.no_grad():
        v = x[0:1]
    brk()
    v.mul_(w)
    return v, v.sum(), x


def made_without_gradients_beside(x, w):
    loss = (w * 2).sum()
    with torch.no_grad():
        h = w[0]
        u = (w * 2)[0]
        v = x[0:1]
    brk()
    u.mul_(w[0])
    v.mul_(w)
    return h.detach(), u, v, loss


def made_in_inference_mode(x, w):
    with torch.inference_mode():
        v = x[0:1]
    brk()
    v.mul_(w)
    return v, v.sum(), x


def written_in_inference_mode(x, w):
    with torch.inference_mode():
        i, v = x * 2, x.detach()[0]
    brk()
    v.mul_(2)
    return v, i.is_inference(), x


def made_together(x, w):
    v, u = x.chunk(2)
    brk()
    v.mul_(w)
    return x, v, x.sum()


def made_together_of_a_result(x, w):
    loss = (w * 2).sum()
    h = x.detach() * 2
    v, u = h.unbind(0)
    brk()
    v.mul_(w[0])
    return h, v, loss


def base_gets_gradients(x, w):
    h = x * 2
    v = h[0:1]
    brk()
    h.mul_(w.sum())
    return h, (v * 3).sum(), v.requires_grad, v.is_leaf, v.grad_fn is None


def view_gets_gradients(x, w):
    h = x * 2
    v, u = h[0:1], h[0]
    brk()
    v.mul_(w.sum())
    return v, (u * 3).sum(), u.requires_grad, h.requires_grad, u.is_leaf, h.grad_fn is None


def input_gets_gradients(x, w):
    before = x.grad_fn is None
    x.mul_(w)
    y = x.view(-1)
    y[0] = w[0, 0]
    return before, x.grad_fn is None, x.is_leaf, x.requires_grad, y.grad_fn is None


PROGRAMS = [
    detached,
    detached_twice,
    detached_result,
    detached_result_is_written,
    data,
    beside_gradients,
    fresh_beside_gradients,
    made_without_gradients,
    made_without_gradients_beside,
    made_in_inference_mode,
    written_in_inference_mode,
    made_together,
    made_together_of_a_result,
    base_gets_gradients,
    view_gets_gradients,
    input_gets_gradients,
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(f, grad, backend):
    """Results, gradients of each result, and what is refused"""

    def with_gradients(g, x, w):
        x = x.requires_grad_() * 1 if grad else x
        try:
            found = g(x, w)
        except RuntimeError as e:
            return str(e)
        wanted = [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]
        return found, [torch.autograd.grad(t.sum(), w, retain_graph=True, allow_unused=True) for t in wanted]

    check(f, F(2, 2), F(1, 2, grad=True), drive=with_gradients, backend=backend, tol=(1e-5, 1e-6))
