# ruff: noqa: UP031, UP032 - what the programs do is the point
"""Strings, numbers and the standard library"""

import cmath
import logging
import math
import operator
import random
import time
import warnings

import numpy as np
import torch

from .harness import F, Sign, Turn, case, program


@case(F(4), "a,b", graphs=1)
def test_str_methods(x, s):
    """str methods"""
    t = "  Hello World "
    return (
        x + len(s),
        s.split(","),
        t.strip().lower(),
        s.replace("a", "c"),
        s.upper(),
        "-".join(["x", "y"]),
        s * 2,
        s + "!",
        s.startswith("a"),
        s.endswith(("b", "c")),
        t.find("W"),
        s[0],
        s[::-1],
        "%d-%s-%.2f" % (1, "q", 2.0),
        "{} {k}".format(1, k=2),
        "a" in s,
        s.partition(","),
        "abc".rjust(5, "."),
        "1".zfill(3),
        "12".isdigit(),
        ord("a"),
        chr(98),
        s.encode(),
        "x=1".rsplit("=", 1),
        "a\nb".splitlines(),
        str(1.5),
        repr("q"),
        "b" > "a",
        s.title(),
        s.count("a"),
        "abc".translate({97: "z"}),
        "{:>4}|{:<4}|{:^4}".format(1, 2, 3),
        "äß".casefold(),
    )


@case(F(4), b"ab")
def test_bytes(x, b):
    """bytes and bytearray"""
    a = bytearray(b)
    a.append(99)
    a[0] = 65
    return x + b[0], a, b.decode(), b.hex(), bytes([1, 2]), b + b"c", b.split(b"a"), int.from_bytes(b"\x01\x00", "big")


@case(F(4), Turn(7, -7, 3), graphs=1)
def test_int(x, n):
    """int: arithmetic, bits, conversions"""
    return (
        x + n,
        n // 2,
        n % 3,
        n**2,
        divmod(n, 4),
        -n,
        abs(n),
        ~n,
        n & 3,
        n | 8,
        n ^ 1,
        n << 2,
        n >> 1,
        n.bit_length(),
        int("12"),
        int(3.9),
        int("ff", 16),
        hex(255),
        bin(5),
        oct(8),
        pow(2, 5, 7),
        round(n / 2),
        n == 7.0,
        bool(n),
        n.to_bytes(2, "big", signed=True),
        isinstance(True, int),
        True + 1,
        10**20 + n,
    )


@case(F(4), Turn(1.5, -0.25), graphs=1)
def test_float(x, v):
    """float: arithmetic, rounding, inf, nan"""
    return (
        x * v,
        v // 1,
        v % 1,
        v**2,
        round(v, 1),
        round(v),
        float("1e3"),
        float("inf") > v,
        v.is_integer(),
        v.as_integer_ratio(),
        abs(v),
        -v,
        int(v),
        float("nan") != float("nan"),
        -0.0,
        str(v),
        v.hex(),
        1e308 * 10,
    )


@case(F(4), graphs=1)
def test_complex(x):
    """complex and cmath"""
    c = 3 + 4j
    return x * abs(c), c.real, c.conjugate(), c * 1j, complex(1, 2), cmath.sqrt(-1), c == complex(3, 4), c**2


@case(F(4), graphs=1)
def test_range_slice(x):
    """range and slice objects"""
    r = range(1, 10, 3)
    s = slice(1, 5)
    return (
        x + len(r),
        r,
        r[1],
        r[-1],
        r[::2],
        4 in r,
        5 in r,
        r.index(7),
        list(reversed(r)),
        s.indices(3),
        s.start,
        list(range(3, 0, -1)),
        r == range(1, 9, 3),
        r.step,
        sum(r),
    )


@case(F(4), graphs=1)
def test_math(x):
    """math"""
    return (
        x * math.sqrt(2),
        math.floor(2.5),
        math.ceil(2.5),
        math.log(10),
        math.exp(1),
        math.prod([1, 2, 3]),
        math.gcd(4, 6),
        math.isclose(1.0, 1.0 + 1e-12),
        math.inf,
        math.isnan(math.nan),
        math.factorial(5),
        math.hypot(3, 4),
        math.comb(4, 2),
        math.copysign(1, -0.0),
        math.fsum([0.1] * 10),
        math.log2(8),
        math.pow(2, 0.5),
        math.trunc(-2.5),
        math.tau,
    )


@case(F(4), graphs=1)
def test_operator(x):
    """operator"""
    o = operator
    return (
        o.add(x, 1),
        o.mul(2, x),
        o.neg(x),
        o.getitem([1, 2], 1),
        o.itemgetter(1, 0)([5, 6]),
        o.attrgetter("shape")(x),
        o.methodcaller("sin")(x),
        o.methodcaller("add", 1, alpha=2)(x),
        o.matmul(x, x),
        o.truth([]),
        o.not_(1),
        o.contains([1], 1),
        o.index(3),
        o.is_(x, x),
        o.eq(1, 1),
        o.iadd([1], [2]),
        o.floordiv(7, 2),
    )


@case(F(4))
def test_random(x):
    """random: the same stream"""
    r = random.Random(3)
    return x * random.random(), random.randint(1, 10), random.choice("abc"), r.random(), random.sample(range(10), 3)


