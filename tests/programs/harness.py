"""Run one program as it is and compiled, on equal inputs built independently, and compare all that a user can see:
result (structure, exact types, dtype, shape, strides, requires_grad, values, aliasing), what became of the arguments
and of the program's own state, printed text, the exception (type, args, chain, user lines) and the RNG streams.

    @case(F(4), 3)                     # the decorated function is the program; F(4): a float tensor of shape (4,)
    def test_add(x, n):
        '''Feature, as docs/language.md names it'''
        return x + n

    @program(F(4))                     # the decorated function builds the program, afresh for each side:
    def test_counter():                # its closures, classes and modules are then not shared by the two sides
        log = []
        def f(x): log.append(x); return x + 1
        return f, lambda: log          # program, what else to compare after each call
"""

import contextlib
import copy
import functools
import inspect
import io
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from . import targets
from .compare import Comparer, Different


class Rand:
    """Data of one call, the same for both sides. `call`: the number of the call, from 0."""

    def __init__(self, call: int):
        self.call = call
        self.g = torch.Generator().manual_seed(100 + call)

    def f(self, *shape, dtype=torch.float32, grad=False) -> torch.Tensor:
        return torch.randn(*shape, generator=self.g).to(dtype).requires_grad_(grad)

    def i(self, lo, hi, *shape) -> torch.Tensor:
        return torch.randint(lo, hi, shape, generator=self.g)


class Spec:
    """An argument made from the call's data."""

    def __init__(self, make: Callable[[Rand], object]):
        self.make = make


def F(*shape, dtype=torch.float32, grad=False) -> Spec:
    """A float tensor."""
    return Spec(lambda r: r.f(*shape, dtype=dtype, grad=grad))


def I(*shape, lo=0, hi=10) -> Spec:  # noqa: E743
    """An int64 tensor with values in lo..hi-1."""
    return Spec(lambda r: r.i(lo, hi, *shape))


def Sign(*shape) -> Spec:
    """A float tensor: all positive in even calls, all negative in odd ones."""
    return Spec(lambda r: r.f(*shape).abs().add(0.5) * (-1 if r.call % 2 else 1))


def Turn(*values) -> Spec:
    """A plain value that is another one in each call."""
    return Spec(lambda r: copy.deepcopy(values[r.call % len(values)]))


def backward_after(f, *args):
    """Call, then go backward through the result, as a training step does after the compiled part."""
    out = f(*args)
    first = out[0] if isinstance(out, tuple) else out
    first.sum().backward()
    return out


@dataclass(frozen=True)
class Outcome:
    """All that one call left behind."""

    world: tuple  # (args, kwargs, result, observed), compared together so that sharing among them counts
    error: tuple  # (type, args, ...) chain, () without an exception
    lines: tuple  # user lines of the traceback
    printed: str
    rng: tuple

    def __repr__(self):
        return f"Outcome({self.error or 'returned'})"


@dataclass(frozen=True)
class Case:
    """One program and what is expected of it."""

    build: Callable  # () -> (fn, observe)
    args: Callable  # Rand -> (args, kwargs)
    calls: int
    graphs: int | None
    total: int | None
    breaks: bool
    backend: str
    drive: Callable | None
    watch: tuple
    tol: tuple
    file: str  # where the program's lines are

    def __repr__(self):
        return f"Case(graphs={self.graphs}, breaks={self.breaks}, calls={self.calls})"

    @property
    def stays(self) -> str:
        """G: one graph; B: breaks; n: so many graphs; -: not stated."""
        if self.breaks:
            return "B"
        return {None: "-", 1: "G", 0: "no graph"}.get(self.graphs, f"B ({self.graphs} graphs)")


def check(
    fn,
    *specs,
    args=None,
    kwargs=None,
    graphs=None,
    total=None,
    breaks=False,
    backend="eager",
    calls=3,
    drive=None,
    watch=(),
    tol=(0.0, 0.0),
) -> None:
    """Run `fn` plainly and compiled and compare.

    specs: positional arguments, a Spec each or a value (copied). args: instead, Rand -> tuple of all. graphs: compiled
    in the first call; 1 asks for success under nopython=True too. total: after all calls. breaks: nopython=True must
    raise Unsupported. drive(fn, *args): how to call it. watch: names of globals that it writes. tol: rtol, atol.
    """
    file = fn.__code__.co_filename if hasattr(fn, "__code__") else "?"
    run_case(make_case(lambda: (fn, None), specs, args, kwargs, graphs, total, breaks, backend, calls, drive, watch, tol, file))


def make_case(build, specs, args, kwargs, graphs, total, breaks, backend, calls, drive, watch, tol, file) -> Case:
    def data(r: Rand):
        if args is not None:
            return tuple(args(r)), {}
        one = lambda s: s.make(r) if isinstance(s, Spec) else copy.deepcopy(s)  # noqa: E731
        return tuple(one(s) for s in specs), {k: one(s) for k, s in (kwargs or {}).items()}

    return Case(build, data, calls, graphs, total, breaks, backend, drive, tuple(watch), tol, file)


def case(*specs, **options):
    """Make a test of a program. Options: those of `check`."""

    def wrap(fn):
        return _test(lambda: (fn, None), fn, specs, options)

    return wrap


def program(*specs, **options):
    """Make a test of a factory, which returns a program or (program, observe)."""

    def wrap(factory):
        def build():
            made = factory()
            return made if isinstance(made, tuple) else (made, None)

        return _test(build, factory, specs, options)

    return wrap


