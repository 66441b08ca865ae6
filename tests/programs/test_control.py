# ruff: noqa: F821, I001 - what the programs do is the point
"""Control flow and names

PYTEST_DONT_REWRITE: an assert in a program must be Python's own.
"""

import torch

from .harness import F, Sign, Turn, case, check, program

COUNT = 0
TABLE = {"a": 1}
SCALE = 2.5


def helper(x, k=2, *rest, flag=False, **more):
    y = x * k + len(rest)
    return y - more.get("z", 0) if flag else y


@case(F(4), Turn(1, 1, -1), graphs=1)
def test_if_on_int(x, n):
    """`if` on a Python value"""
    if n > 0:
        return x + n
    return x - n


@case(F(4), 3, graphs=1)
def test_while(x, n):
    """`while` on a Python value"""
    while n:
        x = x.sin() + n
        n -= 1
    return x


@case(F(4), graphs=1)
def test_for_break_else(x):
    """`for` with `break`, `continue`, `else`"""
    for i in range(5):
        if i == 1:
            continue
        if i == 3:
            break
        x = x + i
    else:
        x = x * 100
    for _ in (1, 2):
        x = x * 2
    else:
        x = x + 0.5
    return x


@case(F(4, 3), graphs=1)
def test_for_over_tensor(x):
    """`for` over a tensor's rows"""
    out = []
    for row in x:
        out.append(row * 2)
    return out


@case(F(4), graphs=1)
def test_nested_loops(x):
    """Nested loops with break"""
    for i in range(3):
        for j in range(3):
            if j > i:
                break
            x = x + i * j
    return x, i, j


@case(F(4), True, None, graphs=1)
def test_bool_ops(x, a, b):
    """`and`, `or`, `not`, ternary"""
    y = b or a and x
    z = (x + 1) if b is None or a else x
    return y, z, not a, (a is None, b is None)


@case(F(4), 5, graphs=1)
def test_chained_comparison(x, n):
    """Chained comparison"""
    if 1 < n <= 5 != 7:
        return x + 1
    return x


@case(F(4), graphs=1)
def test_walrus(x):
    """Walrus"""
    if (n := x.shape[0]) > 2:
        x = x * n
    return x, [y := n, y + 1]


def _match(x, v):
    match v:
        case 0:
            return x
        case int(n) if n > 5:
            return x + n
        case [a, b, *rest]:
            return x * a + b, rest
        case {"k": k, **others}:
            return x - k, others
        case str() | bytes():
            return x.sin()
        case None:
            return x.cos()
        case _:
            return -x


def test_match():
    """`match`: literals, guards, sequences, mappings, classes, or"""
    for v in (0, 7, 3, [1, 2, 3, 4], {"k": 2, "l": 3}, "s", None):
        check(_match, F(4), v, graphs=0 if v == 0 else 1, calls=2)


@program(F(4), graphs=1)
def test_match_class():
    """`match` on a class with `__match_args__`"""

    class Point:
        __match_args__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

    def f(t):
        p = Point(1, t)
        match p:
            case Point(0, y):
                return y
            case Point(x=1, y=y):
                return y * 3
        return None

    return f


@case(F(4), graphs=1)
def test_args_kwargs_defaults(x):
    """Defaults, keyword-only, `*args`, `**kwargs`"""
    more = {"flag": True, "z": 3}
    return helper(x), helper(x, 3, 4, 5), helper(x, **more), helper(*(x, 1), flag=True), helper(k=4, x=x)


@case(F(4), F(4), 7, kwargs={"k": 3, "other": F(4)}, graphs=1)
def test_own_varargs(x, *rest, k=1, **more):
    """The compiled function's own `*args` and `**kwargs`"""
    return x * k + rest[0] + rest[1], sorted(more), more["other"] + len(rest)


