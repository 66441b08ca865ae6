"""What every random program starts with: a few classes, managers and helpers, run afresh for each side."""

PRELUDE = """\
import contextlib
import functools
import itertools
import typing
import weakref

import torch

TOTAL = 1
LOG = []
KEPT = []


class Oops(ValueError):
    def __init__(self, code):
        super().__init__(f"oops {code}")
        self.code = code


class Thing:
    rate = 2

    def __init__(self, t, k=1):
        self.t, self.k, self.seen = t, k, []

    @property
    def scaled(self):
        return self.t * self.k

    def step(self, by=1):
        self.k += by
        self.seen.append(self.k)
        self.t = self.t + by
        return self.t

    def __add__(self, other):
        return Thing(self.t + (other.t if isinstance(other, Thing) else other), self.k)

    def __len__(self):
        return self.k % 5

    def __getitem__(self, i):
        return self.t[i]

    def __call__(self, v):
        return v * self.rate + self.k


class Child(Thing):
    rate = 3

    def step(self, by=2):
        return super().step(by + 1) * 2


class Scope:
    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(kind.__name__ if kind else "exit")
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def scoped(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


@contextlib.contextmanager
def swallowing(log, *kinds):
    try:
        yield
    except kinds as e:
        log.append(type(e).__name__)


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: int = 1

    def both(self):
        return self.left * self.right


class Learner(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, 3) * k)
        self.register_buffer("seen", torch.zeros(()))
        self.steps = 0

    def forward(self, t):
        self.steps += 1
        return (self.w * t).tanh()


def train(model, t, loud=False):
    out = model(t.detach())
    if loud:
        print("loss", out.shape)
    out.square().sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
        model.seen += 1
    return model.w.detach().clone()


def slope(t, fn):
    w = t.detach().clone().requires_grad_()
    fn(w).sum().backward()
    return torch.zeros(3) if w.grad is None else w.grad


def noisy(t, k):
    y = t * 2
    print("noisy", k)
    return y + k


def chooses(t, k):
    y = t + k
    if y.sum() > 1:
        return y.sin()
    return noisy(y, k).cos()


def adder(t, k):
    def add(v):
        return v + t * k
    return add


def keep(obj, most=2):
    KEPT.append(obj)
    while len(KEPT) > most:
        KEPT.pop(0)
    return obj


def refuse(t, k):
    if k % 3 == 1:
        raise Oops(k)
    return t + k


def steps(t, k):
    for i in range(k % 4):
        t = t + i
        got = yield t
        if got is not None:
            t = t * got


def walk(tree, t):
    if isinstance(tree, dict):
        return {k: walk(v, t) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(walk(v, t) for v in tree)
    return t * tree if isinstance(tree, int) else tree


def fact(k):
    return 1 if k < 2 else k * fact(k - 1)
"""