DEFAULTS = {p.name: p.default for p in inspect.signature(check).parameters.values() if p.kind is p.KEYWORD_ONLY}


def _test(build, fn, specs, options):
    o = DEFAULTS | {"file": fn.__code__.co_filename} | options
    made = make_case(build, specs, **o)

    def test():
        run_case(made)

    test.__name__, test.__doc__, test.__module__ = fn.__name__, fn.__doc__, fn.__module__
    test.__qualname__ = fn.__qualname__
    test.case, test.line = made, fn.__code__.co_firstlineno
    return test


def run_case(c: Case) -> None:
    """Compare plain and compiled over all calls, then the first under nopython=True where one graph is claimed."""
    counter = targets.Counter(c.backend)
    ours = Side(c, lambda fn: targets.compiled(fn, counter))
    plain = Side(c, lambda fn: fn)
    for n in range(c.calls):
        want = plain.call(n)
        assert c.graphs != 1 or not want.error, f"a program of one graph must not raise by itself: {want.error}"
        compare(want, ours.call(n), f"call {n}", c.tol)
        if n == 0 and targets.TARGET != "plain" and c.graphs is not None:
            assert counter.count == c.graphs, f"{counter.count} graphs in the first call, {c.graphs} expected"
    if targets.TARGET == "plain":
        return
    if c.total is not None:
        assert counter.count == c.total, f"{counter.count} graphs after {c.calls} calls, {c.total} expected"
    if c.graphs == 1 and not c.breaks:
        assert not targets.breaks(), f"breaks in a program of one graph: {targets.breaks()}"
        targets.reset()
        whole = targets.Counter(c.backend)
        ours, plain = Side(c, lambda fn: targets.compiled(fn, whole, nopython=True)), Side(c, lambda fn: fn)
        compare(plain.call(0), ours.call(0), "nopython", c.tol)
    if c.breaks:
        targets.reset()
        must_refuse(c)


def must_refuse(c: Case) -> None:
    """Under nopython=True one of the calls raises Unsupported."""
    side = Side(c, lambda fn: targets.compiled(fn, targets.Counter(c.backend), nopython=True))
    for n in range(c.calls):
        try:
            side.call(n)
        except targets.unsupported():
            return
    raise AssertionError("nopython=True: Unsupported expected, nothing raised")


class Side:
    """A fresh build of the program, plain or compiled, with globals of its own (those named in `watch`)."""

    def __init__(self, c: Case, compile_with: Callable):
        self.c = c
        self.plain, self.observe = c.build()
        self.space = getattr(self.plain, "__globals__", {})
        self.globals = {k: copy.deepcopy(self.space[k]) for k in c.watch if k in self.space}
        self.f = compile_with(self.plain)

    @contextlib.contextmanager
    def own_globals(self):
        outer = {k: self.space.pop(k) for k in self.c.watch if k in self.space}
        self.space.update(self.globals)
        try:
            yield
        finally:
            self.globals = {k: self.space.pop(k) for k in self.c.watch if k in self.space}
            self.space.update(outer)

    def call(self, n: int, make: Callable | None = None) -> Outcome:
        """The outcome of call `n`; make: Rand -> (args, kwargs), in place of the case's. Raises: Unsupported."""
        args, kwargs = (make or self.c.args)(Rand(n))
        torch.manual_seed(n)
        random.seed(n)
        np.random.seed(n)
        out, result, error, lines = io.StringIO(), None, (), ()
        run = functools.partial(self.c.drive, self.f) if self.c.drive else self.f
        with self.own_globals(), contextlib.redirect_stdout(out):
            try:
                result = run(*args, **kwargs)
            except BaseException as e:
                if targets.TARGET != "plain" and isinstance(e, targets.unsupported()):
                    raise
                if isinstance(e, KeyboardInterrupt):
                    raise
                error, lines = chain(e), user_lines(e, self.c.file)
        rng = (torch.get_rng_state().sum().item(), random.random(), float(np.random.rand()), torch.is_grad_enabled())
        seen = self.observe() if self.observe else None
        return Outcome((args, kwargs, result, seen, self.globals), error, lines, out.getvalue(), rng)


def chain(e: BaseException | None, depth: int = 0) -> tuple:
    """Type and args of an exception and of the ones behind it."""
    if e is None or depth > 5:
        return ()
    notes = tuple(getattr(e, "__notes__", ()))
    inner = tuple(chain(s, depth + 1) for s in getattr(e, "exceptions", ()))
    return (
        type(e).__qualname__,
        repr(e.args) if not inner else str(e),
        notes,
        inner,
        e.__suppress_context__,
        chain(e.__cause__, depth + 1),
        chain(e.__context__, depth + 1),
    )


def user_lines(e: BaseException, file: str) -> tuple:
    """(function, line) of the traceback's frames that lie in the program's file."""
    lines, tb = [], e.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == file:
            lines.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
        tb = tb.tb_next
    return tuple(lines)


def compare(ref: Outcome, got: Outcome, where: str, tol) -> None:
    """Raise Different unless both calls look the same."""
    for what in ("error", "lines", "printed", "rng"):
        if getattr(ref, what) != getattr(got, what):
            raise Different(f"{where}: {what}: {getattr(got, what)!r}\nreference {getattr(ref, what)!r}")
    walk = Comparer(*tol)
    names = ("args", "kwargs", "result", "observed", "globals")
    for name, a, b in zip(names, ref.world, got.world):
        walk.same(a, b, f"{where}: {name}")
