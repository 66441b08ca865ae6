# ruff: noqa - the programs are as users write them
"""Programs as users write them, dense: many features of Python and torch in each"""

import abc
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import operator
import pickle
import random
import string
import typing
import warnings
import weakref

import numpy as np
import torch
import torch.nn.functional as Fn
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from .harness import F, I, Spec, Turn, case, program


def G(*shape):
    return F(*shape, grad=True)


# 1 property setter with side effects + in-place on view of input then returned
@program(F(4, 4))
def test_prop_view():
    """Property setters with effects, writes into views of inputs"""

    class Canvas:
        def __init__(self):
            self._x = None
            self.log = []

        @property
        def x(self):
            self.log.append("get")
            return self._x

        @x.setter
        def x(self, v):
            self.log.append(("set", tuple(v.shape), v.stride()))
            self._x = v

        @x.deleter
        def x(self):
            self.log.append("del")
            self._x = None

    c = Canvas()

    def f(x):
        c.x = x[1:3].t()
        c.x.mul_(2)
        c.x += 1
        v = c.x[0]
        v.add_(x[0, 0])
        w = x.diagonal()
        w.neg_()
        out = c.x
        del c.x
        return v, out, w, x.view(-1)[::3]

    return f, lambda: c.log


# 2 tensor subclass with __torch_function__, arithmetic, slicing, in-place
class Tagged(torch.Tensor):
    @staticmethod
    def __new__(cls, data, tag="none"):
        t = torch.as_tensor(data).as_subclass(cls)
        t.tag = tag
        return t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, cls):
            out.tag = next((a.tag for a in args if isinstance(a, cls) and hasattr(a, "tag")), "?") + "'"
        return out


@program(F(3))
def test_subclass():
    """A tensor subclass that carries a tag"""
    tags = []

    def f(x):
        t = Tagged(x, "a")
        y = t * 2 + 1
        tags.append(y.tag)
        z = y[1:]
        z.add_(1)
        tags.append(z.tag)
        q = torch.stack([z, z])
        tags.append(getattr(q, "tag", "no"))
        return y, z, q, type(q).__name__, y.sum().item()

    return f, lambda: tags


# 4 numpy interop
@program(F(4), Turn(1.5, 2.5, 3.5))
def test_numpy():
    """Arrays that share memory with tensors, NumPy numbers as operands and data"""
    log = []

    def f(x, a):
        n = x.numpy()
        n[0] = a
        m = np.abs(n) * np.float32(3) + np.float32(a)  # a square root differs in the last digit
        t = torch.from_numpy(m)
        t[1] = 0
        log.append(float(m[1]))
        u = torch.as_tensor(np.arange(4)) * np.int64(3)
        v = x * np.float64(2.0)
        w = torch.tensor(np.array([[1, 2], [3, 4]], dtype=np.int32))
        b = torch.tensor(np.bool_(True))
        return x, t, u, v, w, b, n.shape, n.dtype.name, m

    return f, lambda: log


# 5 deepcopy/pickle of modules inside
@program(F(2, 3))
def test_copy_pickle():
    """Modules copied and pickled inside"""
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    torch.manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape))
    kept = []

    def f(x):
        c = copy.deepcopy(m)
        with torch.no_grad():
            c[0].weight.zero_()
        d = pickle.loads(pickle.dumps(m))
        kept.append(len(list(d.parameters())))
        e = copy.copy(m)
        e.extra = 1
        return m(x), c(x), d(x), e(x), hasattr(m, "extra")

    return f, lambda: (kept, m)


# 6 exceptions with tensors
class Overflow(RuntimeError):
    def __init__(self, value, where):
        super().__init__(f"overflow at {where}")
        self.value, self.where = value, where


@program(F(3), Turn(0, 1, 2))
def test_exc():
    """Exceptions that carry tensors, through finally"""
    seen = []

    def inner(x, k):
        try:
            if k == 1:
                raise Overflow(x * 2, "inner")
            if k == 2:
                raise KeyError(x.shape) from Overflow(x, "cause")
            return x + 1
        finally:
            seen.append(k)
            x.add_(1)

    def f(x, k):
        for i in range(3):
            try:
                y = inner(x, k)
            except Overflow as e:
                y = e.value + 1
                seen.append((e.where, str(e)))
                if i == 1:
                    break
                continue
            finally:
                x.mul_(2)
            if i == 1:
                break
        else:
            seen.append("else")
        if k == 2:
            raise Overflow(x, "end")
        return y, x

    return f, lambda: seen


# 7 try/finally with breaks and returns
@case(F(3), Turn(1, 2, 3))
def test_finally(x, n):
    """return, break and continue through nested finally"""
    log = []

    def g():
        for i in range(5):
            try:
                try:
                    if i == n:
                        return x * i
                    if i % 2:
                        continue
                    log.append(x.sum().item() > 0)
                finally:
                    log.append(("in", i))
                    if i == 3:
                        break
            finally:
                log.append(("out", i))
        return "fell"

    return g(), log


