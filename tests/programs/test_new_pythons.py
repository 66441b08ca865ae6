"""What newer Pythons and torches have, on those that have it. Programs that older Pythons cannot read are text here."""

import collections
import functools
import heapq
import itertools
import linecache
import operator
import random
import sys
import textwrap
import warnings
from contextvars import ContextVar

import pytest
import torch

import bytejit

V = ContextVar("v", default=1)


def plain(result):
    """A result that `==` compares, with the types in it."""
    if isinstance(result, torch.Tensor):
        return "tensor", result.dtype, result.tolist()
    if isinstance(result, (list, tuple)):
        return type(result), [plain(r) for r in result]
    return type(result), repr(result)


def outcome(f, *args):
    """What a call gives or raises."""
    try:
        return plain(f(*args))
    except Exception as e:
        return type(e), str(e)


def same(f, *calls, backend="eager", fullgraph=True):
    """Compiled as eager in all calls; each of them a list of arguments beside the tensor."""
    compiled = bytejit.compile(f, backend=backend, fullgraph=fullgraph)
    for more in calls or ((),):
        x = torch.arange(4, dtype=torch.float64)
        assert outcome(compiled, x.clone(), *more) == outcome(f, x.clone(), *more), more


def defined(source, **names):
    """The function `f` of a program's text, whose lines messages can show."""
    name = f"<program {len(linecache.cache)}>"
    text = textwrap.dedent(source)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space = {"torch": torch, "__name__": __name__, **names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # 3.14 warns of jumps out of `finally`
        exec(compile(text, name, "exec", dont_inherit=True), space)
    return space["f"]


class Radd:
    """Adds by returning what it is added to."""

    def __radd__(self, other):
        return other


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_sums_of_numbers(backend):
    """Since 3.12 sum() carries along what additions of floats round off, since 3.14 of complex numbers"""

    def f(x, v, w):
        big, tenth = 1e100, 0.1
        return (
            x * sum([v, w, tenth, 0.2, 1]),
            (sum([v] * 7), sum((v, w), 0.3), sum([v, w]), sum([v, tenth, w], -0.0), sum([-0.0]), sum([], -0.0)),
            (sum([tenth] * 10), sum([0.1j] * 10), sum([big, 1.0, -big, v]), sum([True, False, 3]), sum([])),
            (sum([x, v, w]), sum([1, v, 2.5, x, tenth, tenth]), sum([v, tenth, 0.2, Radd(), tenth, 0.3])),
            sum(range(3)),
        )

    rng = random.Random(1)
    same(f, *[(rng.random(), rng.random()) for _ in range(4)], backend=backend)


def test_sums_of_floats_that_change_cost_one_more_compile():
    def f(x, v, w):
        return x * sum([v, w, 0.1, 0.2, 1]), sum([v] * 7), sum((v, w), 0.3), sum([x, v, w]), sum([1, v, 2.5, x, 0.1])

    same(f, *[(rng.random(), rng.random()) for rng in map(random.Random, range(5))])
    assert bytejit.counters.total("graphs") == 2


def test_digits_that_change_cost_one_more_compile():
    def f(x, digits):
        return x * round(1.23456789, digits), round(2.5, digits)

    same(f, *[(n,) for n in range(1, 12)])
    assert bytejit.counters.total("graphs") == 2


def test_a_sum_that_starts_with_something_else_than_a_number():
    def f(x, v):
        return (
            sum([x, x * v], x),
            sum((x * i for i in range(3)), torch.zeros(())),
            sum([[x], [v]], []),
            sum([], x),
            sum([v, 2], x),
        )

    same(f, (1.5, 2.5), (2.5, 3.5))
    assert not bytejit.counters["breaks"]


def test_a_sum_of_what_only_the_run_knows():
    def f(x):
        return x * 2, sum([(x > n).sum().item() for n in range(3)])

    same(f)


def test_a_sum_adds_as_it_takes():
    """What the items and their additions do is done in Python's order"""

    def f(x, v):
        log = []

        class Item:
            def __radd__(self, other):
                log.append(("added to", other))
                return other

        def items():
            for n in range(3):
                log.append(n)
                yield v * n
            yield Item()
            log.append("end")

        return x + sum(items()), log

    same(f, (0.1,), (0.7,), (0.3,))


def test_not_implemented_as_a_truth():
    def f(x):
        try:
            return x + 1, bool(NotImplemented)
        except TypeError as e:
            return x + 2, str(e)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        same(f)


def test_what_close_gives():
    """Since 3.13 what the generator returns"""

    def f(x):
        def ends():
            try:
                yield x
            except GeneratorExit:
                return 5

        def goes():
            yield x

        a, b, c = ends(), goes(), ends()
        next(a), next(b)
        return x + 1, a.close(), b.close(), c.close(), a.close()

    same(f)


def test_int_of_what_truncates():
    """Until 3.13 int() asks for __trunc__, and warns: the original code does so"""

    class Truncates:
        def __trunc__(self):
            return 3

    def f(x):
        try:
            return x * int(Truncates())
        except TypeError as e:
            return x, str(e)

    told = []
    for fn in (f, bytejit.compile(f, backend="eager")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told.append((outcome(fn, torch.arange(4.0)), [(w.category, str(w.message)) for w in caught]))
    assert told[0] == told[1]
    assert len(told[0][1]) == (sys.version_info < (3, 14))


def test_what_a_default_factory_puts_there_itself():
    """Since 3.14 it stays: a defaultdict stores what it makes as by setdefault"""

    class Noted(collections.defaultdict):
        def __setitem__(self, key, value):
            super().__setitem__(key, (value, "set"))

    def f(x):
        d = Noted(lambda: dict.__setitem__(d, "k", x * 2) or x * 3)
        return d["k"], list(d.items())

    same(f)


def test_words_by_name():
    """map's strict, reduce's initial, and those that there are not"""

    def f(x, n):
        try:
            made = list(map(operator.mul, [x, x], [2, 3, 4][:n], strict=True))
        except (TypeError, ValueError) as e:
            made = str(e)
        try:
            total = functools.reduce(operator.add, [x, x], initial=x * 2)
        except TypeError as e:
            total = str(e)
        return x + 1, made, total

    def g(x):
        try:
            return x, list(zip([1], [2], strickt=True))
        except TypeError as e:
            return x, str(e)

    def h(x):
        rows = map(operator.mul, [x, x * 3], [2, 3], strict=True)
        first = next(rows)
        print(end="")
        return first, list(rows)

    same(f, (1,), (2,), (3,), fullgraph=sys.version_info >= (3, 14))
    same(g, fullgraph=False)
    same(h, fullgraph=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="itertools.batched came with 3.12")
def test_batched():
    def f(x, n):
        rows = itertools.batched([x, x * 2, x * 3], n)
        return [sum(row) for row in rows], [*itertools.batched(range(7), n + 1)], next(rows, None)

    def g(x, n, named):
        try:
            return x + 1, [*itertools.batched([1, 2, 3], n, **named)]
        except (TypeError, ValueError) as e:
            return x, type(e)

    def h(x):
        rows = itertools.batched([x, x * 2, x * 3], 2)
        print(end="")
        return x + 1, list(rows)

    same(f, (1,), (2,), (5,))
    same(g, (0, {}), (2, {}), (2, {"strict": False}), (2, {"strict": True}), (3, {"strict": True}), fullgraph=False)
    same(h, fullgraph=False)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="functools.Placeholder came with 3.14")
def test_partials_with_open_places():
    """Their arguments take the open places first, whether the partial is from outside or not"""

    def g(a, b, c=None):
        return a, b, c

    P = functools.Placeholder
    outside = functools.partial(g, P, 2.0)

    def f(x):
        made = functools.partial(g, P, 2.0)
        more = functools.partial(functools.partial(g, P, P, 5), x)
        swapped = functools.partial(functools.partial(g, P, P, 5), P, 1)
        subtract = functools.partial(torch.sub, P, 2.0)
        mapped = list(map(functools.partial(outside, c=4), [x, x + 1]))
        return made(x), outside(x), outside(x, 3), more(7), swapped(x), subtract(x), mapped, more.args

    def left_open(x):
        try:
            return outside(), x
        except TypeError as e:
            return x + 1, str(e)

    def at_the_end(x):
        try:
            return functools.partial(g, x, P), x
        except TypeError as e:
            return x + 1, str(e)

    def by_name(x):
        try:
            return functools.partial(g, c=P), x
        except TypeError as e:
            return x + 1, str(e)

    for program in (f, left_open, at_the_end, by_name):
        same(program)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="these came with 3.14")
