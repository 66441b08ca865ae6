"""How few compiles a program over many sizes needs: sizes of 1 among others, masks given now and then, views that copy."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit
from tests.shapes.test_dynamic import entries


class Attention(nn.Module):
    """Causal or not, with a padding mask or none; the mask's size comes from the tokens'."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(64, 8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, tokens, mask=None):
        b, n = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(n))[None]
        q, k, v = self.qkv(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 8))


def graphs_of(model: Callable, calls: list[tuple], dynamic: bool | None = None) -> int:
    """Graphs compiled over the calls, each compared with the plain model."""
    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(1)
        gm(*inputs)  # examples fit the graph, whatever it was traced as
        return gm.forward

    compiled = bytejit.compile(model, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(compiled(*args), model(*args))
    return len(graphs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mask_that_is_given_now_and_then(causal: bool, seed: int) -> None:
    torch.manual_seed(0)
    rng = random.Random(seed)
    calls: list[tuple] = [(torch.randint(0, 20, (6, 51)),), (torch.randint(0, 20, (1, 27)),)]
    for _ in range(24):
        b, n = rng.randint(1, 8), rng.choice([1, 2, 3, 17, 31, 64])
        tokens, mask = torch.randint(0, 20, (b, n)), torch.rand(b, n) > 0.3
        mask[:, 0] = True
        calls.append((tokens, mask) if rng.random() < 0.5 else (tokens,))
    assert graphs_of(Attention(causal).eval(), calls) <= 4  # with and without a mask are two paths of the program


def test_a_length_that_passes_through_one_while_the_batch_stays() -> None:
    sizes = [(4, 7), (4, 1), (4, 9), (4, 1), (2, 5), (1, 1), (3, 1), (1, 6)]
    assert graphs_of(Attention(False).eval(), [(torch.randint(0, 20, s),) for s in sizes]) == 3


def test_a_size_of_one_that_matters_gets_a_trace_of_its_own() -> None:
    def f(x, y):
        return x + y if x.shape[0] != 1 else x - y

    calls = [(torch.randn(b, 3), torch.randn(c, 3)) for b, c in ((4, 4), (1, 5), (1, 1), (5, 5), (7, 7), (5, 1), (1, 2))]
    assert graphs_of(f, calls) <= 6


def test_what_broadcasts_now_and_not_before() -> None:
    calls = [
        (torch.randn(a), torch.randn(b))
        for a, b in (((4, 3), (4, 3)), ((1, 3), (4, 3)), ((1, 3), (6, 3)), ((1, 3), (1, 3)), ((6, 3), (6, 3)), ((6, 3), (1, 3)))
    ]
    assert graphs_of(lambda x, y: x * y + x.sum(0), calls) <= 5


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.view(x.shape[0] // 2, -1) * 2,
        lambda x: x.reshape(-1, x.shape[0] // 4, 5) * 2,
        lambda x: x.unflatten(0, (x.shape[0] // 2, -1)) * 2,
        lambda x: x.t().reshape(x.shape[0] // 2, -1) * 2,
    ],
    ids=["view", "reshape", "unflatten", "transposed"],
)
def test_the_rest_of_a_view_is_a_quotient_of_sizes(split: Callable) -> None:
    """In training, too: one more size costs one compile, further ones none"""
    compiled = bytejit.compile(split, backend="aot_eager")
    for i, n in enumerate((8, 12, 16, 20, 24, 36)):
        x = torch.randn(n, 5, requires_grad=True)
        torch.testing.assert_close(compiled(x), split(x))
        compiled(x).sum().backward()
        assert entries(compiled) == min(i + 1, 2)


def writes_the_copy(x):
    y = x * 2
    a = y.transpose(1, 2).contiguous()
    b = a.view(a.shape[0], -1)
    b[:, 0] = 7
    return y.sum(), b


def writes_the_source(x):
    y = x * 2
    a = y.transpose(1, 2).reshape(-1)
    y.add_(1)
    return a + 1


def both_leave(x):
    y = x * 2
    return y, y.transpose(1, 2).contiguous()


def copies_an_input(x):
    return x.transpose(1, 2).flatten()


def is_it_the_same(x):
    z = (x * 2).transpose(1, 2)
    a = z.contiguous()
    return a + (a is z)


def breaks_between(x):
    y = x * 2
    z = y.transpose(1, 2).reshape(-1)
    bytejit.graph_break()
    z += 1
    return y.sum() + z


def stays_inside(x):
    a = (x * 2).transpose(1, 2).reshape(x.shape[0], -1)
    return a.exp() + a.sum()


@pytest.mark.parametrize(
    "f, limit",
    [
        (writes_the_copy, 4),
        (writes_the_source, 4),
        (both_leave, 4),
        (copies_an_input, 4),
        (is_it_the_same, 4),
        (breaks_between, 8),
        (stays_inside, 2),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_views_or_copies_by_size(f: Callable, limit: int, backend: str) -> None:
    """A transposed tensor of which a size is 1 is contiguous: what follows is a view there, and a copy elsewhere."""

    def memories(x, out):
        of = [t.untyped_storage()._cdata for t in (x, *(out if isinstance(out, tuple) else (out,)))]
        return [of.index(m) for m in of]

    compiled = bytejit.compile(f, backend=backend)
    for size in ((3, 4, 5), (4, 5, 6), (1, 5, 7), (3, 1, 6), (2, 6, 1), (1, 1, 4), (1, 1, 1), (5, 4, 3)):
        x = torch.randn(size)
        mine, plain = x.clone(), x.clone()
        want, got = f(plain), compiled(mine)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, plain)
        assert memories(mine, got) == memories(plain, want)
    assert entries(compiled) <= limit


def test_conditions_on_products_and_quotients_are_said_of_their_parts() -> None:
    from bytejit.shapes.environment import Env

    env = Env()
    a, b = env.symbol("a", 6, 1), env.symbol("b", 9, 1)
    assert b // 2 != 0 and b // 2 != 1 and (b // 2) ** 2 != 0 and 16 * a * (b // 2) != 0 and a * b != 0
    assert [c.text() for c, _ in env.conditions] == ["1 <= b//2", "2 <= b//2"]
    assert 8 * a != 8 and env.range(a.node.e)[0] == 2


@pytest.mark.parametrize("sizes", [((2, 3), (4, 5)), ((2, 3), (1, 4))])
def test_a_symbolic_trace_keeps_no_tensor_of_the_program(sizes: tuple) -> None:
    def made():
        k = torch.ones(3)
        return bytejit.compile(lambda x: x.t().reshape(-1) + k.sum(), backend="eager"), weakref.ref(k)

    compiled, k = made()
    for size in sizes:
        compiled(torch.ones(size))
    del compiled
    gc.collect()
    assert k() is None


# ---- series: one more value costs one compile, then none ------------------------------------------------------------------


class Steps(nn.Module):
    """Counts its calls and holds numbers that the program changes."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.rate, self.table = 5, 0.5, {"scale": 2.5, "count": 3}

    def forward(self, x):
        self.step += 1
        return x * self.step + self.rate * self.table["scale"] + self.table["count"]


def window(x, w):
    x = x[:, -16:]
    return torch.softmax(w[x] @ w.T, -1)[:, -1]


def attribute_series(dynamic):
    model, plain = Steps(), Steps()
    compiled = bytejit.compile(model, backend=counting, dynamic=dynamic)
    for i in range(14):
        for m in (model, plain):
            m.rate, m.table["scale"], m.table["count"] = 0.1 * i + 0.05, 1.5 + i, 7 + i
        torch.testing.assert_close(compiled(torch.ones(3)), plain(torch.ones(3)))


GLOBAL_RATE = 0.5


def global_series(dynamic):
    global GLOBAL_RATE

    def f(x):
        return x * GLOBAL_RATE

    compiled = bytejit.compile(f, backend=counting, dynamic=dynamic)
    for i in range(14):
        GLOBAL_RATE = 0.3 * i + 0.1
        torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))


def cell_series(dynamic):
    rate = 0.5

    def f(x):
        return x * rate

    compiled = bytejit.compile(f, backend=counting, dynamic=dynamic)
    for i in range(14):
        rate = 0.3 * i + 0.1
        torch.testing.assert_close(compiled(torch.ones(3)), f(torch.ones(3)))


COUNTED: list[int] = []


def counting(gm: torch.fx.GraphModule, inputs: list) -> Callable:
    COUNTED.append(1)
    return gm.forward


ONES = torch.ones(3)
SERIES: dict[str, tuple] = {  # what changes -> (function, calls, most graphs)
    "sizes": (lambda x: (x * 2).sum(0), [(torch.ones(n, 3),) for n in range(2, 16)], 2),
    "two sizes": (lambda x: x.t() @ x, [(torch.ones(n, 20 - n),) for n in range(2, 16)], 3),
    "strides": (lambda x: (x * 2).sum(0), [(torch.ones(8, n)[:, :5],) for n in range(7, 20)], 2),
    "strides of a dimension of size 1": (lambda x: (x * 2).sum(-1), [(torch.zeros(1, n)[:, -32:],) for n in range(33, 49)], 1),
    "those strides, read": (lambda x: x * 2 + x.stride(0), [(torch.zeros(1, n)[:, -32:],) for n in range(33, 49)], 2),
    "storage offsets": (lambda x: x * 2, [(torch.arange(40.0)[n : n + 8],) for n in range(14)], 1),
    "ints": (lambda x, n: x * n, [(ONES, n) for n in range(3, 17)], 2),
    "negative ints": (lambda x, n: x * n, [(ONES, -n) for n in range(3, 17)], 2),
    "floats": (lambda x, a: x * a, [(ONES, 0.3 * n) for n in range(14)], 2),
    "ints in a list": (lambda x, a: x * a[0] + a[1], [(ONES, [n, n + 1]) for n in range(3, 17)], 2),
    "floats in a dict": (lambda x, a: x * a["a"], [(ONES, {"a": 0.3 * n}) for n in range(14)], 2),
    "ints in a tuple": (lambda x, a: x * a[0], [(ONES, (n, 2)) for n in range(3, 17)], 2),
    "ints in a tuple in a tuple": (lambda x, a: x * a[1][0] + a[0], [(ONES, (7, (n, "sum"))) for n in range(3, 17)], 2),
    "a size given among arguments": (lambda x, *a: x.view(*a) * 2, [(torch.ones(n, 2), (2 * n,)) for n in range(3, 17)], 2),
    "slices in a tuple": (
        lambda x, i: x[i] * 2,
        [(torch.ones(30, 30), (slice(n, 20), slice(-n, None))) for n in range(3, 17)],
        2,
    ),
    "slices": (lambda x, n: x[:n].sum(), [(torch.ones(30), n) for n in range(3, 17)], 2),
    "windows of what grows": (window, [(torch.zeros(1, n, dtype=torch.long), torch.eye(10, 4)) for n in range(5, 40)], 3),
    "ints of a partial": (lambda x, f: f(x), [(ONES, functools.partial(torch.clamp, max=n)) for n in range(3, 17)], 2),
    "ints of a lambda": (lambda x, f: f(x), [(ONES, lambda x, n=n: x * n) for n in range(3, 17)], 2),
    "the last so many": (lambda x, n: x[-n:] * 2, [(torch.ones(30), n) for n in range(3, 17)], 2),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SERIES)
def test_series(name: str, dynamic: bool | None) -> None:
    f, calls, most = SERIES[name]
    assert graphs_of(f, calls, dynamic) <= most


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("series, most", [(attribute_series, 4), (global_series, 2), (cell_series, 2)])
def test_series_of_what_is_no_argument(series: Callable, most: int, dynamic: bool | None) -> None:
    COUNTED.clear()
    series(dynamic)
    assert len(COUNTED) <= most


def test_strides_that_follow_from_sizes_where_one_is_1() -> None:
    """What a guard wants of a stride comes from what it wants of the other, not from what that is where it does not matter."""
    base = torch.randn(5000)
    calls = [
        (base.as_strided((a, m, n), (s0, s1, 1)),)
        for a, m, n, s0, s1 in (
            (3, 4, 5, 20, 5),
            (4, 5, 6, 30, 6),
            (4, 1, 6, 6, 6),
            (4, 1, 6, 7, 7),
            (4, 1, 6, 7, 9),
            (4, 2, 6, 12, 6),
            (1, 1, 6, 100, 3),
        )
    ]
    assert graphs_of(lambda x: (x * 2).sum(0), calls) <= 4


@functools.lru_cache(maxsize=64)
def halves(shape: tuple, parts: int) -> tuple:
    """What a library keeps by shapes: sizes of a view, and an order of dimensions."""
    sizes = []
    for n in shape[:-1]:
        sizes.append(n)
    return [*sizes, parts, shape[-1] // parts], {"order": [len(shape), *range(len(shape))]}


def by_cached_shape(x):
    sizes, named = halves(tuple(x.shape), 2)
    return x.reshape(sizes).permute([len(sizes) - 1, *range(len(sizes) - 1)]) * len(named["order"])


def test_functions_cached_by_shapes() -> None:
    assert graphs_of(by_cached_shape, [(torch.ones(3, 2 * n),) for n in range(2, 16)]) <= 2


def test_a_cached_function_with_effects_is_called_with_numbers() -> None:
    """Its body runs once a shape, as in eager."""
    seen: list[int] = []

    @functools.lru_cache(maxsize=64)
    def sizes(n: int) -> int:
        seen.append(n)
        return n * 2

    def f(x):
        return x * sizes(x.shape[0])

    compiled = bytejit.compile(f, backend="eager")
    for n in (3, 4, 5, 4, 3, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), torch.ones(n) * 2 * n)
    assert sorted(seen) == [3, 4, 5]


def test_einops() -> None:
    einops = pytest.importorskip("einops")

    def f(x):
        y = einops.rearrange(x, "b (h d) n -> b h n d", h=2)
        return einops.reduce(y, "b h n d -> b n d", "mean") + einops.repeat(x, "b c n -> b n (c r)", r=1)[..., :4]

    calls = [(torch.randn(2, 8, n),) for n in range(5, 17)]
    f(*calls[0])  # einops looks for the libraries that are imported
    assert graphs_of(f, calls) <= 2


# ---- NumPy numbers whose value changes between calls -----------------------------------------------------------------

KINDS = ["float64", "float32", "float16", "int64", "int32", "uint8"]


def numbers_of(kind: str, count: int = 5) -> list:
    numpy = pytest.importorskip("numpy")
    return [getattr(numpy, kind)(2 + n if "int" in kind else 0.1 * (n + 1)) for n in range(count)]


def check_few(f: Callable, calls: list[tuple], limit: int, backend: str = "eager") -> None:
    """The calls give what the plain function gives, to the type and dtype, with at most `limit` entries."""
    compiled = bytejit.compile(f, backend=backend)
    for args in calls:
        want, got = f(*args), compiled(*args)
        assert type(got) is type(want)
        torch.testing.assert_close(got, want, rtol=0 if backend == "eager" else None, atol=0 if backend == "eager" else None)
    assert entries(compiled) <= limit


class Held:
    """Something with a number for an attribute."""

    def __init__(self, value: object):
        self.value = value


A_GLOBAL = None


def by_argument(x, n):
    return x * n, n - x, n / (x + 2), x.clamp(max=n), torch.add(x, n), x > n


def by_keyword(x, *, n):
    return x * n


def by_attribute(x, held):
    return x * held.value


def by_item(x, items):
    return items[1] * x


def by_global(x):
    return x * A_GLOBAL


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_numbers_as_arguments(kind: str, dtype: torch.dtype) -> None:
    x = torch.arange(1, 5).to(dtype)
    check_few(by_argument, [(x, n) for n in numbers_of(kind)], 2)


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_numpy_numbers_in_other_places(kind: str) -> None:
    global A_GLOBAL
    x, values = torch.arange(1.0, 5.0), numbers_of(kind)
    check_few(by_attribute, [(x, Held(n)) for n in values], 2)
    check_few(by_item, [(x, [1, n]) for n in values], 2)
    check_few(by_item, [(x, (1, n)) for n in values], 2)
    cell = values[0]

    def by_cell(x):
        return x * cell

    named, by_name, closed = (bytejit.compile(f, backend="eager") for f in (by_keyword, by_global, by_cell))
    for n in values:
        A_GLOBAL = cell = n
        for got in (named(x, n=n), by_name(x), closed(x)):
            assert torch.equal(got, x * n)
    assert max(map(entries, (named, by_name, closed))) <= 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_numpy_numbers_as_sizes_and_places(backend: str) -> None:
    def f(x, n):
        return torch.zeros(n) + 1, x[:n] * 2, x[n], x[n:, None], x.narrow(0, 0, n), torch.full((n, 2), n)

    check_few(f, [(torch.arange(20.0), n) for n in numbers_of("int64", 8)], 2, backend)


def test_branches_on_numpy_numbers_compile_once_a_side() -> None:
    def f(x, n):
        return x * n if n > 0.35 else x + n

    for kind in ("float64", "float32"):
        calls = [(torch.ones(3), n) for n in numbers_of(kind, 7)]
        check_few(f, calls, 3 if kind == "float64" else 8)  # 0.35 is no float32: which is greater takes NumPy to tell


def reads_the_number(x, n):
    return x + 1, n.dtype.itemsize, type(n).__name__, f"{n:.3f}", n * 2, n + n, n * 0.5, abs(n), n == n, n > 2, n


def asks_for_its_type(x, n):
    return x * n if isinstance(n, float) else x - n


def makes_plain(x, n):
    return float(n) * x, int(n), float(n), bool(n), n.item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("f", [reads_the_number, asks_for_its_type, makes_plain])
def test_what_needs_the_numpy_number_itself_gets_it(f: Callable, kind: str) -> None:
    x, compiled = torch.ones(3), bytejit.compile(f, backend="eager")
    for n in numbers_of(kind):
        want, got = f(x, n), compiled(x, n)
        assert repr(got) == repr(want)
        if type(want) is tuple:
            assert [type(v) for v in got] == [type(v) for v in want]


def test_a_numpy_number_of_another_type_is_another_trace() -> None:
    def f(x, n):
        return x * n, float(n), int(n), n

    compiled = bytejit.compile(f, backend="eager")
    for n in (*numbers_of("float64", 3), *numbers_of("float32", 3), 0.5, 0.75, *numbers_of("int32", 3), 3):
        want, got = f(torch.ones(2), n), compiled(torch.ones(2), n)
        assert repr(got) == repr(want) and [*map(type, got)] == [*map(type, want)]


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_zeros_of_both_signs_and_nan_are_told_apart(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    compiled, x = bytejit.compile(lambda x, n: (x / n, f"{n}"), backend="eager"), torch.ones(2)
    for value in (0.0, -0.0, float("nan"), float("nan"), 1.0, -0.0, 0.0):
        n = getattr(numpy, kind)(value)
        assert repr(compiled(x, n)) == repr((x / n, f"{n}"))
    assert entries(compiled) <= 4


def test_a_numpy_bool_is_what_eager_takes_it_for() -> None:
    numpy = pytest.importorskip("numpy")

    def f(x, flag):
        return x * flag, x + 1 if flag else x - 1, torch.full((2,), flag)

    compiled = bytejit.compile(f, backend="eager")
    for flag in (numpy.bool_(True), numpy.bool_(False), numpy.bool_(True)):
        for got, want in zip(compiled(torch.arange(3), flag), f(torch.arange(3), flag)):
            assert got.dtype == want.dtype and torch.equal(got, want)


TAKES_BOOLS = {
    "product": lambda x, b: (x * b, b * x, torch.mul(x, b), x.mul(b)),
    "sum": lambda x, b: (x + b, b - x, x**b, x / (b + 1)),
    "comparison": lambda x, b: (x == b, x > b, x != b),
    "choice": lambda x, b: (torch.where(x > 1, x, b), x.masked_fill(x > 1, b), x.clone().fill_(b), torch.full((2,), b)),
    "bounds": lambda x, b: (x.clamp(b), x.clamp(max=b)),
    "in place": lambda x, b: (x.clone().mul_(b), x.clone().add_(b)),
    "bits": lambda x, b: (x & b,),
    "an argument": lambda x, b: (x.sum(0, keepdim=b),),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", TAKES_BOOLS)
def test_operations_take_numpy_bools_as_eager_does(name: str, dtype: torch.dtype) -> None:
    numpy, f = pytest.importorskip("numpy"), TAKES_BOOLS[name]
    compiled, x = bytejit.compile(f, backend="eager"), torch.arange(4).to(dtype)
    for b in (numpy.True_, numpy.False_, numpy.True_):
        try:
            want = f(x, b)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x, b)
            continue
        for got, right in zip(compiled(x, b), want, strict=True):
            assert got.dtype is right.dtype and torch.equal(got, right)
        assert not bytejit.counters["breaks"]


@pytest.mark.parametrize("kind", ["bool_", "complex64", "complex128", "float16", "uint8", "timedelta64", "str_", "datetime64"])
def test_a_tensor_compared_with_a_numpy_scalar(kind: str) -> None:
    numpy = pytest.importorskip("numpy")

    def f(x, value):
        return x + 1, x == value, x != value

    value = numpy.datetime64("2020-01-01") if kind == "datetime64" else getattr(numpy, kind)(1)
    x = torch.arange(3.0)
    for got, want in zip(bytejit.compile(f, backend="eager")(x, value), f(x, value), strict=True):
        assert type(got) is type(want) and (torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want)


ARITHMETIC = {
    "by a constant": lambda x, n: x * (n * 2) + (n + 1.5),
    "with itself": lambda x, n: x + (n + n) * (n - 3),
    "quotient": lambda x, n: x / (n / 3) + n // 2 + n % 2,
    "power": lambda x, n: x * n**2,
    "sign": lambda x, n: x * -n + abs(n),
    "function": lambda x, n: x * math_of("sqrt")(n) + math_of("maximum")(n, 2),
    "of two types": lambda x, n: x * (n * numpy_number("float64", 2.5)) - numpy_number("int32", 3) * n,
    "returned": lambda x, n: (x * 2, n * 3, [n - 1]),
    "in a loop": lambda x, n: x * functools.reduce(lambda a, i: a + n * i, range(5), n),
}


def math_of(name: str) -> Callable:
    import numpy

    return getattr(numpy, name)


def numpy_number(kind: str, value: float) -> object:
    import numpy

    return getattr(numpy, kind)(value)


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "int32"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_between_numpy_numbers(name: str, kind: str) -> None:
    """One more value costs one compile, then none; types and rounding are NumPy's."""
    f, x = ARITHMETIC[name], torch.arange(1.0, 4.0)
    compiled = bytejit.compile(f, backend="eager")
    for i in range(6):
        n = numpy_number(kind, 3 * i + 2 if "int" in kind else 0.37 * i + 0.11)
        got, want = compiled(x, n), f(x, n)
        if type(want) is tuple:
            assert repr(got[1:]) == repr(want[1:])
            got, want = got[0], want[0]
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    # 0 and 1, which remainders come to, are traced apart
    assert entries(compiled) <= (4 if name == "quotient" and "int" in kind else 2)


def test_arithmetic_that_numpy_warns_of() -> None:
    numpy = pytest.importorskip("numpy")
    compiled, x = bytejit.compile(lambda x, n: x * (1 / n), backend="eager"), torch.ones(2)
    for value in (2.0, 4.0, 8.0, 0.0, 5.0):
        n = numpy.float64(value)
        with pytest.warns(RuntimeWarning, match="divide by zero") if not value else contextlib.nullcontext():
            assert torch.equal(compiled(x, n), x * (numpy.inf if not value else 1 / n))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
@pytest.mark.parametrize("kind", [*KINDS, "bool_"])
def test_a_tensor_made_of_a_numpy_number_has_its_dtype(make: Callable, kind: str) -> None:
    numpy = pytest.importorskip("numpy")

    def f(x, n):
        return make(n), make([n, n]), make(n, dtype=torch.float32), x + make(n)

    compiled = bytejit.compile(f, backend="eager")
    for n in numbers_of(kind) if kind != "bool_" else [numpy.bool_(True), numpy.bool_(False)]:
        for got, want in zip(compiled(torch.ones(2), n), f(torch.ones(2), n)):
            assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_equals_a_numpy_number(kind: str) -> None:
    def f(x, n):
        return x == n, x != n, n == x

    check_few(f, [(torch.arange(6), n) for n in numbers_of(kind)], 2)


class Kind(enum.Enum):
    LEFT = 1


# ---- keys made anew in each call ---------------------------------------------------------------------------------------
KEYS = {
    "device and dtype": lambda x: (x.device, x.dtype),
    "shape": lambda x: x.shape,
    "shape within": lambda x: ((x.shape, x.layout), "k"),
    "class": lambda x: (type(x), 3),
    "enum": lambda x: (Kind.LEFT, x.dtype),
    "set": lambda x: frozenset([x.device, x.dtype]),
}


@pytest.mark.parametrize("name", KEYS)
def test_dicts_by_keys_that_are_made_anew(name: str) -> None:
    """As torch's gradient clipping groups its tensors: the dict crosses a graph break, its keys are equal and new."""

    def f(x: torch.Tensor) -> torch.Tensor:
        groups = {KEYS[name](x): x * 2}
        print(end="")
        total = x.new_zeros(())
        for key, value in groups.items():
            total = total + (value.sum() if key in groups else 7)
        return total + len(groups)

    assert graphs_of(f, [(torch.full((2, 3), float(i)),) for i in range(6)]) <= 3


@pytest.mark.parametrize("made", [lambda x: (x, 1), lambda x: {"x": x, "y": 2}, lambda x: ([x], 3)])
def test_work_within_containers_is_found(made: Callable) -> None:
    """A function that takes a batch and calls one that breaks: what that holds is compiled."""

    def find(batch: object) -> torch.Tensor:
        parts = batch.values() if isinstance(batch, dict) else batch
        return next(v[0] if isinstance(v, list) else v for v in parts if isinstance(v, (torch.Tensor, list)))

    def inner(batch: object) -> torch.Tensor:
        y = find(batch) * 2
        print(end="")
        return y + 1

    def outer(*args: object) -> torch.Tensor:
        return inner(*args)

    assert graphs_of(outer, [(made(torch.full((2,), float(i))),) for i in range(4)]) == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: nn.functional.pad(x, [0, 1], value=n),
        lambda x, n: nn.functional.pad((x * 8).long(), [0, 1], "constant", n),
        lambda x, n: torch.nan_to_num(x / 0.0, n),
        lambda x, n: x.div(0.0).nan_to_num(0.0, posinf=n),
        lambda x, n: nn.functional.smooth_l1_loss(x, x * 2, beta=n),
        lambda x, n: nn.functional.huber_loss(x, x * 2, "mean", n),
        lambda x, n: nn.functional.layer_norm(x, x.shape, None, None, n),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_size_given_as_a_float(f: Callable, backend: str) -> None:
    """torch takes an int there, and its C++ made a constant of a symbolic one."""
    compiled = bytejit.compile(lambda x, y: f(x, y.shape[0] - 1), backend=backend)
    x = torch.arange(4.0) / 4
    for n in range(5, 12):
        want = f(x, n - 1)
        got = compiled(x, torch.zeros(n))
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want)
    assert bytejit.counters.total("graphs") == 2


# ---- objects that live for one call -----------------------------------------------------------------------------------


class Key:
    """Equal to itself only."""


def filled(x, cache, key):
    if key not in cache:
        cache[key] = x * 2
    return cache[key]


BY_KEY: dict[str, Callable] = {
    "read": lambda x, d, k: x * d[k],
    "found": lambda x, d, k: x * 2 if k in d else x,
    "read or not": lambda x, d, k: x * d.get(k, 5.0),
    "filled": filled,
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", BY_KEY)
def test_keys_that_are_new_in_each_call(name: str, kept: bool) -> None:
    """An object that died tells as much of the next call as one that lives: another one comes."""
    f, alive = BY_KEY[name], []
    compiled = bytejit.compile(f, backend=counting)
    COUNTED.clear()
    for _ in range(9):
        keys = Key(), Key()
        alive += keys if kept else ()
        d = {keys[0]: 2.0, keys[1]: 3.0}
        for key in keys:
            got, want = compiled(ONES, dict(d), key), f(ONES, dict(d), key)
            torch.testing.assert_close(got, want)
        del keys, key, d
    assert len(COUNTED) <= 3
    if name == "read":
        with pytest.raises(KeyError):
            compiled(ONES, {}, Key())
    else:
        torch.testing.assert_close(compiled(ONES, {}, Key()), f(ONES, {}, Key()))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_cache_filled_at_once_and_then_one_by_one(backend: str) -> None:
    """The write into the cache asks whether the new part broadcasts: that is seen only when the backend runs."""

    def f(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        places = at + torch.arange(x.shape[1])
        cache[:, places] = x
        at += x.shape[1]
        return x + 1

    compiled = bytejit.compile(f, backend=backend)
    caches = [(torch.zeros(2, 16, 3), torch.tensor(0)) for _ in range(2)]
    for n in (4, 1, 1, 1, 3, 1, 2, 1):
        x = torch.randn(2, n, 3)
        want, got = (g(x, *cache) for g, cache in zip((f, compiled), caches))
        assert torch.equal(got, want) and all(map(torch.equal, *caches))
    assert entries(compiled) <= 3