@case((1, 2, 3), F(4), graphs=1)
def test_unpacking(t, x):
    """Unpacking, starred, swap"""
    a, *b = t
    (c, d), e = (x, x + 1), [*t, *b]
    c, d = d, c
    first, *_, last = e
    return a, b, c - d, e, {**{"a": a}, "b": last}, (*t, first)


@case(F(4), graphs=1)
def test_comprehensions(x):
    """List, set, dict comprehensions, nested, with `if`"""
    ys = [x + i for i in range(3) if i != 1]
    zs = {k: v * 2 for k, v in enumerate(ys)}
    ss = {i % 3 for i in range(10)}
    return ys, zs, ss, [[x * i * j for i in range(2)] for j in range(2)]


@case(F(4), 3, graphs=1)
def test_fstrings(x, n):
    """f-strings"""
    s = f"{n!r:>5}|{n:03d}|{x.shape}|{x.dtype}|{3.14159:.2f}|{'a'!s}"
    return x + len(s), s


@case(F(6, 4), graphs=1)
def test_slices(x):
    """Slices of tensors, lists, strings"""
    s = slice(1, None, 2)
    rows = list(range(10))
    return x[1:3], x[s], x[:, -1], x[..., None], rows[::-1], rows[s], "abcdef"[s], x[None, 2:, ::2], x[[0, 2]]


@case(F(4), graphs=1)
def test_closure_made_inside(x):
    """Closures made inside, over loop variables and cells"""
    fs = []
    for i in range(3):

        def g(y, i=i):
            return y * i + k

        fs.append(g)
    k = 10
    return [g(x) for g in fs], (lambda y: y + k)(x)


@case(F(4), graphs=1)
def test_nonlocal_inside(x):
    """`nonlocal` in a function made inside"""
    n = 0

    def bump(y):
        nonlocal n
        n += 1
        return y + n

    return bump(bump(x)), n


@program(F(4), graphs=1)
def test_nonlocal_outside():
    """`nonlocal` write to a cell of the compiled function"""
    last = None

    def f(x):
        nonlocal last
        last = x + 1
        return x * 2

    return f, lambda: last


@program(F(4))
def test_nonlocal_counter_outside():
    """A counter in a cell, read and written"""
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return x * n

    return f, lambda: n


@case(F(4), watch=("COUNT",))
def test_global_write(x):
    """`global` write"""
    global COUNT
    COUNT += 1
    return x + COUNT


@case(F(4), watch=("COUNT", "FRESH"), graphs=1, calls=1)
def test_global_new_and_tensor(x):
    """`global` made and set to a tensor"""
    global FRESH, COUNT
    FRESH = x + 1
    COUNT = FRESH * 2
    return COUNT + 1


@case(F(4), graphs=1)
def test_global_read(x):
    """Globals and builtins read"""
    return x * SCALE + TABLE["a"] + len(TABLE) + max(1, 2)


@program(F(4), graphs=1)
def test_returned_closure():
    """A closure made inside and returned, called outside"""

    def f(x):
        y = x + 1

        def g(z):
            return y * z

        return g

    return (f, None)


def _drive_returned(f, x):
    return f(x)(x)


@program(F(4), drive=_drive_returned, graphs=1)
def test_returned_closure_called():
    """A closure over a traced tensor, called by the user afterwards"""

    def f(x):
        y = x + 1
        return lambda z: y * z

    return f


@case(F(4), 5, graphs=1)
def test_recursion(x, n):
    """Recursion"""

    def down(y, k):
        return y if k == 0 else down(y + k, k - 1)

    return down(x, n)


@case([1, [2, [3, (4, {"a": 5})]]], F(4), graphs=1)
def test_recursion_tree(tree, x):
    """Recursion over nested containers"""

    def walk(t):
        if isinstance(t, dict):
            return {k: walk(v) for k, v in t.items()}
        if isinstance(t, (list, tuple)):
            return type(t)(walk(v) for v in t)
        return x * t

    return walk(tree)


