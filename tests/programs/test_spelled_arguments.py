# ruff: noqa - the programs are as users write them
"""Arguments that the text of a graph does not spell: classes, functions, modules; tensors in texts"""

import enum

import pytest
import torch

import bytejit

from .harness import F, check


class Kind(enum.Enum):
    A = 1


class Plain:
    pass


@bytejit.allow_in_graph
def scaled(x, kind):
    return x * {int: 2, len: 3, Plain: 4, torch: 5, Kind: 6, None: 7}.get(kind, 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kind):
        ctx.kind = kind
        return scaled(x, kind)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, ctx.kind) * 10, None


@pytest.mark.parametrize("kind", [int, bool, len, Plain, torch, Kind, None, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_classes_given_to_code_of_the_program(kind, backend):
    """Classes, functions and modules as arguments of a function allowed in graphs and of an autograd function"""
    check(lambda x: (scaled(x, kind), Scaled.apply(x, kind)), F(3, grad=True), backend=backend, drive=with_gradient)


def with_gradient(f, x):
    one, other = f(x)
    other.sum().backward()
    return one.detach(), other.detach(), x.grad


TYPES = [torch.DoubleTensor, torch.FloatTensor, torch.BoolTensor, "torch.LongTensor", torch.float64, None]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_tensor_cast_to_a_type(kind):
    """`x.type(t)` of a type of tensors, a name, a dtype"""
    check(lambda x: (x.type(kind), (x * 2).type(dtype=kind), x.type(x.type()) is x), F(3), graphs=1)


def refused(x, call):
    try:
        return call(x)
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)


REFUSED = {
    "type of int": lambda x: x.type(int),
    "type of float": lambda x: x.type(float),
    "type of a class": lambda x: x.type(torch.Tensor) is x,
    "to a type of tensors": lambda x: x.to(torch.DoubleTensor),
    "a dtype that is a type of tensors": lambda x: x.sum(dtype=torch.DoubleTensor),
    "an overload given a class": lambda x: torch.ops.aten.to.dtype(x, float),
    "a class added": lambda x: x + Plain,
    "a module added": lambda x: x + torch,
}


@pytest.mark.parametrize("name", REFUSED)
def test_classes_that_are_no_dtypes(name):
    """Classes where torch takes none: eager's errors"""
    check(lambda x: refused(x, REFUSED[name]), F(3))


def test_classes_that_are_dtypes():
    """Python's own types as dtypes"""
    check(
        lambda x: (x.to(int), x.sum(dtype=float), torch.full_like(x, 2, dtype=bool), torch.zeros(2, dtype=complex)),
        F(3),
        graphs=1,
    )


TEXTS = {
    "text": lambda x, n: "%s" % x,
    "a row": lambda x, n: "%s %d" % (x, n),
    "a number": lambda x, n: "%d %5.2f" % (n, n),
    "one number": lambda x, n: "%d" % n,
    "bytes": lambda x, n: b"%d" % n,
    "a dict": lambda x, n: "%(x)s" % {"x": x},
    "representation": lambda x, n: "%r" % x,
    "a width": lambda x, n: "%*d" % (n, 3),
    "none asked": lambda x, n: "none" % x,
    "operator.mod": lambda x, n: __import__("operator").mod("%s", x),
    "the method": lambda x, n: "%s".__mod__(x),
}


@pytest.mark.parametrize("name", TEXTS)
def test_tensors_put_into_texts(name):
    """`text % tensor`: the tensor's own text, of arguments and of what the function makes"""
    check(lambda x: refused(x, lambda x: (TEXTS[name](x, x.sum()), TEXTS[name](x * 2, (x * 2).sum()))), F(3))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_quantised_inside(backend):
    """Tensors that are quantised inside have a quantised dtype"""

    def f(x):
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        several = torch.quantize_per_tensor([x, x + 1], torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), torch.qint8)
        return q.dtype, q.is_quantized, q.int_repr(), q, [s.dtype for s in several], q.dequantize() + x

    before = bytejit.counters["fallbacks"].total()
    check(f, F(4), backend=backend)
    assert bytejit.counters["fallbacks"].total() == before
