"""Calls, callbacks and what torch defines from outside"""

import functools
import os
import threading
import typing

import torch

from .harness import F, I, Sign, case, program


@torch.library.custom_op("bytejit_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


@torch.library.custom_op("bytejit_tests::fill_first", mutates_args=("x",))
def fill_first(x: torch.Tensor) -> None:
    x[0] = 9.0


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * ctx.k, None


def deep(x, n):
    return x + 1 if n == 0 else deep(x * 2, n - 1)


@case(F(4), graphs=1)
def test_inlined_deep(x):
    """Calls inlined twenty deep"""
    return deep(x, 20)


@case(F(4), graphs=1)
def test_custom_op(x):
    """A custom op of torch.library"""
    return scaled(x + 1, 2.0) * 3


@case(F(4), graphs=1)
def test_custom_op_mutates(x):
    """A custom op that writes into its argument"""
    y = x + 1
    fill_first(y)
    fill_first(x)
    return y * 2


@case(F(4), graphs=1)
def test_torch_ops_namespace(x):
    """`torch.ops.aten` called directly"""
    return torch.ops.aten.sin(x), torch.ops.aten.add.Tensor(x, x, alpha=2), torch.ops.bytejit_tests.scaled(x, 0.5)


def _grad_of(f, x):
    y = f(x)
    y.sum().backward()
    return y.detach(), x.grad


@case(F(4, grad=True), drive=_grad_of)
def test_autograd_function(x):
    """autograd.Function, forward and backward"""
    return Cube.apply(x * 2, 3) + 1


@case([(2, "b"), (1, "a")], F(4))
def test_sorted_key(pairs, x):
    """`sorted(key=)`, `list.sort(key=)`, `min`/`max(key=)` with user functions"""
    pairs.sort(key=lambda p: p[0])
    return x * sorted(pairs, key=lambda p: p[1])[0][0], max(pairs, key=lambda p: -p[0]), pairs


@case(F(4))
def test_sorted_key_tensor(x):
    """`sorted(key=)` whose key needs tensor values"""
    items = [x[i] for i in range(4)]
    return torch.stack(sorted(items, key=lambda t: t.item()))


@case(F(4), graphs=1)
def test_reduce_map_callbacks(x):
    """`functools.reduce`, `map`, `filter` with user functions over tensors"""
    return functools.reduce(lambda a, b: a + b, map(lambda i: x * i, filter(lambda i: i % 2, range(5))))


@program(F(4))
def test_module_apply():
    """`module.apply(fn)`"""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def f(x):
        def init(m):
            if isinstance(m, torch.nn.Linear):
                with torch.no_grad():
                    m.weight.fill_(0.5)
                    m.bias.zero_()

        net.apply(init)
        return net(x)

    return f


@case(F(4), graphs=1)
def test_functions_as_values(x):
    """Functions in lists and dicts, passed as arguments, compared"""
    table = {"sin": torch.sin, "own": lambda t: t * 2, "bound": x.cos}
    fs = [table["sin"], table["own"]]
    for f in fs:
        x = f(x)
    return x, table["bound"](), fs[0] is torch.sin, torch.sin.__name__, callable(fs[1])


@case(F(4), torch.tanh, graphs=1)
def test_function_argument(x, act):
    """A function as argument"""
    return act(x) + 1


@case(F(3, 4))
def test_vmap_and_grad(x):
    """torch.func: vmap, grad, jvp"""
    f = lambda t: (t * t).sum()  # noqa: E731
    return torch.vmap(f)(x), torch.func.grad(f)(x[0]), torch.func.jvp(f, (x[0],), (x[1],))[1]


@case(F(4))
def test_script_flags(x):
    """torch.jit.is_scripting, is_tracing"""
    if torch.jit.is_scripting() or torch.jit.is_tracing():
        return x
    return x + 1


@case(Sign(4), breaks=True)
def test_break_in_callee(x):
    """Break two calls deep: callers go on"""

    def inner(t):
        u = t + 1
        if u.sum() > 0:
            u = u * 2
        return u - 1

    def outer(t):
        a = t.sin()
        b = inner(t)
        return a + b

    return outer(x) * 3, [outer(x), 2]


@case(Sign(4), breaks=True)
def test_break_in_argument(x):
    """Break while the stack holds values: inside a call's arguments"""

    def pick(t):
        return 1 if t.sum() > 0 else 2

    return (x + 1, pick(x), torch.add(x, pick(x) * 2), {"a": pick(x), "b": [pick(-x), x * pick(x)]}, f"{pick(x)}!")


@case(Sign(4), breaks=True)
def test_break_in_closure(x):
    """Break inside a closure that writes a cell"""
    n = 0

    def bump(t):
        nonlocal n
        n += 1
        if t.sum() > 0:
            n += 10
        return t * n

    a = bump(x)
    b = bump(a)
    return a, b, n


@case(Sign(4), breaks=True)
def test_break_in_recursion(x):
    """Break inside a recursive function"""

    def go(t, k):
        if k == 0:
            return t
        if t.sum() > 0:
            t = t + k
        return go(t * 2, k - 1)

    return go(x, 3)


@case(Sign(4), breaks=True)
def test_break_in_lambda_and_decorated(x):
    """Break inside a lambda, a decorated function, a callback"""

    def deco(f):
        @functools.wraps(f)
        def g(*a, **k):
            return f(*a, **k) + 1

        return g

    @deco
    def f(t):
        return t * 2 if t.sum() > 0 else t * 3

    return f(x), (lambda t: t + 1 if t.mean() > 0 else t)(x), list(map(f, [x, -x]))


@case(F(4), breaks=True)
def test_break_every_line(x):
    """A break at every line"""
    a = x.sum().item()
    b = (x * a).sum().item()
    c = (x + b).mean().item()
    d = x * c
    e = d.max().item()
    if e > 100:
        return x
    return x + a + b + c + e


@case(Sign(4), breaks=True)
def test_break_many_locals_and_cells(x):
    """Break with many locals, cells, a loop and unbound names alive"""
    a, b, c = 1, [2], {"k": x}
    for i in range(2):
        y = x + i
        g = lambda t: t * a + y.sum()  # noqa: B023,E731
        if y.sum() > 0:
            z = g(y)
        else:
            w = g(x)
            z = w + 1
        a += 1
    return a, b, c, i, z, g(x)


@case(Sign(4), breaks=True)
def test_break_between_inplace(x):
    """In-place work before and after a break on an argument and its view"""
    v = x[1:]
    x.add_(1)
    if v.sum() > 0:
        v.mul_(2)
    x[0] = v[0]
    return x, v


@case(F(4), graphs=1)
def test_call_with_star_kwargs(x):
    """Calls with `*`, `**`, positional-only parameters"""

    def g(a, /, b, *, c=1, **k):
        return a * b + c + sum(k.values())

    opts = {"c": 2, "d": 3}
    return g(x, 2), g(x, b=3, **opts), g(*[x, 1], **{"e": 1})


@case(F(4))
def test_user_typeerrors(x):
    """TypeErrors of calls caught"""

    def g(a, /, b, *, c):
        return a

    out = []
    for args, kw in (((x,), {}), ((x, 1), {}), ((x, 1, 2), {"c": 1}), ((x, 1), {"c": 1, "z": 2}), ((), {"a": x, "b": 1})):
        try:
            g(*args, **kw)
        except TypeError as e:
            out.append(str(e))
    return x + 1, out


@case(F(4))
def test_inspect_signature(x):
    """`inspect.signature`, `__code__`, `__defaults__` of user functions"""
    import inspect

    def g(a, b=2):
        return a * b

    return g(x), list(inspect.signature(g).parameters), g.__defaults__, g.__code__.co_varnames, g.__name__


@program(F(4))
def test_compiled_calls_compiled():
    """A compiled function that calls another compiled function"""
    from . import targets

    inner = targets.compiled(lambda t: t.sin() + 1, targets.Counter())

    def f(x):
        return inner(x) * 2

    return f


@case(F(4), graphs=1)
def test_torch_decorators(x):
    """Functions decorated by torch's own decorators"""

    @torch.no_grad()
    def g(t):
        return t * 2

    return g(x).shape[0] + x


@case(F(4), graphs=1)
def test_code_of_a_function_made_inside(x):
    """`__code__` of a function made inside: replaced (torch names the frames of its decorators so), by another's, refused"""

    def g(t):
        return t * 2 + len(seen)

    def h(t):
        return t - len(seen)

    seen = [1]
    g.__code__ = g.__code__.replace(co_name="shown", co_qualname="shown.as")
    first = g(x)
    g.__code__ = h.__code__
    try:
        g.__code__ = (lambda t: t).__code__
    except ValueError as error:
        refused = str(error)
    return first, g(x), g, g.__name__, g.__code__.co_name, refused


@case(F(4))
def test_inference_mode_decorator(x):
    """A function decorated by inference_mode, which breaks the graph"""

    @torch.inference_mode()
    def g(t):
        return t * 2

    return g(x).shape[0] + x


@case(I(3), F(5, 2), graphs=1)
def test_global_torch_functions(i, x):
    """torch functions through aliases, getattr, `from torch import`"""
    from torch import cos, nn

    sel = getattr(torch, "index_select")
    return cos(x), sel(x, 0, i % 5), nn.functional.relu(x), torch.nn.functional.silu(x), torch.Tensor.add(x, 1)


@case(F(2, 7, 4), graphs=1, tol=(1e-6, 1e-6))
def test_associative_scan(x):
    """torch's associative_scan: element by element, and with a function called for each row"""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    gates, states = associative_scan(combine, (x.sigmoid(), x), dim=1, combine_mode="generic")
    m = torch.eye(4) + x[0, :4] * 0.1
    products = associative_scan(lambda a, b: a @ b, torch.stack([m, m * 0.5, m + 1]), 0, True, combine_mode="generic")
    return gates, states, products


@case(F(3, 7), graphs=1)
def test_order_of_associative_scan(x):
    """associative_scan combines in torch's order: sums are rounded alike, and so is what is not associative"""
    from torch._higher_order_ops.associative_scan import associative_scan

    def uneven(a, b):
        return a * b + b

    return [
        associative_scan(fn, x[:, :n], 1, reverse, combine_mode="generic")
        for n in range(1, 8)
        for fn, reverse in ((uneven, False), (uneven, True), (torch.add, False))
    ]


@torch.jit.script
def scripted(x, k: float = 2.0, n: int = 3, y: typing.Optional[torch.Tensor] = None):  # noqa: UP045 - TorchScript's own way
    if y is not None:
        x = x + y
    for _ in range(n):
        x = x * k
    return x


@case(F(3))  # one graph, unless torch's own testing package put another __call__ into the class of scripted functions
def test_scripted_functions(x):
    """A function made by torch.jit.script is part of the graph"""
    return scripted(x), scripted(x, 3.0, n=2), scripted(x, y=x)


@case(F(3), I(3))
def test_scripted_functions_that_convert(x, i):
    """TorchScript makes numbers of other types, and refuses what is none: these calls are its own"""
    got = []
    for args in ((i, 2), (i, 2.0), (x, 2.0, 2.5), (x, "a"), (3,)):
        try:
            got.append(scripted(*args))
        except RuntimeError as e:
            got.append(type(e))
    return got


HERE = threading.local()
HERE.scale, HERE.shift = 3, torch.ones(3)


@case(F(3), graphs=1)
def test_thread_local(x):
    """Attributes of a threading.local, of this thread"""
    return x * HERE.scale + HERE.shift, getattr(HERE, "none", 5), hasattr(HERE, "scale")


@program(F(3), calls=3)
def test_thread_local_changes():
    """A threading.local that changes between calls, and one that is written inside"""
    own = threading.local()
    own.n = 1

    def f(x):
        y = x * own.n
        try:
            own.last, own.n = y, own.n + 1
            del own.last
        except AttributeError:
            return None
        return y

    return f, lambda: own.n


@case(F(3), graphs=1)
def test_paths_and_translations(x):
    """os.path and str.maketrans"""
    parts = os.path.join(os.fspath("a"), "b.txt"), os.path.splitext("b.txt"), os.path.basename("a/b")
    return x + 1, parts, "abc".translate(str.maketrans({"a": "z"})), str.maketrans("a", "b"), bytes.maketrans(b"a", b"b")[97]
