"""Inputs that get another shape, other strides or more memory within a graph, compiled to kernels"""

import warnings

import pytest
import torch

import bytejit

from .harness import Rand, check

CHANGES = {
    "resize_": lambda q: q.resize_(20, 3).fill_(3),
    "resize_ to less": lambda q: q.resize_(2).fill_(3),
    "resize_ the same": lambda q: q.resize_(2, 3).fill_(3),
    "resize_as_": lambda q: q.resize_as_(torch.empty(7, 5)).fill_(3),
    "out=": lambda q: torch.arange(12.0, out=q),
    "out= of less": lambda q: torch.add(torch.ones(3), 1, out=q),
    "set_": lambda q: q.set_(torch.arange(30.0).view(6, 5)),
    "t_": lambda q: q.t_(),
    "transpose_": lambda q: q.transpose_(0, 1),
    "unsqueeze_": lambda q: q.unsqueeze_(1),
    "squeeze_": lambda q: q.squeeze_(),
    "as_strided_": lambda q: q.as_strided_((2, 2), (1, 2)),
    "resize_, transpose_": lambda q: (q.resize_(2, 2).fill_(3), q.transpose_(0, 1))[1],
    "unsqueeze_, set_, squeeze_": lambda q: (q.unsqueeze_(0), q.set_(torch.ones(1, 6)), q.squeeze_(0))[2],
    "data": lambda q: setattr(q, "data", torch.ones(9, 4)),
}
USES = {
    "read": lambda q, x: q.sum() + x,
    "written": lambda q, x: (q.fill_(2), x + 1)[1],
    "returned": lambda q, x: (q, q * 2, x + 1),
    "viewed": lambda q, x: (q.flatten() + 1, q.reshape(-1)[:2].add_(1) if q.numel() > 1 else q, x),
}
LIKE = {
    "plain": lambda r: r.f(2, 3),
    "with a size of 1": lambda r: r.f(2, 1, 3)[:, :, :1].clone(),
    "a view": lambda r: r.f(4, 3)[1:3],
    "empty": lambda r: r.f(0),
}


@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("change", CHANGES)
def test_an_input_gets_another_look(change: str, like: str) -> None:
    """resize_, out=, t_... of an input: memory past its end is never written"""

    def make(use: str):
        def f(q, x):
            with_warnings = CHANGES[change](q)
            made = USES[use](q, x)
            return made, with_warnings if isinstance(with_warnings, torch.Tensor) else None, q.shape, q.stride()

        return f

    def args(r: Rand) -> tuple:
        return LIKE[like](r), r.f(3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for use in USES:
            check(make(use), args=args, backend="inductor", calls=2, tol=(1e-6, 1e-6))


MADE = {
    "made": lambda q: (q + 1,),
    "a view of what is made": lambda q: (lambda b: (b[1:], b))(q + 1),
    "a view beside": lambda q: (lambda b: (b, b[:, 1]))(q + 1),
    "a split": lambda q: (q + 1).split(1)[::-1],
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_graph_made_gets_another_look(change: str, made: str) -> None:
    """Views that share its memory see what is written"""

    def f(q, x):
        parts = MADE[made](q)
        back = CHANGES[change](parts[0])
        return parts, parts[-1] * 2, back if isinstance(back, torch.Tensor) else None, parts[0].shape, parts[0].sum() + x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(f, args=lambda r: (r.f(2, 3), r.f(3)), backend="inductor", calls=2, tol=(1e-6, 1e-6))


def saliency(x):
    x.requires_grad_()
    (x * x).sum().backward()
    return x.grad


def by_attribute(x):
    x.requires_grad = True
    return x.detach() + 1


def switched_off(x):
    x.requires_grad_(False)
    return x * 2


def there_and_back(x):
    x.requires_grad_(not x.requires_grad)
    y = x.detach() * 2
    x.requires_grad_(not x.requires_grad)
    return y


def penalty(x):
    x = x.requires_grad_(True)
    (slope,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    loss = (slope.norm() - 1).square()
    loss.backward()
    return loss, x.grad


def tracked_result(x):
    x.requires_grad_()
    return x * 2, x


@pytest.mark.parametrize("backend", ["eager", "inductor", "aot_eager"])
@pytest.mark.parametrize("program", [saliency, by_attribute, switched_off, there_and_back, penalty, tracked_result])
def test_an_input_requires_gradients_from_then_on(program, backend: str) -> None:
    """requires_grad_ of an input is seen by the caller, whatever runs the graph"""
    for grad in (False, True):
        check(program, args=lambda r, grad=grad: (r.f(2, 3, grad=grad),), backend=backend, calls=3, tol=(1e-5, 1e-6))


def preconditioned(grad, left, right):
    """As Shampoo's step: the gradient is turned in place, and stays so"""
    shape = grad.size()
    for d, factor in enumerate((left, right)):
        grad = grad.transpose_(0, d).contiguous()
        turned = grad.size()
        grad = grad.view(grad.size(0), -1)
        factor.add_(grad @ grad.t())
        grad = (grad.t() @ factor).view(shape) if d == 1 else (factor @ grad).view(turned)
    return grad


def written_too(q, left, right):
    q.t_().mul_(2)
    first = q[0]
    q.unsqueeze_(1)
    return q, first, q.add_(left.sum())


@pytest.mark.parametrize("program", [preconditioned, written_too])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_reshaped_input_is_compiled(program, backend: str) -> None:
    """torch reshapes the input behind the graph, which computes with a view of it"""
    bytejit.counters.clear()
    check(program, args=lambda r: (r.f(3, 4), r.f(3, 3), r.f(4, 4)), backend=backend, calls=2, tol=(1e-5, 1e-5))
    assert not bytejit.counters["fallbacks"]


TOLD = {
    "detach_": lambda q: q.detach_(),
    "requires_grad_": lambda q: q.requires_grad_(False),
    "torch.detach_": lambda q: torch.detach_(q),
}


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.cxx), "aot_eager"])
@pytest.mark.parametrize("order", ["before", "behind", "both"])
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("change", ["t_", "transpose_", "unsqueeze_", "squeeze_", "as_strided_"])
def test_an_input_is_told_of_autograd_besides(change: str, told: str, order: str, backend: str) -> None:
    """What has no gradients is detached before or behind it gets another look: no fault, and the same tensor comes back."""

    def f(q, x):
        if order != "behind":
            TOLD[told](q)
        CHANGES[change](q)
        other = TOLD[told](q) if order != "before" else q
        return other, q * 2, x + 1

    compiled = bytejit.compile(f, backend=backend)
    for n in range(2):
        q, x = torch.arange(6.0).view(2, 3) + n, torch.ones(3)
        p = q.clone()
        expected, found = f(q, x), compiled(p, x)
        assert found[0] is p and p.shape == q.shape and p.stride() == q.stride() and not p.requires_grad
        assert all(map(torch.equal, expected, found)) and p._version == q._version
