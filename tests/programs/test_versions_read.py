# ruff: noqa - the programs are as users write them
"""`tensor._version`: what says whether a tensor was written since"""

import torch
from torch import nn

from .harness import F, Turn, case, program


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