# 8 closures mutating nonlocals, recursion
@program(F(4), Turn(3, 4, 2))
def test_nonlocal():
    """Recursion that changes nonlocals and a memo"""
    total, depth = 0, []
    memo = {}

    def f(x, n):
        nonlocal total
        count = 0

        def rec(t, k):
            nonlocal count
            count += 1
            if k in memo:
                return t * memo[k]
            if k == 0:
                return t
            depth.append(k)
            r = rec(t + k, k - 1)
            memo[k] = k + 0.5
            return r * 2

        y = rec(x, n)
        total += count
        return y, count, total

    return f, lambda: (total, depth, memo)


# 9 global writes
COUNT = 0
STORE = {}


@case(F(2), watch=("COUNT", "STORE"))
def test_globals(x):
    """Globals written, by a nested function too"""
    global COUNT
    COUNT += 1
    STORE[COUNT] = x * COUNT
    STORE.setdefault("all", []).append(x.sum())

    def g():
        global COUNT
        COUNT += 10
        return COUNT

    return x + g(), COUNT, list(STORE)


# 10 __torch_function__ mode
class Count(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        if func is torch.add:
            return torch.sub(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@program(F(3))
def test_mode():
    """A `__torch_function__` mode within another"""
    names = []

    def f(x):
        m = Count()
        with m:
            y = torch.add(x, 1)
            z = y * 2
            with Count() as inner:
                z = torch.relu(z)
            w = z.sum()
        names.append((m.names, inner.names))
        return y, z, w, torch.add(x, 1)

    return f, lambda: names


# 11 default-mutable, formatting of tensors
@program(F(2))
def test_default():
    """Mutable defaults, tensors formatted and printed"""

    def f(x, acc=[], *, opts={"n": 0}):
        acc.append(x.sum())
        opts["n"] += 1
        s = f"{x.sum():.3f}|{x.shape}|{len(acc)}|{opts}"
        print(x, "mean", x.mean().item())
        return s, "%s" % (acc[-1],), "{:>8.2f}".format(x[0].item()), repr(x), str(x.dtype), acc

    return f, lambda: (f.__defaults__, f.__kwdefaults__)


# 12 sorting with key on tensors' items
@case(F(5))
def test_sortkey(x):
    """Sorted by items of tensors"""
    parts = list(x.unbind())
    a = sorted(parts, key=lambda t: t.item())
    parts.sort(key=lambda t: -float(t))
    m = max(parts, key=torch.Tensor.item)
    n = min(enumerate(parts), key=lambda p: p[1].abs().item())
    d = {f"k{i}": p for i, p in enumerate(parts)}
    ks = sorted(d, key=d.get, reverse=True) if False else sorted(d, key=lambda k: d[k].item())
    return a, parts, m, n, ks, sorted([3, 1, 2], key=functools.cmp_to_key(lambda p, q: q - p))


# 13 dict set orders
@case(F(3), Turn(("b", "a"), ("c", "a", "b"), ()))
def test_orders(x, names):
    """Orders of dicts and sets"""
    d = dict.fromkeys(names, x)
    d["z"] = x * 2
    d.pop(names[0], None) if names else None
    d |= {"a": 1, "q": 2}
    s = {n for n in names}
    s2 = s | {"m"}
    last = d.popitem()
    d2 = {**d, "a": x}
    od = collections.OrderedDict(d2)
    od.move_to_end("z", last=False)
    return (
        list(d),
        last,
        sorted(s2),
        s <= s2,
        list(od),
        [k for k in reversed(d2)],
        d2.keys() & s2,
        list(d2.items() - {("q", 2)}) if False else None,
        dict(zip(d, range(9))),
    )


# 14 slicing with tensors, boolean index, where, nonzero, unique
@case(F(6), I(6, lo=0, hi=4), Spec(lambda r: torch.tensor([1, 2, 3][r.call])))
def test_index(x, i, n):
    """Slices and masks by tensors, nonzero, unique"""
    a = x[:n]
    b = x[n:]
    c = x[i > 1]
    d = torch.where(i > 1)
    e = (i == 2).nonzero()
    u, inv, cnt = torch.unique(i, return_inverse=True, return_counts=True)
    y = x.clone()
    y[i > 1] = 0
    y[n] = 5
    y[i[:2]] += 1
    z = x.masked_select(x > 0)
    l, r = x.split([int(n), 6 - int(n)])
    return (
        a,
        b,
        c,
        d,
        e,
        u,
        inv,
        cnt,
        y,
        z,
        l,
        r,
        x[torch.tensor([0, -1])],
        x[i.bool()],
        torch.argwhere(i),
        x[[True, False] * 3],
        x[None, n],
        x[..., n, None],
    )


# 15 RNG order with dropout
@program(F(8, 8))
def test_rng():
    """Random numbers of torch, Python and NumPy in turn, dropout"""
    m = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2))
    with torch.no_grad():
        for p in m.parameters():
            p.fill_(0.1)

    def f(x):
        a = torch.rand(3)
        y = m(x)
        b = torch.randn(2, dtype=torch.float64)
        p = torch.randperm(5)
        r = random.random()
        q = Fn.dropout(x, 0.3, training=True)
        m.eval()
        z = m(x)
        m.train()
        c = torch.bernoulli(torch.full((4,), 0.5))
        k = torch.multinomial(torch.ones(4), 2)
        n = torch.normal(0.0, 1.0, (2,))
        u = torch.empty(3).uniform_()
        e = torch.empty(2).exponential_()
        w = torch.randint(0, 9, (3,))
        return a, y, b, p, r, q, z, c, k, n, u, e, w, np.random.rand(2)

    return f


