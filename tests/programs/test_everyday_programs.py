# ruff: noqa - the programs are as users write them
"""Programs with the library's everyday parts: state that changes between calls, effects, and inputs that change"""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import threading
import types
import typing
import weakref

import torch
from torch import nn

from .harness import F, I, Sign, Turn, case, program


# ---- attributes of functions, thread locals, loggers -------------------------------------------------------------------
@program(F(3), graphs=1, calls=5)
def test_counts_calls():
    """A decorator that counts calls on its wrapper, and keeps the last shape there"""

    def counted(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            wrapper.calls += 1
            wrapper.last = tuple(args[0].shape)
            return fn(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    @counted
    def scale(x, by=2):
        return x * by

    def f(x):
        return scale(scale(x, by=3)) + scale.calls + len(scale.last)

    return f, lambda: (scale.calls, scale.last, scale.__wrapped__.__dict__)


@program(F(3), Turn(0, 0, 1, 0, 2), graphs=1, calls=5)
def test_function_attributes():
    """Attributes of functions made, read back, found by hasattr, from two names of one function"""

    def helper(x):
        helper.calls = getattr(helper, "calls", 0) + 1
        return x + helper.calls

    alias = helper

    def f(x, n):
        if n and hasattr(alias, "calls"):
            alias.calls = alias.calls * n
        helper.log = [*getattr(alias, "log", []), n]
        y = helper(x) * alias.calls
        return y, alias.log

    return f, lambda: dict(helper.__dict__)


@program(F(3), graphs=1, calls=4)
def test_counts_itself():
    """A function that counts its own calls, and keeps a tensor"""

    def f(x):
        f.calls += 1
        before, f.last = f.last, x * 2
        return x * f.calls if before is None else x + before

    f.calls, f.last = 0, None
    return f, lambda: (f.calls, f.last)


@program(F(3), Turn(0, 1, 2, 1), graphs=1, calls=4)
def test_function_attribute_in_dict():
    """A function in a registry, with the order and options that its decorator put on it"""
    steps = {}

    def step(order, **options):
        def wrap(fn):
            fn.order, fn.options = order, options
            steps[fn.__name__] = fn
            return fn

        return wrap

    @step(2, by=3)
    def scale(x, by):
        return x * by

    @step(1, by=1)
    def shift(x, by):
        return x + by

    def f(x, n):
        shift.options["by"] = n
        for fn in sorted(steps.values(), key=operator.attrgetter("order")):
            x = fn(x, **fn.options)
            fn.used = getattr(fn, "used", 0) + 1
        if n == 2:
            scale.order = 0
        return x

    return f, lambda: [(fn.order, fn.options, fn.used) for fn in steps.values()]


class Locals(threading.local):
    def __init__(self):
        self.depth, self.seen = 0, []


@program(F(3), graphs=1, calls=4)
def test_thread_local():
    """A thread's own state: written, read back, deleted, and as a stack"""
    plain, own = threading.local(), Locals()
    plain.n = 1

    def f(x):
        plain.n += 2
        plain.last = x * plain.n
        own.depth += 1
        own.seen.append(own.depth)
        if hasattr(plain, "other"):
            del plain.other
            found = getattr(plain, "other", "gone")
        else:
            plain.other = len(own.seen)
            found = plain.other
        try:
            plain.missing
        except AttributeError as e:
            found = (found, type(e).__name__)
        return plain.last + own.depth, found

    return f, lambda: (dict(plain.__dict__), dict(own.__dict__))


def test_thread_local_of_each_thread():
    """What one thread compiled sees another thread's own values"""
    from . import targets

    state = threading.local()

    def f(x):
        state.n = getattr(state, "n", 0) + 1
        return x * state.n

    run, seen = targets.compiled(f, targets.Counter()), []
    x = torch.ones(2)
    assert [run(x)[0].item() for _ in range(3)] == [1, 2, 3]
    thread = threading.Thread(target=lambda: seen.extend(run(x)[0].item() for _ in range(3)))
    thread.start()
    thread.join()
    assert seen == [1, 2, 3] and state.n == 3


@program(F(3), Turn(logging.WARNING, logging.ERROR), graphs=1, calls=4)
def test_logger_off():
    """Messages of a logger whose level is off"""
    log = logging.Logger("everyday")

    def f(x, level):
        log.level = level
        log.debug("shape %s", x.shape)
        log.info(f"mean {x.shape}")
        if log.isEnabledFor(logging.INFO):
            x = x * 2
        return x + 1

    return f, lambda: log.level


@program(F(3), Turn(30, 10, 30, 40, 20), calls=5)
def test_logger_level_changes():
    """A logger's messages where its level, its parent's and the whole process's change between calls"""
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append((record.levelname, record.getMessage()))

    manager = logging.Manager(logging.RootLogger(logging.WARNING))
    parent, log = manager.getLogger("parent"), manager.getLogger("parent.child")
    log.addHandler(Keep())

    def f(x, level):
        parent.setLevel(level)
        y = x * 2
        log.info("in %s", tuple(y.shape))
        manager.disable = 25 if level == 40 else 0
        manager._clear_cache()
        log.error("out")
        return y + 1

    return f, lambda: list(seen)


@program(F(3), Turn(0, 1, 2), graphs=1)
def test_private_gradient():
    """A parameter's gradient set and read under its private name"""
    p = nn.Parameter(torch.ones(3))

    def f(x, n):
        p._grad = x.detach() * n if n != 1 else None
        return x + 1 if p._grad is None else x + p.grad

    return f, lambda: p
