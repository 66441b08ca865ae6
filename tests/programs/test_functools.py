# ruff: noqa: B019
"""functools: functions with caches, from outside and made inside; what else it offers."""

import functools

import torch

from .harness import F, Turn, case, program


@program(F(4), Turn(1, 1, 2), graphs=1)
def test_cached_functions():
    """`lru_cache` functions from outside without effects: results, identity and counts of hits"""

    @functools.cache
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.lru_cache
    def table(n, *, dtype=torch.float32):
        return torch.arange(n, dtype=dtype) * 2

    def f(x, k):
        t = table(4, dtype=torch.float32)
        return x * fib(8 + k) + t, table(4, dtype=torch.float32) is t, fib(8 + k)

    return f, lambda: (fib.cache_info(), table.cache_info())


@program(F(4), Turn(1, 1, 2), calls=3)
def test_cached_calls_that_the_original_code_makes():
    """A region that ends before a cached function is called leaves the cache as it was; one that forgets early is asked anew"""

    @functools.cache
    def scale(n):
        return n * 2

    @functools.lru_cache(maxsize=2)
    def shift(n, by=1):
        return n + by

    def inner(x, k):
        n = scale(k)
        print(n)
        return x * n

    def scales(k):
        yield scale(k + 10)
        print(k)
        yield scale(k + 20)

    def f(x, k):
        y = inner(x, k) + sum(scales(k))
        return y * shift(1) + shift(2) + shift(k) + shift(1, by=2)

    return f, lambda: (scale.cache_info(), shift.cache_info())


@program(F(4), Turn(1, 1, 2), graphs=1)
def test_cached_methods():
    """Methods under `lru_cache`: a class's cache that all its instances share, read through an instance and through a class"""

    class Scaled:
        def __init__(self, by):
            self.by = by

        @functools.lru_cache(maxsize=4)
        def scale(self, n, plus=0):
            return self.by * n + plus

        @classmethod
        @functools.cache
        def table(cls, n):
            return [n] * 2

    class More(Scaled):
        pass

    a, b = Scaled(3), More(5)

    def f(x, k):
        times = a.scale
        return x * times(k) + b.scale(k, plus=1), Scaled.scale(a, k), a.table(k) is Scaled.table(k), b.table(k) is a.table(k)

    return f, lambda: (Scaled.scale.cache_info(), Scaled.table.cache_info())


@program(F(4), Turn(1, 1, 2, 3, 1), calls=6)
def test_cached_methods_with_effects():
    """They run as often as without compiling; instances made in the region, and keys that die"""
    calls = []

    class Once:
        @functools.lru_cache(None)
        def say(self, *what):
            calls.append(what)
            return len(what)

        @functools.lru_cache(maxsize=1)
        def plain(self, n):
            return n + 1

    one = Once()

    def f(x, k):
        one.say("hello")
        return x * one.say("k", k) + Once().plain(k)

    return f, lambda: (calls, Once.say.cache_info(), Once.plain.cache_info())


@program(F(4), Turn(1, 1, 2, 3, 1), calls=6)
def test_cached_functions_with_effects():
    """An `lru_cache` function that changes something: it runs as often as without compiling"""
    calls = []

    @functools.lru_cache(maxsize=2)
    def g(n):
        calls.append(n)
        return n * 2

    def f(x, k):
        return x * g(k) + g(k + 1)

    return f, lambda: (calls, g.cache_info())


@program(F(4), Turn(1, 1, 2, 3, 1, 2), calls=7)
def test_cache_that_forgets():
    """A bounded `lru_cache` whose results are changed and dropped"""

    @functools.lru_cache(maxsize=2)
    def g(n):
        return [n * 2]

    def f(x, k):
        found = g(k)
        found.append(1)
        return x * found[0] + len(g(k + 1))

    return f, lambda: (g(1), g.cache_info())


@program(F(4))
def test_cached_function_of_tensors():
    """An `lru_cache` function of a tensor, of what cannot be hashed, of typed arguments, without a cache"""
    log = []

    @functools.lru_cache(maxsize=2)
    def g(t):
        log.append(1)
        return t * 2

    @functools.lru_cache(typed=True)
    def h(n, *more):
        return (n, more)

    @functools.lru_cache(maxsize=0)
    def i(n):
        log.append(n)
        return n

    def f(x):
        a = g(x)
        out = [a, g(x) is a, h(1), h(1.0), h(True), h(1, 2), i(3) + i(3)]
        try:
            h([1])
        except TypeError as e:
            out.append(str(e))
        return out

    return f, lambda: (log, g.cache_info(), i.cache_info())


@program(F(4))
def test_cached_method():
    """A method under `lru_cache`"""

    class Counted:
        n = 0

        @functools.lru_cache  # noqa: B019
        def twice(self, k):
            Counted.n += 1
            return k * 2

    one = Counted()

    def f(x):
        return x * one.twice(3) + one.twice(3)

    return f, lambda: (Counted.n, Counted.twice.cache_info())


@program(F(4))
def test_cached_random_tensor():
    """A cached tensor of random numbers: the stream is the same"""

    @functools.cache
    def weights(k):
        return torch.randn(k)

    def f(x):
        return x * weights(4) + torch.rand(4)

    return f


@case(F(4), graphs=1)
def test_cache_made_inside(x):
    """`lru_cache` and `cache` made inside: recursion, counts, what is dropped, cleared"""
    calls = []

    @functools.cache
    def fib(n):
        calls.append(n)
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.lru_cache(maxsize=2)
    def scaled(k, s=1):
        calls.append(k)
        return x * k

    @functools.cache
    def shifted(k):
        return x + k

    a = fib(10)
    ys = [scaled(1), scaled(2), scaled(1), scaled(3), scaled(2), scaled(k=2), scaled(2, 1)]
    info = fib.cache_info()
    fib.cache_clear()
    return (
        x * a,
        ys,
        calls,
        shifted(2) is shifted(2),
        info,
        fib.cache_info(),
        scaled.cache_info(),
        scaled.cache_parameters(),
        fib.__wrapped__(1),
        fib.__name__,
    )
