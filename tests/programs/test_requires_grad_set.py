"""`requires_grad`, `data` and memory of tensors that a function sets behind their use: histories and gradients are eager's"""

import pytest
import torch

import bytejit

BACKENDS = pytest.mark.parametrize("backend", ["eager", "inductor"])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("parametrized", [False, True])
def test_a_parameter_gets_other_memory_before_the_backward_pass(parametrized, backend):
    """`set_` gives it another accumulator: its gradient is still added to, `torch.autograd.grad` finds it unused"""

    def stepped(x, module, pass_back):
        y = x @ module.weight.T
        if parametrized:
            module.weight = torch.eye(4)
        else:
            with torch.no_grad():
                module.weight.set_(torch.eye(4))
        return y.detach(), pass_back(y.sum(), module)

    def accumulated(loss, module):
        loss.backward()

    def asked(loss, module):
        return torch.autograd.grad(loss, next(module.parameters()))

    class Symmetric(torch.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

        def right_inverse(self, x):
            return x.triu()

    def build():
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 4, bias=False)
        if parametrized:
            torch.nn.utils.parametrize.register_parametrization(module, "weight", Symmetric())
        return module

    for pass_back in (accumulated, asked):
        results = []
        for f in (stepped, bytejit.compile(stepped, backend=backend)):
            module = build()
            try:
                found = f(torch.ones(3, 4), module, pass_back)[0]
            except RuntimeError as e:
                found = str(e)
            weight = next(module.parameters())
            results.append((found, weight.detach(), weight.grad))
        torch.testing.assert_close(*results) if pass_back is accumulated else None
        assert str(results[0]) == str(results[1])


def test_history_of_a_parameter_that_got_other_memory_leaves():
    """What was computed from it before the `set_` goes on outside of the region"""

    def f(x, p):
        y = x * p
        with torch.no_grad():
            p.set_(x.clone())
        y.sum().backward(retain_graph=True)
        print("a break")
        return y

    results = []
    for g in (f, bytejit.compile(f, backend="aot_eager")):
        p = torch.nn.Parameter(torch.ones(3))
        g(torch.arange(3.0), p).sum().backward()
        results.append((p.detach(), p.grad))
    torch.testing.assert_close(*results)


@BACKENDS
def test_requires_grad_taken_off_and_data_set(backend):
    """A module frozen and cast behind its use: what it returned has its history"""
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 3)

        def f(x):
            y = module(x)
            module.requires_grad_(False).float()
            return y

        y = (bytejit.compile(f, backend=backend) if compiles else f)(torch.ones(2, 3))
        module.requires_grad_(True)
        y.sum().backward()
        results.append((y, *(p.grad for p in module.parameters())))
    torch.testing.assert_close(*results)


def set_behind_its_use(x, p, q):
    q.requires_grad = True
    r = q * 2
    r.requires_grad = True
    return r


def made_a_leaf(x, p, q):
    r = p * 2
    print("a break")
    r.detach_()
    r.requires_grad_(True)
    return x, r


def followed_for_a_while(x, p, q):
    q.requires_grad_()
    y = x * 2 + q
    q.detach_()
    print("a break")
    return y * 2, q


def detached_behind_its_data(x, p, q):
    q.requires_grad_(True)
    q.data = x.clone()
    q.detach_()
    return x + q, q


def frozen_and_thawed(x, p, q):
    y = x * p
    p.requires_grad_(False)
    z = x * p
    p.requires_grad_(True)
    q.data = p.detach()
    return y, z


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "f", [set_behind_its_use, made_a_leaf, followed_for_a_while, detached_behind_its_data, frozen_and_thawed]
)
def test_requires_grad_set_in_the_function(f, backend):
    """Which tensors have a history, which are leaves, and whose gradients come; the error for what is no leaf"""
    seen = []
    for g in (f, bytejit.compile(f, backend=backend)):
        for _ in range(2):
            p, q, x = torch.nn.Parameter(torch.ones(3)), torch.ones(3), torch.arange(3.0)
            try:
                results = g(x, p, q)
            except RuntimeError as e:
                seen.append((str(e), q.requires_grad))
                continue
            flags = [(t.requires_grad, t.is_leaf) for t in (*results, x, p, q)]
            if any(t.requires_grad for t in results):
                sum(t.sum() for t in results if t.requires_grad).backward()
            seen.append((flags, [t.grad for t in (p, q) if t.is_leaf]))
    assert str(seen[:2]) == str(seen[2:])