# 16 autocast decorators, inference mode
@program(F(4, 4))
def test_autocast():
    """autocast, inference_mode and no_grad as decorators and managers"""
    lin = nn.Linear(4, 4)
    with torch.no_grad():
        for p in lin.parameters():
            p.copy_(torch.arange(p.numel()).view(p.shape) / 10)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def g(x):
        return lin(x), x @ x, x.sum(), torch.is_autocast_enabled("cpu")

    @torch.inference_mode()
    def h(x):
        return lin(x), torch.is_inference_mode_enabled()

    @torch.no_grad()
    def k(x):
        return lin(x)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
            with torch.autocast("cpu", enabled=False):
                b = x @ x
            with torch.inference_mode():
                c = x @ x
        d = g(x)
        e = h(x)
        return a, b, c, d, e, k(x), lin(x), torch.is_grad_enabled()

    return f, lambda: lin


# 17 hooks on modules, state_dict loads between calls
@program(F(2, 3), Turn(0, 1, 2), drive=lambda f, x, k: f(x, k))
def test_hooks():
    """Hooks on modules and weights, state loaded, a weight and a buffer replaced between calls"""
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.arange(p.numel()).view(p.shape) / 7 - 0.3)
    log = []
    m[0].register_forward_hook(lambda mod, a, out: log.append(out.shape) or out * 2)
    h = m[2].register_forward_pre_hook(lambda mod, a: (a[0] + 1,))
    m[0].weight.register_hook(lambda g: g * 2)
    m.register_full_backward_hook(lambda mod, gi, go: log.append("bw"))

    def f(x, k):
        if k == 1:
            sd = {n: t.clone() * 1.5 if t.is_floating_point() else t.clone() for n, t in m.state_dict().items()}
            m.load_state_dict(sd)
            m.eval()
        if k == 2:
            h.remove()
            m.train()
            m[0].weight = nn.Parameter(m[0].weight.detach() * 2)
            m.register_buffer("b", torch.ones(2), persistent=False)
        y = m(x)
        if hasattr(m, "b"):
            y = y + m.b
        y.sum().backward()
        gs = [p.grad.clone() for p in m.parameters()]
        m.zero_grad()
        return y, gs

    return f, lambda: (log, m.state_dict())


# 18 training loop with several optimizers, accumulation
@program(F(4, 3), Turn(0, 1, 2), calls=4)
def test_optims():
    """Two optimizers, gradients accumulated, a schedule"""
    torch.manual_seed(3)
    a, b = nn.Linear(3, 3), nn.Linear(3, 1)
    oa, ob = torch.optim.Adam(a.parameters(), 0.01), torch.optim.SGD(b.parameters(), 0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(oa, 2)

    def f(x, k):
        tot = 0.0
        for j in range(2):
            loss = b(torch.tanh(a(x + j))).pow(2).mean() / 2
            loss.backward()
            tot += loss.item()
        oa.step()
        ob.step()
        oa.zero_grad(set_to_none=False)
        ob.zero_grad()
        sched.step()
        return tot, oa.param_groups[0]["lr"]

    return f, lambda: (a, b, oa.state_dict(), ob.state_dict())


# 19 torch.func
@case(F(3, 4), F(4))
def test_func(x, w):
    """torch.func's transforms"""
    from torch.func import vmap, grad, jvp, vjp, jacrev, hessian, grad_and_value

    def loss(w, r):
        return (torch.sin(r * w)).sum() ** 2

    g = vmap(grad(loss), (None, 0))(w, x)
    h = hessian(loss)(w, x[0])
    o, t = jvp(lambda w: loss(w, x[0]), (w,), (torch.ones_like(w),))
    y, pull = vjp(torch.cos, w)
    return g, h, o, t, y, pull(w)[0], grad_and_value(loss)(w, x[1]), jacrev(torch.exp)(w)


# 20 custom autograd Function + checkpoint
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo, hi):
        ctx.save_for_backward(x)
        ctx.lo, ctx.hi = lo, hi
        ctx.mark_non_differentiable()
        return x.clamp(lo, hi)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad[0]
        return g * ((x > ctx.lo) & (x < ctx.hi)) + 0.1, None, None


@program(G(3, 3))
def test_customfn():
    """A custom function in a checkpoint"""
    w = nn.Parameter(torch.full((3, 3), 0.5))

    def block(x, s):
        return Clip.apply(x @ w, -s, s).relu()

    def f(x):
        y = checkpoint(block, x, 0.8, use_reentrant=False)
        z = block(y, 0.5)
        (z.sum() + y.mean()).backward()
        g = x.grad.clone()
        return y, z, g, y.grad_fn is not None, z.requires_grad

    return f, lambda: w


