"""`contextvars.ContextVar`: read, set and reset in compiled code."""

import contextlib
import contextvars

import pytest
import torch

import bytejit

from .harness import F, case, program

LEVEL = contextvars.ContextVar("LEVEL", default=2.0)
BARE = contextvars.ContextVar("BARE")


@contextlib.contextmanager
def level(value):
    token = LEVEL.set(value)
    try:
        yield value
    finally:
        LEVEL.reset(token)


class Level:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        self.token = LEVEL.set(self.value)
        return self

    def __exit__(self, *_):
        LEVEL.reset(self.token)


@case(F(4), graphs=1)
def test_read(x):
    """A context variable read: its default, one given, its name"""
    return x * LEVEL.get(), LEVEL.get(7.0), BARE.get(3), BARE.name


@case(F(4), graphs=1)
def test_nothing_held(x):
    """`LookupError` of a context variable that holds nothing"""
    try:
        BARE.get()
    except LookupError as e:
        return x + 1, e.args[0] is BARE
    return x


@case(F(4), graphs=1)
def test_set_and_reset(x):
    """Set and reset, nested, by a generator's `with` and by a class's, left by an exception"""
    seen = []
    with level(3.0), Level(5.0) as manager:
        x = x * LEVEL.get()
        with level(x):
            seen.append(LEVEL.get())
    try:
        with level(9.0):
            raise ValueError(LEVEL.get())
    except ValueError as e:
        seen.append(e.args)
    return x + LEVEL.get(), seen, manager.value


@case(F(4), graphs=1)
def test_tokens(x):
    """Tokens: `var`, `old_value`, their truth, whether they are None"""
    first = BARE.set(1)
    second = BARE.set([x])
    out = first.var is BARE, first.old_value is contextvars.Token.MISSING, second.old_value, first is not None, bool(first)
    held = BARE.get()
    BARE.reset(second)
    BARE.reset(first)
    return x + 1, out, held, BARE.get(None)


@program(F(4), graphs=1)
def test_left_set():
    """A variable that the program leaves set, to what it made, and a token that it keeps"""
    mine, tokens = contextvars.ContextVar("mine", default=0), []

    def f(x):
        tokens.append(mine.set(mine.get() + 1))
        mine.set(mine.get() * 10)
        return x * mine.get()

    return f, lambda: (mine.get(), [t.old_value for t in tokens if t.old_value is not t.MISSING])


@program(F(4), graphs=1)
def test_out_of_order():
    """Tokens reset in another order than they were made"""
    a, b = contextvars.ContextVar("a", default=1), contextvars.ContextVar("b", default=1)

    def f(x):
        first, other, second = a.set(2), b.set(3), a.set(4)
        a.reset(first)
        x = x * a.get()
        b.reset(other)
        a.reset(second)
        return x * a.get() * b.get()

    return f, lambda: (a.get(), b.get())


@case(F(4))
def test_token_used_twice(x):
    """A token that was used, one of another variable"""
    token, said = LEVEL.set(4.0), []
    for var in (BARE, LEVEL, LEVEL):
        try:
            var.reset(token)
        except (ValueError, RuntimeError) as e:
            said.append(type(e))
    return x * LEVEL.get(), said


@case(F(4))
def test_breaks_between(x):
    """Graph breaks where a variable is set: other code sees it"""
    with level(4.0):
        x = x + 1
        print(contextvars.copy_context()[LEVEL])
        x = x * LEVEL.get()
    print(LEVEL.get())
    return x


@program(F(4))
def test_other_contexts():
    """A variable set in a context of its own, and a token kept from before"""
    token = LEVEL.set(6.0)
    context = contextvars.copy_context()
    LEVEL.reset(token)

    def f(x):
        return x * LEVEL.get(), context.run(lambda: x * LEVEL.get()), LEVEL.get()

    return f


@torch.library.custom_op("bytejit_tests::times_level", mutates_args=())
def times_level(x: torch.Tensor) -> torch.Tensor:
    return x * LEVEL.get()


@times_level.register_fake
def _(x):
    return torch.empty_like(x)


@case(F(4))
def test_operator_that_asks(x):
    """A custom operator that reads a variable which the program set"""
    with level(8.0):
        x = times_level(x + 1)
    return times_level(x)


def test_what_a_variable_holds_is_guarded():
    """Another value compiles anew, where it decides; another thread's context is its own."""
    compiled = bytejit.compile(lambda x: x * LEVEL.get() + (1 if BARE.get(None) else 0), backend="eager")
    x = torch.ones(2)
    context = contextvars.Context()
    for level_, bare in ((None, None), (3.0, None), (3.0, True), (2.0, False)):
        values = [(var, value) for var, value in ((LEVEL, level_), (BARE, bare)) if value is not None]

        def call(values=values):
            for var, value in values:
                var.set(value)
            return compiled(x)

        wanted = (level_ or 2.0) + bool(bare)
        assert contextvars.Context().run(call).tolist() == [wanted, wanted], (level_, bare)
    assert context.run(compiled, x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_graph_under_fullgraph(backend):
    def f(x):
        with level(3.0):
            return x * LEVEL.get()

    assert bytejit.compile(f, backend=backend, fullgraph=True)(torch.ones(2)).tolist() == [3.0, 3.0]