@case(F(4))
def test_random_seed_state(x):
    """random.seed, getstate, setstate, shuffle"""
    random.seed(5)
    s = random.getstate()
    a = random.random()
    random.setstate(s)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x + 1, a, items, random.gauss(0, 1)


@case(F(4))
def test_time(x):
    """time: calls happen in order"""
    t0 = time.perf_counter()
    y = x + 1
    t1 = time.perf_counter()
    return y, t1 >= t0


@case(F(4))
def test_print_order(x):
    """print: text and order"""
    print("before", 1)
    y = x + 1
    print("shape", y.shape, y.dtype, sep="|", end=";\n")
    z = y * 2
    print("after")
    return z


@case(F(4))
def test_print_tensor(x):
    """print of a tensor's values"""
    y = x + 1
    print("y =", y)
    return y * 2


@case(F(4))
def test_print_in_loop_and_callee(x):
    """print inside loops and callees"""

    def step(t, i):
        print("step", i)
        return t + i

    for i in range(3):
        x = step(x, i)
    print("end")
    return x


@program(F(4))
def test_logging():
    """logging: records and their order"""
    records = []

    class Keep(logging.Handler):
        def emit(self, r):
            records.append((r.levelname, r.getMessage()))

    log = logging.Logger("program", logging.INFO)
    log.addHandler(Keep())

    def f(x):
        log.info("start %s", 1)
        y = x + 1
        log.debug("hidden")
        log.warning("shape %s", tuple(y.shape))
        return y

    return f, lambda: records


@case(F(4))
def test_warnings(x):
    """warnings: raised where the program raises them"""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning)
        y = x + 1
    return y, [(str(w.message), w.category.__name__) for w in seen]


@case(F(4), Turn(2, 3, 4), 0.5, "relu", None, True)
def test_plain_arguments(x, n, p, name, nothing, flag):
    """int, float, str, None, bool arguments"""
    y = getattr(torch, name)(x) * n + p
    return y if flag and nothing is None else -y


@case(F(4), 3)
def test_no_tensor_work(x, n):
    """A function without tensor work"""
    total = 0
    for i in range(n):
        total += i * i
    return total, x


@case(Turn(1, 2), 3, graphs=0)
def test_no_tensor_at_all(a, b):
    """A function that never sees a tensor"""
    return {"sum": a + b, "list": [a] * b}


@case(F(4))
def test_datetime_decimal_fraction(x):
    """fractions, decimal, datetime, json, re"""
    import datetime
    import decimal
    import fractions
    import json
    import re

    d = datetime.date(2020, 1, 2) + datetime.timedelta(days=3)
    return (
        x + 1,
        str(fractions.Fraction(1, 3) + 1),
        str(decimal.Decimal("1.10") * 2),
        d.isoformat(),
        json.dumps({"a": [1]}),
        re.sub(r"\d", "#", "a1b2"),
        re.match(r"(\w)(\d)", "a1").groups(),
    )


@case(F(4), graphs=1)
def test_os_env_and_sys(x):
    """os.environ, sys.version_info, platform"""
    import os
    import sys

    return x + (1 if sys.version_info >= (3, 8) else 2), os.environ.get("NO_SUCH_VARIABLE", "none"), sys.maxsize > 0


@case(F(4), graphs=1)
def test_builtin_functions(x):
    """Builtins: abs, pow, round, sum, hash, id, iter, dir, vars, callable, format"""
    return (
        abs(x),
        pow(x, 2),
        sum([x, x]),
        round(2.567, 2),
        divmod(7, 2),
        hash("a") == hash("a"),
        id(x) == id(x),
        bool([]),
        format(3.14159, ".2f"),
        list(map(str, [1, 2])),
        all([]),
        any([0, 1]),
        isinstance(x, (int, torch.Tensor)),
        max("abc"),
        min([3, 1], default=0),
        max([], default=9),
        sorted("cab"),
        list("ab"),
        tuple(range(2)),
        dict(a=1),
    )


@case(F(4))
def test_eval_like(x):
    """`locals()` and `globals()` read"""
    y = 3
    return x + locals()["y"], "torch" in globals(), sorted(k for k in locals() if k in ("x", "y"))


@case(F(4))
def test_exec_eval(x):
    """`eval` and `exec`"""
    space = {"x": x}
    exec("y = x + 1", space)
    return space["y"] * eval("2 + 1")


@case(Sign(4), breaks=True)
def test_print_around_break(x):
    """print before and after a break"""
    print("a")
    y = x + 1
    if y.sum() > 0:
        print("positive")
    print("b")
    return y * 2


@case(F(4), graphs=1)
def test_random_draws_that_leave(x):
    """Draws of `random` and numpy.random that nothing in the region looks at: the same streams, in order"""
    a = random.random()
    b = np.random.uniform(0, 2)
    c = random.uniform(1.0, 3.0)
    skip = False and a < 0.5
    return x * 2, [a, {"b": b}], c, np.random.rand(), isinstance(a, float), skip, a is None


@case(F(4))
def test_random_draws_that_decide(x):
    """Draws that decide a branch, enter an operation, are keys and indices"""
    a = random.random()
    y = x + 1
    if np.random.uniform(0, 1) < 0.5:
        y = y * a
    table = {random.random(): 1}
    return y * 2, table, int(random.random() * 3), f"{random.random():.3f}", -random.random(), min(random.random(), 2)