# 21 weakref cache
@program(F(3))
def test_weak():
    """A cache with weak keys"""

    class Key:
        pass

    k = Key()
    cache = weakref.WeakKeyDictionary()
    calls = []

    def get(k, x):
        try:
            return cache[k] + x
        except KeyError:
            calls.append("miss")
            cache[k] = torch.ones(3)
            return cache[k]

    def f(x):
        a = get(k, x)
        b = get(k, x)
        r = weakref.ref(k)
        tmp = Key()
        get(tmp, x)
        del tmp
        return a, b, r() is k, len(cache)

    return f, lambda: (calls, len(cache))


# 22 __getattr__ modules
@program(F(2, 2))
def test_getattr_mod():
    """A module that passes attributes on"""

    class Wrap(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.m = m
            self.asked = []

        def __getattr__(self, n):
            try:
                return super().__getattr__(n)
            except AttributeError:
                self.__dict__.setdefault("asked", []).append(n)
                return getattr(super().__getattr__("m"), n)

        def forward(self, x):
            return self.m(x) * self.weight.sum() + getattr(self, "nothing", 3)

    torch.manual_seed(0)
    w = Wrap(nn.Linear(2, 2))

    def f(x):
        w.in_features
        w.tag = x.sum().item()
        return w(x), w.tag, w.bias

    return f, lambda: (w.asked, w)


# 23 match with classes & tensors
@dataclasses.dataclass
class Op:
    name: str
    value: torch.Tensor | float = 0.0
    __match_args__ = ("name", "value")


@case(F(3), Turn("scale", "shift", "none"))
def test_match(x, k):
    """match over classes, mappings and sequences"""
    ops = [Op(k, x * 2), {"kind": "d", "v": x}, [1, x, 3], (x,), "s", 4, Op("shift", 2.0), None, {"kind": "e"}]
    out = []
    for o in ops:
        match o:
            case Op("scale", v):
                out.append(("scale", v))
            case Op(name=n, value=float() as v):
                out.append((n, v))
            case Op():
                out.append("op")
            case {"kind": "d", **rest}:
                out.append(rest)
            case {"kind": str(s)} if s != "d":
                out.append(s)
            case [1, torch.Tensor() as t, *r]:
                out.append((t.sum(), r))
            case (y,):
                out.append(y)
            case str() | int() as q:
                out.append(q)
            case None:
                out.append("none")
    return out


# 24 ExitStack with callbacks, suppress
@program(F(3), Turn(0, 1, 2))
def test_exitstack():
    """ExitStack with callbacks, kept and closed"""
    log = []

    @contextlib.contextmanager
    def cm(n, x):
        log.append(("in", n))
        try:
            yield x * n
        except ValueError as e:
            log.append(("caught", str(e)))
        finally:
            log.append(("out", n))

    def f(x, k):
        y = None
        with contextlib.ExitStack() as st:
            ys = [st.enter_context(cm(i, x)) for i in range(3)]
            st.callback(log.append, "cb")
            st.push(lambda *a: log.append(a[0]) or False)
            if k == 1:
                raise ValueError("bad")
            y = sum(ys)
            if k == 2:
                keep = st.pop_all()
        if k == 2:
            keep.close()
        return y

    return f, lambda: log


# 25 train/eval, dtype changes between calls via drive
def drive25(f, m, x):
    a = f(m, x)
    m.eval()
    b = f(m, x)
    m.double()
    c = f(m, x.double())
    m.float()
    m.train()
    d = f(m, x)
    m[0].weight = nn.Parameter(torch.ones(3, 3))
    e = f(m, x)
    m[0].bias = None
    g = f(m, x)
    m.requires_grad_(False)
    h = f(m, x)
    m.register_buffer("scale", torch.tensor(2.0))
    i = f(m, x)
    return a, b, c, d, e, g, h, i


def mk25(r):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


@case(Spec(mk25), F(4, 3), drive=drive25)
def test_switch(m, x):
    """train and eval, dtypes, weights and buffers changed between calls"""
    y = m(x)
    return y * m.scale if hasattr(m, "scale") else y


@case(Spec(lambda r: r.f(2, 3, 4)[:, :, ::2].transpose(0, 1)), Spec(lambda r: r.f(0, 3)), Spec(lambda r: r.f(1)[0].clone()))
def test_sizes(x, e, s):
    """Empty, 0-dim and strided tensors, errors of operations caught"""
    out = [
        x + s,
        x * x.transpose(1, 2).contiguous().transpose(1, 2),
        e.sum(),
        e.sum(0),
        e.t() + s,
        torch.cat([e, e]),
        e.reshape(3, 0),
        s.expand(3),
        s[None],
        s.view(1, 1),
        s.clone(),
    ]
    for g in (
        lambda: e.max(),
        lambda: e.max(1),
        lambda: e.argmax(0),
        lambda: e.min(0),
        lambda: e.median(),
        lambda: e.std(),
        lambda: s.std(),
        lambda: e.view(-1, 0),
        lambda: s[0],
        lambda: s.sum(1),
        lambda: len(s),
        lambda: list(s),
        lambda: x.view(-1),
        lambda: x @ x,
        lambda: torch.stack([]),
        lambda: torch.cat([]),
        lambda: x[5],
        lambda: x.squeeze(7),
        lambda: e.item(),
        lambda: bool(e),
        lambda: x.kthvalue(9, 1),
        lambda: torch.normal(x, -1.0),
        lambda: x.reshape(7, 7),
        lambda: torch.zeros(2) + torch.zeros(3),
        lambda: torch.ones(2, dtype=torch.int64).div_(2),
        lambda: x.long() << 1.5,
        lambda: Fn.cross_entropy(x, x.long()),
        lambda: torch.arange(5, 0),
        lambda: x.index_select(0, torch.tensor([9])),
        lambda: x.gather(0, torch.full((1, 1, 1), 9)),
        lambda: x.expand(2),
        lambda: torch.tensor([[1], [2, 3]]),
        lambda: x.to("nope"),
        lambda: torch.full((2,), "a"),
    ):
        try:
            out.append(g())
        except Exception as err:
            out.append((type(err).__name__, str(err)))
    out += [
        e.mean(),
        e.prod(1),
        e.any(),
        e.all(),
        torch.empty_like(x).stride(),
        torch.zeros_like(x),
        (x > 0).nonzero(),
        e.nonzero(),
        s.nonzero(),
    ]
    out += [
        x.reshape(-1),
        x.flatten(1),
        x.clone(),
        x.to(torch.float64),
        x.sum(1, keepdim=True),
        x.softmax(-1),
        x.permute(2, 0, 1).exp(),
        e.softmax(1),
        e.softmax(0),
        x.contiguous(),
    ]
    return out


# gradients with views, in-place, hooks on tensors
@program(G(3, 4))
def test_grad_views():
    """Gradients through writes into views, hooks, retained gradients"""
    w = nn.Parameter(torch.linspace(-1, 1, 4))
    log = []

    def f(x):
        y = x * w
        y[0].mul_(2)
        y[:, 1] = 0
        z = y.t().contiguous()
        z.register_hook(lambda g: log.append(g.sum()) or g * 2)
        z.retain_grad()
        l = (z**2).sum() + y.diagonal().sum()
        l.backward(retain_graph=True)
        first = w.grad.clone()
        l.backward()
        return y, z, z.grad, first, x.grad

    return f, lambda: (w, log)


# tensor subclass with __torch_dispatch__-less properties + __repr__, __eq__ etc
class Meters(torch.Tensor):
    unit = "m"

    @property
    def cm(self):
        return (self * 100).as_subclass(torch.Tensor)

    def __repr__(self, *, tensor_contents=None):
        return f"Meters({self.as_subclass(torch.Tensor).tolist()})"

    def scaled(self, k=2):
        return self * k

    def __len__(self):
        return 77


@case(F(3))
def test_subclass2(x):
    """A tensor subclass with properties and a length of its own"""
    m = x.as_subclass(Meters)
    y = m.scaled(3)
    return (
        y,
        m.cm,
        len(m),
        type(y[0]) is Meters,
        repr(m),
        y.unit,
        torch.add(m, x),
        isinstance(m + 1, torch.Tensor),
        m.sum().item(),
        [type(t).__name__ for t in m.unbind()],
    )


# module patterns: weight tying, parametrization, spectral norm
@program(F(2, 4), Turn(0, 1, 2))
def test_param():
    """Parametrizations, tied weights, weight norm"""
    import torch.nn.utils.parametrize as P

    class Sym(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()

    torch.manual_seed(0)
    m = nn.Linear(4, 4)
    P.register_parametrization(m, "weight", Sym())
    e = nn.Embedding(4, 4)
    o = nn.Linear(4, 4, bias=False)
    o.weight = e.weight
    wn = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))

    def f(x, k):
        if k == 2:
            P.remove_parametrizations(m, "weight")
        with P.cached():
            y = m(x) + m(x)
        z = o(e(torch.tensor([0, 1])))
        (y.sum() + z.sum() + wn(x).sum()).backward()
        with torch.no_grad():
            e.weight -= 0.1 * e.weight.grad
        e.weight.grad = None
        return y, z, wn(x), o.weight is e.weight, P.is_parametrized(m)

    return f, lambda: (m, e, wn)


