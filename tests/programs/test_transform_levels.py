# ruff: noqa - the programs are as users write them
"""What a level of torch.func says of tensors, and which rules of an autograd function it asks"""

import pytest
import torch
from torch.func import grad, jvp, vmap

from .harness import F, check, program


class Plain(torch.autograd.Function):
    """Neither setup_context nor rules"""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


class Split(torch.autograd.Function):
    """No rules"""

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * 7


class Mapped(Split):
    """A rule for vmap that says otherwise than the forward"""

    @staticmethod
    def vmap(info, dims, x):
        print("mapped", info.batch_size, info.randomness, dims)
        return Mapped.apply(x) + 1, dims[0]


class Generated(Split):
    generate_vmap_rule = True


class Pushed(Generated):
    """A rule for jvp that says otherwise than the forward"""

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 50


class Both(Generated):
    @staticmethod
    def vmap(info, dims, x):
        return Both.apply(x), 0


TRANSFORMS = {
    "vmap": lambda f, x: vmap(f, in_dims=1, out_dims=1)(x),
    "vmap_of_a_constant": lambda f, x: vmap(lambda p: f(torch.ones(2)) + p)(x),
    "grad": lambda f, x: grad(lambda p: f(p).sum())(x),
    "vmap_grad": lambda f, x: vmap(grad(lambda p: f(p).sum()))(x),
    "grad_vmap": lambda f, x: grad(lambda p: vmap(f)(p).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("cls", [Plain, Split, Mapped, Generated, Pushed, Both])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_autograd_functions_by_their_rules(cls, name):
    """The rule for the level, or torch's error where there is none; not what the forward's operations would make"""
    check(lambda x: TRANSFORMS[name](cls.apply, x), F(2, 2, grad=cls is Generated), calls=1)


ASKED = {
    "its own": lambda p, x: (p.requires_grad, p.is_leaf, p.grad_fn is None),
    "of a result": lambda p, x: ((p * 2).requires_grad, (p * 2).is_leaf, (p * 2).grad_fn is None, p.detach().requires_grad),
    "of a view": lambda p, x: (p.view(-1).requires_grad, p.clone().is_leaf),
    "of one from outside": lambda p, x: (x.requires_grad, x.is_leaf),
    "of what is made of one from outside": lambda p, x: ((x * 2).requires_grad, (x[0, 0] * p).requires_grad),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("name", ["vmap", "vmap_grad", "grad_vmap", "jvp"])
def test_what_a_level_says_of_its_tensors(asked, name):
    """Whether a tensor requires gradients, and what made it"""

    def f(x):
        said = []

        def inner(p):
            said.append(asked(p, x))
            return p.sum() * (1 + sum(v is True for v in said[-1]))

        return TRANSFORMS[name](inner, x), said

    check(f, F(2, 2, grad=True), calls=1)


@program(F(3, grad=True), graphs=1)
def test_a_level_of_gradients_knows_its_own():
    """In one graph where the innermost level made the history"""

    def f(x):
        return grad(lambda p: (p * 2).sum() * (3 if (p * 2).requires_grad and not (p * 2).is_leaf else 5))(x)

    return f


@pytest.mark.parametrize("name", ["vmap", "grad", "jvp"])
def test_backward_is_refused(name):
    """`Tensor.backward` within a transform, as torch refuses it"""

    def of_its_own(p):
        p.sum().backward()
        return p.sum()

    def of_another(p):
        w = torch.ones(2, requires_grad=True)
        (w * 2).sum().backward()
        return p.sum()

    for f in (of_its_own, of_another):
        check(lambda x: TRANSFORMS[name](f, x), F(2, 2), calls=1)
