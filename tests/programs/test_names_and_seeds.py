# ruff: noqa - the programs are as users write them
"""`dir`, what the system says of the process, and seeds of random numbers, in a compiled function"""

import dataclasses
import enum
import os
import random
import warnings

import numpy as np
import torch

import bytejit

from .harness import F, Turn, case, program


@program(F(4), calls=2, graphs=1)
def test_dir():
    """`dir` of instances made inside and outside, of classes, modules of torch, enumerations, classes with a __dir__"""

    class Base:
        z = 1

    class A(Base):
        __slots__ = ("u",)

        def __init__(self):
            self.q, self._h = 1, 2

    class Own:
        def __dir__(self):
            return ["b", "a", "c"]

    @dataclasses.dataclass
    class Data:
        n: int = 1

    a, layer = A(), torch.nn.Linear(2, 2)

    def f(x):
        b = A()
        b.new = 1
        names = [n for n in dir(layer) if not n.startswith("_")]
        return x * len(names), dir(a), dir(b), dir(A), dir(Own()), dir(Data()), dir(int), dir(object()), names

    return f


@program(F(4), calls=6)
def test_dir_of_what_changes():
    """Names that come and go between calls, of an instance, its class and a base"""

    class Base:
        pass

    class A(Base):
        pass

    a, n = A(), [0]

    def between(x):
        n[0] += 1
        if n[0] == 2:
            a.one = 1
        if n[0] == 3:
            Base.two = 2
        if n[0] == 4:
            A.three = 3
        if n[0] == 5:
            del a.one
        return x

    def f(x):
        return x + 1, [n for n in dir(a) if n[0] != "_"], "two" in dir(A)

    return lambda x: f(x), lambda: (between(0), [n for n in dir(a) if n[0] != "_"])


@case(F(4), Turn(1, 2), calls=4)
def test_dir_of_others(x, n):
    """Of classes that the region makes or changes, of constants, enumerations, modules, and without an argument"""

    class Made:
        a = 1

    class Kind(enum.Enum):
        A = 1

    Made.b = n
    return x + 1, dir(Made), dir(Made()), dir(5)[:3], dir(Kind), dir(Kind.A), "sin" in dir(torch), dir()


@case(F(4), graphs=1, calls=2)
def test_process(x):
    """os.getpid, os.cpu_count"""
    return x * 1, os.getpid(), os.cpu_count()


@case(F(4), Turn(3, 4, 5, 6), calls=6, graphs=None if torch.cuda.is_available() else 1)
def test_seeds(x, n):
    """A script's seeds, which change"""
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)
    torch.cuda.manual_seed(n)
    torch.cuda.manual_seed_all(n)
    return x + torch.rand(4)


@case(F(4), calls=3, graphs=1)
def test_seeds_between_draws(x):
    """Numbers drawn before and behind a seed, which the function returns"""
    a = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(4)
    return x + 1, a, random.random(), random.randint(0, 9), np.random.rand()


@case(F(4), calls=3, breaks=True)
def test_numbers_behind_a_seed(x):
    """Operations that use numbers drawn before and behind a seed"""
    y = x * random.random() + np.random.rand()
    random.seed(3)
    z = y * random.random()
    np.random.seed(5)
    return z + np.random.uniform(0.0, 2.0)


@case(F(4), calls=3)
def test_other_seeds(x):
    """Texts, floats, nothing, numbers that NumPy refuses, a generator's own seed"""
    said = []
    random.seed("abc")
    a = random.random()
    random.seed(2.5)
    random.seed(True)
    random.seed(-7)
    b = random.random()
    for seed in (-1, 2**40, "a"):
        try:
            np.random.seed(seed)
        except (ValueError, TypeError) as e:
            said.append(type(e).__name__)
    random.seed(4)
    return x + 1, a, b, said, random.sample(range(10), 3)


@program(F(4), calls=3)
def test_seed_of_an_own_generator():
    """A generator of the program's that is seeded in the function"""
    own = random.Random(1)

    def f(x):
        a = own.random()
        own.seed(4)
        return x + 1, a, own.random(), random.random()

    return f, lambda: own.getstate()[1][:5]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        print("forward")
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


def applies(x):
    """An autograd function whose forward has effects"""
    w = torch.ones(4, requires_grad=True)
    y = Dirty.apply(w * x)
    return (y * 3).detach(), y.requires_grad


test_an_autograd_function_with_effects = case(F(4), calls=2, graphs=2, breaks=True)(applies)


def test_an_autograd_function_breaks_once():
    """torch's own code around its forward does not break again"""
    bytejit.compile(applies, backend="eager")(torch.ones(4))
    assert sum(bytejit.counters["breaks"].values()) == 1