# generator based state machine, send/throw/close/return value, yield from
@program(F(3), Turn(0, 1, 2))
def test_gen():
    """Generators sent to, thrown into and closed, behind yield from"""
    log = []

    def acc(x):
        total = x
        try:
            while True:
                got = yield total
                if got is None:
                    return total * 10
                total = total + got
        except ValueError as e:
            log.append(str(e))
            yield total * -1
        finally:
            log.append("fin")

    def outer(x):
        r = yield from acc(x)
        log.append(r.sum())
        yield r

    def f(x, k):
        g = outer(x)
        a = next(g)
        b = g.send(x)
        if k == 0:
            c = g.send(None)
        elif k == 1:
            c = g.throw(ValueError("v"))
        else:
            g.close()
            c = None
        rest = list(g)
        return a, b, c, rest

    return f, lambda: log


# context manager classes with __exit__ swallowing, nested with return
@program(F(3), Turn(0, 1))
def test_cm():
    """Managers that swallow, with return and break"""
    log = []

    class Tx:
        def __init__(self, n):
            self.n = n

        def __enter__(self):
            log.append(("+", self.n))
            return self

        def __exit__(self, t, v, tb):
            log.append(("-", self.n, t.__name__ if t else None))
            return t is KeyError

    def f(x, k):
        for i in range(3):
            with Tx(i) as a, Tx(i + 10):
                x = x + a.n
                if i == 1 and k:
                    raise KeyError("gone")
                if i == 2:
                    return x, "ret"
                x.add_(100)
                if x.sum() > 1e9:
                    break
        return x

    return f, lambda: log


