# ruff: noqa - the programs are as users write them
"""Dense programs of many domains: what they found was wrong or compiled anew"""

import torch
from torch import nn

from .harness import F, Spec, case, program


@case(F(4, dtype=torch.complex64), F(4))
def test_lazily_conjugated(z, x):
    """Whether what the function makes is conjugated or negated when it is read"""
    y = z.conj()
    made = y.is_conj(), y.imag.is_neg(), torch.is_conj(z), y.resolve_conj().is_conj(), x.is_conj(), (x + 1).is_conj()
    return made, y @ z, x.is_neg(), z.mH.is_conj() if z.dim() > 1 else torch.is_neg(x * 2)


def rows(*shape, grad=False):
    """A tensor with one more row in each call."""
    return Spec(lambda r: r.f(r.call + 2, *shape, grad=grad))


@program(rows(3), calls=6, total=2)
def test_adversarial_inputs():
    """The gradient of an input of changing size, set by a backward pass in the function"""
    w = nn.Parameter(torch.eye(3))

    def f(x):
        adv = x.clone().detach().requires_grad_(True)
        for _ in range(2):
            torch.tanh(adv @ w).pow(2).mean().backward(inputs=[adv])
            with torch.no_grad():
                adv.add_(adv.grad.sign(), alpha=0.1)
            adv.grad = None
        return adv.detach()

    return f


@program(rows(3, grad=True), calls=6, total=2, drive=lambda f, x: (f(x), x.grad))
def test_leaves_of_changing_size():
    """A backward pass to an argument of changing size"""
    w = nn.Parameter(torch.eye(3))

    def f(x):
        y = torch.tanh(x @ w)
        loss = (y[1:] - y[:-1]).pow(2).mean() + x.norm()
        loss.backward()
        grad, w.grad = w.grad, None
        return loss.detach(), grad

    return f


@case(F(3, 2), Spec(lambda r: r.i(0, 3, 0 if r.call else 4)), backend="inductor", tol=(1e-5, 1e-6))
def test_refused_reductions_and_classes(x, i):
    """Reducing no dimension, and classes counted as none, are errors of torch's that its shape functions do not know"""
    said = []
    for call in (lambda: x.logsumexp(()), lambda: torch.nn.functional.one_hot(i, 0), lambda: torch.logsumexp(x.sum(), ())):
        try:
            said.append(call())
        except RuntimeError as e:
            said.append(str(e))
    return said