@case(F(4), graphs=1)
def test_del_and_unbound(x):
    """`del` of a local, UnboundLocalError caught"""
    y = x + 1
    z = y * 2
    del y
    try:
        return y
    except UnboundLocalError:
        return z


@case(F(4), graphs=1)
def test_assert_passes(x):
    """`assert` on a Python value that holds"""
    assert x.dim() == 1, "one axis"
    return x + 1


@case(F(4), 0)
def test_assert_fails(x, n):
    """`assert` on a Python value that fails"""
    y = x + 1
    assert n, f"n is {n}"
    return y


@case(Sign(4))
def test_assert_tensor(x):
    """`assert` on a tensor"""
    y = x * 2
    assert y.sum() > 0, "negative"
    return y + 1


@case(Sign(4), breaks=True, graphs=2, total=3)
def test_if_tensor(x):
    """`if` on a tensor: both sides, one break"""
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


@case(Sign(4), breaks=True)
def test_if_tensor_merges(x):
    """`if` on a tensor whose sides meet again"""
    y = x * 2
    if y.sum() < 0:
        y = y * -1
    return y + 3


@case(F(4), breaks=True)
def test_while_tensor(x):
    """`while` on a tensor"""
    n = 0
    while x.abs().sum() > 0.5:
        x = x / 2
        n += 1
    return x, n


@case(Sign(4), breaks=True)
def test_bool_ops_tensor(x):
    """`and`, `or`, `not` on a tensor"""
    a = (x.sum() > 0) and (x.mean() > 0)
    b = not (x > 0).all()
    return x + 1 if b else x - 1, a


@case(Sign(4), breaks=True)
def test_ternary_tensor(x):
    """Conditional expression on a tensor, in a call's arguments"""
    return torch.add(x, x.sin() if x.sum() > 0 else x.cos()) * 2


@case(F(4), graphs=1)
def test_star_import_names(x):
    """Import inside a function"""
    import math
    from math import pi as p
    import os.path as osp

    return x * math.e + p, osp.basename("a/b")


@case(F(4), graphs=1)
def test_type_hints_and_docs(x: torch.Tensor) -> torch.Tensor:
    """Annotations, docstrings, pass, ellipsis"""
    y: int = 3
    ...
    pass
    return x * y


@case(F(4), graphs=1)
def test_lambda_default(x):
    """Lambdas with defaults and keyword arguments"""
    f = lambda a, *, b=2: a * b  # noqa: E731
    return f(x) + f(x, b=3) + (lambda *a: a[0] + len(a))(x, 1, 2)


@case(F(4), 2, graphs=1)
def test_augmented_assignment(x, n):
    """Augmented assignment on locals, items, attributes"""
    d = {"a": n}
    d["a"] += 3
    y = x.clone()
    y += 1
    y *= d["a"]
    n **= 3
    n //= 2
    n |= 1
    n <<= 2
    return y, n, d


@case(F(4), graphs=1)
def test_is_and_in(x):
    """`is`, `in`, `not in` on values, tensors in identity tests"""
    y = x
    return x + (1 if y is x else 2), 3 in (1, 2, 3), "a" not in {"a": 1}, x is None


@case(F(2, 2), graphs=1)
def test_type_tests(x):
    """`isinstance`, `type`, `issubclass`, `callable`, `hasattr`"""
    return (
        x + 1,
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
        issubclass(bool, int),
        callable(helper),
        hasattr(x, "sin"),
        hasattr(x, "no_such"),
    )


def test_lambda_compiled():
    """A lambda as the compiled function"""
    check(lambda x, k=3: x.sin() * k, F(4), graphs=1)


@case(F(4), Turn(1, 2), graphs=0)
def test_loops_without_tensor_work(x, n):
    """Loops and comprehensions in a function that computes with no tensor: nothing is compiled, nothing breaks"""
    total = 0
    for i in [n, 2]:
        total += i
    return x, total, [i * j for i in range(3) for j in range(i) if j], {i for i in [n, n]}