# threading lock, local, contextvars
VAR = contextvars.ContextVar("VAR", default=1.0)


@program(F(3))
def test_ctxvar():
    """Context variables"""
    log = []

    def f(x):
        tok = VAR.set(VAR.get() + 1)
        try:
            y = x * VAR.get()
        finally:
            VAR.reset(tok)
        ctx = contextvars.copy_context()
        z = ctx.run(lambda: (VAR.set(9.0), x * VAR.get())[1])
        return y, z, VAR.get()

    return f


# warnings
@case(F(3))
def test_warn(x):
    """Warnings recorded"""
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        warnings.warn("one", UserWarning)
        y = x.sum()
        warnings.warn(DeprecationWarning("two"))
    return y, [(str(i.message), i.category.__name__) for i in w]


# dataclass frozen w/ slots, kw_only, post_init, replace, order; with tensors
@dataclasses.dataclass(slots=True, kw_only=True)
class Cfg:
    a: torch.Tensor
    b: float = 1.0
    c: list = dataclasses.field(default_factory=list)
    d: torch.Tensor = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        self.d = self.a * self.b
        self.c.append(self.b)


@case(F(3), Turn(1.0, 2.0, 2.0))
def test_dc(x, b):
    """Dataclasses with slots and keywords only"""
    c = Cfg(a=x, b=b)
    e = dataclasses.replace(c, b=b + 1)
    try:
        c.zz = 1
    except AttributeError as err:
        m = type(err).__name__
    return c, e, c.c is e.c, m, [f.name for f in dataclasses.fields(c)], dataclasses.astuple(c)[1:3], Cfg.__match_args__


# functools: partial, partialmethod, reduce, wraps, cached_property, total_ordering, cache over module
@program(F(3))
def test_functools():
    """partialmethod, cached_property, lru_cache, reduce, wraps"""
    calls = []

    def deco(times):
        def wrap(fn):
            @functools.wraps(fn)
            def inner(*a, **k):
                calls.append(fn.__name__)
                for _ in range(times):
                    r = fn(*a, **k)
                return r

            return inner

        return wrap

    class A:
        def __init__(self, w):
            self.w = w

        @functools.cached_property
        def big(self):
            calls.append("big")
            return self.w * 10

        def mul(self, k, x):
            return x * k + self.big

        double = functools.partialmethod(mul, 2)

        @deco(2)
        def go(self, x):
            return self.double(x)

        @staticmethod
        @functools.lru_cache(maxsize=2)
        def tab(n):
            calls.append(n)
            return n * 1.5

        @classmethod
        def make(cls, *a):
            return cls(*a)

    a = A.make(2.0)

    def f(x):
        y = a.go(x) * a.tab(len(calls) % 3) + functools.reduce(operator.add, [x, x * 2, 1])
        return y, A.tab.cache_info(), a.go.__name__, functools.partial(torch.add, alpha=3)(x, x)

    return f, lambda: (calls, a)


# in-place ops with out=, aliasing inputs, swapping data
@case(args=lambda r: (lambda b: (b[:3], b[1:], b))(r.f(4)))
def test_alias(x, y, b):
    """Inputs that overlap, swapped and written"""
    x += 1
    y *= 2
    torch.add(x, y, out=x)
    b[0], b[1] = b[1], b[0]
    b[:2], b[2:] = b[2:].clone(), b[:2].clone()
    x.copy_(y.flip(0))
    z = b.view(2, 2)
    z.t_()
    z.resize_(4) if False else None
    return x, y, b, z, x.data_ptr() == b.data_ptr(), y.storage_offset()


# int/bool/half/bf16/complex dtypes promotion
@case(F(3), I(3), Turn(2, 2.5, True))
def test_dtypes(x, i, k):
    """Promotion of dtypes"""
    h, bf, d, c = x.half(), x.bfloat16(), x.double(), torch.complex(x, x)
    u8 = i.to(torch.uint8)
    return [
        h + k,
        bf * k,
        i + k,
        i * 2.5,
        i / 2,
        i // 2,
        i % 3,
        u8 - 20,
        u8 >> 1,
        c * k,
        c.abs(),
        c.real + 1,
        h + bf,
        i + h,
        (i > 2) + k,
        ~(i > 2),
        i**2,
        2**i,
        x**i,
        d + x,
        torch.where(i > 2, x, d),
        torch.where(i > 2, 1, 2.0),
        torch.result_type(i, k),
        h.sum(),
        bf.mean(),
        i.sum(),
        u8.sum(),
        (i > 2).sum(),
        i.float().var(),
        c.angle(),
        -u8,
        x.to(torch.int8),
        torch.tensor(3) + h,
        torch.tensor(3.5, dtype=torch.float64) + x,
        torch.tensor(2.0) * i,
        i.clamp(max=2.5),
        x.clamp(torch.tensor(0.0)),
        torch.bucketize(x, torch.tensor([-0.5, 0.5])),
        x.frac(),
        x.fmod(0.3),
        x.remainder(-0.3),
        torch.floor_divide(x, 0.3),
        i.bitwise_xor(3),
        x.round(decimals=1),
        x.nan_to_num(),
        x.sign() * 0.0,
        -x.sign() * 0,
    ]


