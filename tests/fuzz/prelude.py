"""What every random program starts with: a few classes, managers and helpers, run afresh for each side."""

PRELUDE = '''\
import contextlib
import functools
import itertools
import torch

TOTAL = 1
LOG = []


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
'''