def test_functions_of_the_library():
    """operator.is_none, heaps with the largest first, tokens as managers"""

    def f(x):
        h = [3, 1, 2]
        heapq.heapify_max(h)
        heapq.heappush_max(h, 9)
        heaped = heapq.heappop_max(h), heapq.heapreplace_max(h, 1), heapq.heappushpop_max(h, 5), h
        return x + operator.is_none(None), operator.is_not_none(x), heaped

    def g(x):
        with V.set(5) as token:
            y = x * V.get()
        return y + V.get(), token.var is V

    def broken(x):
        with V.set(5):
            y = x * V.get()
            print(end="")
            y = y + V.get()
        return y + V.get()

    def raising(x):
        try:
            with V.set(7):
                raise ValueError(V.get())
        except ValueError as e:
            return x + V.get(), e.args

    same(f)
    same(g)
    same(raising)
    same(broken, fullgraph=False)
    assert V.get() == 1


SYNTAX = {
    "except without parentheses": """
        def f(x):
            try:
                y = x + 1
                if x.shape[0] == 4:
                    raise KeyError("a")
            except KeyError, ValueError:
                y = x * 3
            try:
                raise ExceptionGroup("g", [KeyError("a"), ValueError("b"), TypeError("c")])
            except* KeyError, ValueError:
                y = y + 1
            except* TypeError:
                y = y * 2
            return y
    """,
    "jumps out of finally": """
        def f(x):
            for i in range(4):
                try:
                    x = x + i
                    if i == 1:
                        raise ValueError
                finally:
                    if i < 3:
                        continue
                    break
            try:
                raise ValueError
            finally:
                return x * 2
    """,
    "annotations of what there is not": """
        import dataclasses, typing
        @dataclasses.dataclass
        class D:
            a: torch.Tensor
            n: Later | None = None
            def twice(self) -> D: return D(self.a * 2, self)
        class N(typing.NamedTuple):
            a: torch.Tensor
            b: Nowhere = 3
        def f(x):
            y: Undefined = x + 1
            class C:
                a: Later
                b: int = 3
            def g(a: Later, b: int = 2) -> Never:
                return a * b
            d, n = D(y).twice(), N(x)
            return g(y), C.b, d.a + d.n.a, n.a + n.b, [f.name for f in dataclasses.fields(d)]
    """,
}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="syntax of 3.14")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", SYNTAX)
def test_syntax(name, backend):
    same(defined(SYNTAX[name]), backend=backend)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with 3.14")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_template_strings(backend):
    """They break the graph; what is around them is compiled"""
    f = defined(
        """
        def render(t):
            return "".join(p if isinstance(p, str) else format(p.value, p.format_spec) for p in t)
        def f(x):
            y = x * 2
            t = t"{y.shape[0]:03d} of {y.sum()!r} {'q'}"
            print(end="")
            return y + len(t.interpolations), t.strings, render(t"{y.shape[0]:03d}"), t.interpolations[1].expression
        """
    )
    same(f, backend=backend, fullgraph=False)