# state_dict hooks, load_state_dict strict errors, buffers, copy
@program(F(2, 3), Turn(0, 1, 2))
def test_state():
    """State loaded with errors, an average of weights, assigned"""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    ema = copy.deepcopy(m)
    seen = []
    m._register_load_state_dict_pre_hook(lambda sd, *a: seen.append(sorted(sd)))

    def f(x, k):
        y = m(x)
        with torch.no_grad():
            for p, q in zip(ema.parameters(), m.parameters()):
                p.mul_(0.9).add_(q, alpha=0.1)
            for p, q in zip(ema.buffers(), m.buffers()):
                p.copy_(q)
        if k == 1:
            try:
                m.load_state_dict({"0.weight": torch.zeros(2, 2)})
            except RuntimeError as e:
                seen.append(str(e))
        if k == 2:
            r = m.load_state_dict({n: v + 1 for n, v in ema.state_dict().items() if "num" not in n}, strict=False, assign=True)
            seen.append(str(r))
        return y, ema(x), [n for n, _ in m.named_parameters()], list(m.state_dict())

    return f, lambda: (m, ema, seen)


# double backward, grad of grad, autograd.grad unused, detach, no_grad mix
@case(G(3), Turn(0, 1, 2))
def test_dbl(x, k):
    """Gradients of gradients, modes mixed, leaves made inside"""
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(2).sum(), x)
    with torch.no_grad():
        z = x * 2
        with torch.enable_grad():
            w = x * 3
    with torch.set_grad_enabled(k == 1):
        v = x * 4
    d = x.detach()
    d2 = d.requires_grad_() if k == 2 else d
    try:
        torch.autograd.grad(z.sum(), x)
        e = None
    except RuntimeError as err:
        e = str(err)
    return y, g, h, z, w, v, d2, e, z.requires_grad, w.requires_grad, v.requires_grad


# string formatting, f-strings with specs, print options
@case(F(2), I(2), Turn(1, 12, 123))
def test_fmt(x, i, n):
    """Formats of tensors and sizes"""
    t = x.sum()
    s = [
        f"{t:.2e}",
        f"{i[0]:>4}",
        f"{n:,} {n!r:>5} {n:x}",
        "%d %.3f" % (i[0], t),
        str(x.tolist()),
        repr(x.shape),
        f"{x}",
        "{0!r}".format(i),
        f"{x.shape=}",
        f"{t.item():{n}.1f}",
        f"{x.dtype} {x.device}",
        string.Template("$a").substitute(a=n),
        " ".join(map(str, x.shape)),
        f"{bool(t > 0)!s:<6}|",
        format(t, ".3f"),
        str(torch.Size([n])),
        f"{i.max()}",
    ]
    print(*s, sep="\n")
    print(x, i, sep=" | ", end="!\n")
    return s


# enumerations/sets/dicts of tensors identity; dict keyed by tensor; list remove; in
@case(F(3))
def test_ident(x):
    """Tensors by identity"""
    y = x * 2
    d = {x: "x", y: "y"}
    l = [x, y, x]
    s = {id(t) for t in l}
    return (
        d[x],
        d[y],
        len(s),
        any(t is y for t in l),
        l.index(x),
        {**d}[x],
        x in d,
        [k is x for k in d],
        l.count(x) if False else 0,
        hash(x) == id(x),
    )


# exceptions groups, notes, traceback, raise from, re-raise, finally overriding
@program(F(3), Turn(0, 1, 2, 3), calls=4)
def test_exc2():
    """Groups of exceptions, notes, causes"""
    log = []

    def inner(x, k):
        try:
            if k == 0:
                raise ExceptionGroup("g", [ValueError(1), TypeError("t")])
            if k == 1:
                x.view(7)
            if k == 2:
                [][x.shape[0]]
            if k == 3:
                torch.nn.functional.linear(x, torch.ones(2, 5))
        except* ValueError as eg:
            log.append(len(eg.exceptions))
            raise
        finally:
            log.append("f")

    def f(x, k):
        try:
            inner(x, k)
        except RuntimeError as e:
            e.add_note("note")
            log.append(type(e).__name__)
            try:
                raise KeyError("k") from e
            except KeyError as e2:
                log.append(type(e2.__cause__).__name__)
                x.add_(1)
                raise
        except BaseException as e:
            log.append(repr(e)[:60])
            raise

    return f, lambda: log


# recursion with memo dict + tree of dataclasses + mutual recursion
@case(F(4))
def test_tree(x):
    """Trees and mutual recursion"""

    def build(t):
        if t.numel() <= 1:
            return t
        h = t.numel() // 2
        return {"l": build(t[:h]), "r": build(t[h:])}

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    def fold(n):
        return fold(n["l"]) - fold(n["r"]) if isinstance(n, dict) else n.sum()

    tree = build(x)
    return tree, fold(tree), even(7), torch.utils._pytree.tree_map(lambda t: t + 1, tree)


# class attributes counters/registries; __init_subclass__, metaclass; __set_name__; __class_getitem__; descriptors
@program(F(2))
def test_classes():
    """Descriptors, class hooks, special methods"""

    class Field:
        def __set_name__(self, o, n):
            self.n = "_" + n

        def __get__(self, o, t=None):
            return self if o is None else o.__dict__.get(self.n, 0)

        def __set__(self, o, v):
            o.__dict__[self.n] = v
            o.sets += 1

    class Base:
        reg = {}
        count = 0
        sets = 0
        a = Field()
        b = Field()

        def __init_subclass__(cls, tag=None, **k):
            super().__init_subclass__(**k)
            Base.reg[tag] = cls

        def __class_getitem__(cls, n):
            return (cls.__name__, n)

        def __new__(cls, *a):
            Base.count += 1
            return super().__new__(cls)

        def __init__(self, x):
            self.a = x
            self.b = self.a * 2

        def __eq__(self, o):
            return isinstance(o, Base)

        __hash__ = None

        def __iter__(self):
            yield from (self.a, self.b)

        def __contains__(self, v):
            return v is self.a

        def __call__(self, z, /, *, k=1):
            return self.a * k + z

        def __getitem__(self, s):
            return self.a[s]

        def __matmul__(self, o):
            return self.a.dot(o.a)

        def __bool__(self):
            return False

        def __format__(self, s):
            return f"B:{s}"

    class Sub(Base, tag="s"):
        pass

    def f(x):
        o, p = Base.reg["s"](x), Base(x + 1)
        a, b = o
        return a, b, o == p, x in o, o(x, k=3), o[:1], o @ p, bool(o), f"{o:q}", Sub["i"], o.sets, Base.count, o.__dict__, not p

    return f, lambda: (Base.count, list(Base.reg), Base.sets)


# einsum/ scatter/ index_add/ cumsum/ sort/ topk/ embedding bag / pad / interpolate / conv / rnn / attention
@case(F(2, 3, 4, 4), I(3, 4, lo=0, hi=3))
def test_ops(x, i):
    """Operations of many kinds"""
    s = x.sum((2, 3))
    return [
        torch.einsum("bchw,bcwk->bhk", x, x),
        s.scatter_add(1, i[:2, :3], s),
        s.cumsum(1),
        *s.sort(1, descending=True),
        *s.topk(2),
        Fn.pad(x, (1, 0, 2, -1), value=3),
        Fn.pad(x, (1, 1), mode="reflect"),
        Fn.interpolate(x, scale_factor=2, mode="bilinear"),
        Fn.interpolate(x, size=3),
        Fn.avg_pool2d(x, 3, 1, 1),
        Fn.max_pool2d(x, 2, return_indices=True),
        Fn.unfold(x, 2),
        Fn.grid_sample(x, torch.zeros(2, 2, 2, 2), align_corners=False),
        Fn.scaled_dot_product_attention(x, x, x, is_causal=True),
        Fn.one_hot(i, 4),
        Fn.embedding_bag(i, s.t()),
        x.roll(1, 2),
        x.flip(3),
        x.rot90(1, (2, 3)),
        torch.tril(x),
        x.logsumexp(1),
        x.norm(dim=(2, 3)),
        torch.linalg.inv(x + 5 * torch.eye(4)),
        x.histc(4) if False else 0,
        torch.cdist(s, s),
        s.quantile(0.5, 1),
        s.median(1),
        s.mode(1),
        s.cummax(1),
        torch.bincount(i.view(-1)),
        s.corrcoef(),
        x.amax((1, 2)),
        x.std(1),
        torch.var_mean(x, 1),
        x.unfold(3, 2, 1),
        x.tensor_split(3, 3),
        torch.meshgrid(s[0], s[1], indexing="xy"),
        torch.block_diag(s, s),
        torch.kron(s, s),
        x.movedim(1, -1),
        x.to(memory_format=torch.channels_last) * 2,
        Fn.layer_norm(x, (4,)),
        Fn.group_norm(x, 3),
        Fn.gumbel_softmax(s),
        Fn.cosine_similarity(x, x + 1),
        s.renorm(2, 0, 1),
        torch.searchsorted(s.sort().values, s),
        s.triu_indices if False else 0,
        torch.tril_indices(3, 3),
        torch.combinations(s[0]),
        torch.cartesian_prod(s[0], s[1]),
    ]


# rnn/lstm/transformer modules
@program(F(3, 5, 4), calls=2)
def test_rnn():
    """Recurrent layers, attention, packed sequences"""
    torch.manual_seed(0)
    l, g, e, a = (
        nn.LSTM(4, 4, 2, batch_first=True, dropout=0.3),
        nn.GRUCell(4, 4),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        nn.MultiheadAttention(4, 2, batch_first=True),
    )
    pk = torch.nn.utils.rnn

    def f(x):
        y, (h, c) = l(x)
        z = g(x[:, 0], h[0])
        p = pk.pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        q, _ = pk.pad_packed_sequence(l(p)[0], batch_first=True)
        return y, h, z, e(x), a(x, x, x), q

    return f, lambda: l