@pytest.mark.skipif(not hasattr(torch._higher_order_ops, "switch"), reason="switch came with torch 2.14")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_switch(backend):
    switch = torch._higher_order_ops.switch
    w = torch.arange(4, dtype=torch.float64, requires_grad=True)

    def f(x, i):
        return switch(i, [lambda a, b: a + b, lambda a, b: a * b * w, lambda a, b: (a - b).sin()], (x, x * 2))

    same(f, (torch.tensor(0),), (torch.tensor(1),), (torch.tensor([7]),), (torch.tensor(-2),), (0,), (1,), (9,), backend=backend)
    x = torch.ones(4, dtype=torch.float64)
    grads = [torch.autograd.grad(g(x, torch.tensor(1)).sum(), w)[0] for g in (f, bytejit.compile(f, backend=backend))]
    assert torch.equal(*grads)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_enumerations_of_c(backend):
    """A function of torch in Python turns them into numbers, which a graph's text can spell"""
    kind, one = torch.nn.functional.ScalingType.TensorWise, torch.tensor(1.0)
    w = torch.linspace(-1, 1, 512).view(16, 32).to(torch.float8_e4m3fn)

    def f(x):
        rows = x.float().expand(16, 8, 4).reshape(16, 32).to(torch.float8_e4m3fn)
        return torch.nn.functional.scaled_mm(rows, w.t(), one, kind, one, kind, output_dtype=torch.float32)

    same(f, backend=backend)
