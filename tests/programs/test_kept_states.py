# ruff: noqa - the programs are as users write them
"""State that is kept between calls, under keys, in slots and by names that change; and code that prints amid its effects"""

import collections
import contextlib
import copy
import dataclasses
import functools
import heapq
import itertools
import operator
import types

import torch
import torch.nn.functional as Fn
from torch import nn

from .harness import F, Spec, Turn, program

NS = Turn(5, 7, 2, 2, 9, -1, 5, 300, 4)
SS = Turn("a", "bb", "a", "c", "dd", "bb", "e", "a", "f")


@program(F(3), NS, calls=9)
def test_lru_own():
    """A cache that drops what was used least lately"""

    class LRU:
        def __init__(s, cap):
            s.cap = cap
            s.d = collections.OrderedDict()
            s.hits = s.miss = 0

        def get(s, k, make):
            if k in s.d:
                s.d.move_to_end(k)
                s.hits += 1
                return s.d[k]
            s.miss += 1
            v = make(k)
            s.d[k] = v
            if len(s.d) > s.cap:
                s.d.popitem(last=False)
            return v

    c = LRU(3)

    def f(x, n):
        a = c.get(n, lambda k: x * k)
        b = c.get(n % 2, lambda k: x + k)
        return (a + b, c.hits, list(c.d))

    return (f, lambda: c)


@program(F(3), SS, NS, calls=9)
def test_vocab():
    """Numbers for words, counters and lists by word"""
    v = {}
    inv = []
    cnt = collections.Counter()
    dd = collections.defaultdict(list)

    def f(x, s, n):
        if s not in v:
            v[s] = len(inv)
            inv.append(s)
        cnt[s] += n
        dd[s[0]].append(n)
        dd[len(s)].append(s)
        cnt.update({f"{s}{n % 2}": 1})
        return (x * v[s] + len(inv), cnt[s], cnt.most_common(1), inv[-1], sum(dd[s[0]]), max(v, key=v.get))

    return (f, lambda: (v, inv, cnt, dd))


@program(F(3), NS, calls=9)
def test_setattrs():
    """Attributes and buffers under names that change"""

    class S:
        pass

    s = S()
    m = nn.Module()

    def f(x, n):
        nm = f"p{n % 3}"
        old = getattr(s, nm, None)
        setattr(s, nm, x * n if old is None else old + x)
        if hasattr(m, nm):
            delattr(m, nm)
        else:
            m.register_buffer(nm, x + n)
        if n == 2:
            s.__dict__["two"] = n
        return (
            getattr(s, nm),
            sorted(vars(s)),
            [k for k, _ in m.named_buffers()],
            sum((v.sum() if isinstance(v, torch.Tensor) else v for v in vars(s).values())),
        )

    return (f, lambda: (s, m))


@program(F(3), NS, calls=9)
def test_kv_cache():
    """Keys that grow by one row a call"""
    kc = []
    pre = torch.zeros(1, 0, 3)
    big = torch.zeros(12, 3)
    ln = [0]

    def f(x, n):
        nonlocal pre
        pre = torch.cat([pre, x.view(1, 1, 3)], 1)
        big[ln[0]] = x
        ln[0] += 1
        k = big[: ln[0]]
        att = torch.softmax(k @ x, 0) @ k
        if n < 0:
            pre = pre[:, -2:]
        kc.append(x)
        s = torch.stack(kc[-3:])
        return (att, pre.shape, pre.mean((0, 1)), s, s.shape[0] * n)

    return (f, lambda: (pre, big, kc))


@program(F(3), Spec(lambda r: [1, 2, 3][: r.call % 4]), Spec(lambda r: {k: k * 2 for k in range(r.call % 3)}), calls=9)
def test_varying_containers():
    """Lists and dicts that are others in each call"""
    seen = []

    def f(x, l, d):
        l.append(len(d))
        d["new"] = len(l)
        seen.append(tuple(l))
        y = x
        for i, v in enumerate(l):
            y = y * (v + 1) + i
        for k in d:
            y = y + d[k]
        a, *b = l
        return (
            y,
            a,
            b,
            l[-1],
            l[::-1],
            sorted(map(str, d)),
            {v: k for k, v in d.items()},
            len(seen),
            l.index(len(d) - 1) if len(d) - 1 in l else None,
            sum(l) / len(l),
            [*l, *d],
            {**d, "z": 0},
            any(l),
            all(l),
            l * 2,
            l + [1],
            tuple(l) < (1, 3),
            l == [1, 0],
            min(l),
            list(zip(l, d)),
            dict(enumerate(l)),
        )

    return (f, lambda: seen)


@program(F(3), Spec(lambda r: [None, 1, "s", 2.5, (1,), [1], {"a": 1}, torch.ones(3), True][r.call]), calls=9)
def test_varying_types():
    """Arguments of other types in each call"""
    log = []

    def f(x, v):
        log.append(type(v).__name__)
        match v:
            case None:
                return x
            case bool():
                return x * 100
            case int() | float():
                return x * v
            case str():
                return (x, v * 2)
            case [a]:
                return x + a
            case {"a": a}:
                return x - a
            case torch.Tensor():
                return x * v

    return (f, lambda: log)


@program(F(3), NS, calls=9)
def test_nested_write_back():
    """Nested containers, reached by two names"""
    st = {"a": {"b": [[], {}]}}
    alias = st["a"]

    def f(x, n):
        st["a"]["b"][0].append(n)
        alias["b"][1][n % 3] = x
        st["a"]["b"][1].setdefault("k", []).extend([n] * (n % 3))
        if n == 5:
            st["a"]["b"][0] = [0]
        t = alias["b"][0]
        t += [9]
        st[f"n{n % 2}"] = t
        return (x * len(t), sum(t), list(alias["b"][1]), st["a"] is alias, st["n0" if n % 2 == 0 else "n1"] is t)

    return (f, lambda: (st, alias))


@program(F(3), NS, calls=9)
def test_moe():
    """One of several modules, chosen by a number"""
    torch.manual_seed(0)
    ex = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])
    use = [0] * 4
    md = nn.ModuleDict({"k0": nn.Tanh(), "k1": nn.ReLU()})

    def f(x, n):
        i = n % 4
        use[i] += 1
        y = ex[i](x)
        y = md[f"k{n % 2}"](y)
        z = ex[use.index(max(use))](y) if use[i] > 1 else y
        ex[i].weight.data.mul_(1.1)
        ex[i].calls = getattr(ex[i], "calls", 0) + 1
        return (z, use[:], ex[i].calls, sum((getattr(e, "calls", 0) for e in ex)))

    return (f, lambda: (use, ex))


@program(F(3), NS, calls=9)
def test_two_dicts_same_key():
    """Two dicts, written under the same keys"""
    a = {}
    b = {}

    def f(x, n):
        k = n % 3
        a[k] = x + n
        b[k] = a[k] * 2
        a[k] = b[k] + 1
        b[n] = a.get(n, x)
        if n in a:
            b.pop(k)
        s = x * 0
        for q in a:
            s = s + a[q]
        return (s, list(a), list(b), a is b, b.get(k) is None, len(a) + len(b))

    return (f, lambda: (a, b))


@program(F(3), NS, calls=9)
def test_list_slots():
    """Slots of lists, swapped, cut out and counted"""
    l = [0] * 10
    m = [[0] * 3 for _ in range(3)]
    g = torch.zeros(3, 3)

    def f(x, n):
        i = abs(n) % 10
        j = n % 3
        l[i] = n
        l[-1 - j] += 1
        m[j][i % 3] = x
        m[i % 3][j] = n
        l[i], l[j] = (l[j], l[i])
        g[j, i % 3] = n
        g[j] += x
        t = l[i:]
        l[j : j + 1] = [n, n]
        l.pop(j)
        q = l.index(max(l))
        cnt = l.count(0)
        return (x * sum(l), t, q, cnt, m[j], g.sum())

    return (f, lambda: (l, m, g))


@program(F(3), SS, calls=9)
def test_attr_by_name():
    """Parameters and modules that are made when first named"""

    class O:
        a = 1

    o = O()
    calls = []

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(3, 3, bias=False)
            nn.init.ones_(s.a.weight)

    m = M()

    def f(x, s):
        v = getattr(o, s, 0)
        setattr(o, s, v + len(s))
        calls.append((s, hasattr(m, s)))
        if not hasattr(m, s):
            setattr(m, s, nn.Identity() if len(s) > 1 else nn.Parameter(torch.ones(3)))
        z = getattr(m, s)
        y = z(x) if isinstance(z, nn.Module) else x * z
        if s == "e":
            delattr(o, "a")
        return (
            y,
            v,
            sorted(vars(o)),
            [k for k, _ in m.named_parameters()],
            list(m._modules),
            o.__dict__.get(s),
            O.__dict__.get(s),
        )

    return (f, lambda: (o, calls))


@program(F(3), NS, calls=9)
def test_dispatch_tables():
    """Tables of functions that get more entries"""

    def inc(x, n):
        return x + n

    def mul(x, n):
        return x * n

    T = {0: inc, 1: mul, 2: lambda x, n: x - n}
    ops = [torch.sin, torch.cos, torch.exp]
    hist = []

    def f(x, n):
        g = T[n % 3]
        h = ops[n % 3]
        hist.append(g.__name__)
        if n == 9:
            T[1] = lambda x, n: x * 0
        if n == 300:
            T[n] = inc
            ops.append(torch.tanh)
        y = h(g(x, n))
        return (y, [k for k, v in T.items() if v is inc], len(ops), functools.reduce(lambda a, o: o(a), ops[: n % 3], x))

    return (f, lambda: hist)


@program(F(3), NS, SS, calls=9)
def test_records():
    """Records in lists and under keys that are tuples"""

    @dataclasses.dataclass
    class R:
        n: int
        s: str
        t: object = None
        tags: list = dataclasses.field(default_factory=list)

    rs = []
    by = {}
    P = collections.namedtuple("P", "a b")
    ps = {}

    def f(x, n, s):
        r = R(n, s, x)
        rs.append(r)
        by.setdefault(s, []).append(r)
        r.tags.append(len(rs))
        ps[P(n % 2, s)] = ps.get(P(n % 2, s), 0) + n
        best = max(rs, key=lambda r: r.n)
        best.tags.append(s)
        last = by[s][-1]
        for q in by[s]:
            q.n += 1
        return (
            x * best.n,
            best.s,
            last is r,
            [q.n for q in rs],
            sorted(ps.items()),
            dataclasses.replace(r, n=0).tags is r.tags,
            r == R(r.n, s, x, r.tags) if False else r.s,
        )

    return (f, lambda: (rs, ps))


def printing(body):
    """A test of a program that prints by `pr`, which breaks the graph, amid effects on what `e` holds."""

    def build():
        log, e = (
            [],
            types.SimpleNamespace(
                l=[1, 2, 3], d={"a": 1, "b": 2}, dd=collections.defaultdict(list), o=types.SimpleNamespace(v=0)
            ),
        )

        def pr(v):
            print("pr", v)
            return v

        return body(e, pr, log), lambda: (log, e)

    build.__name__, build.__doc__ = body.__name__, body.__doc__
    made = program(F(3), Turn(1, 2, 3), file=body.__code__.co_filename)(build)
    made.line = body.__code__.co_firstlineno
    return made


def gen(e, pr, log, x, n):
    for i in range(3):
        e.l.append(i)
        log.append(("g", i))
        yield (i + n)
        if i == 1:
            pr(i)


@printing
def test_consumers(e, pr, log):
    """What goes through a generator that prints"""

    def f(x, n):
        g = lambda: gen(e, pr, log, x, n)
        return (
            [
                sum(g()),
                list(g()),
                tuple(g()),
                set(g()),
                dict(zip(g(), g())),
                max(g()),
                min(g(), key=lambda v: pr(-v)),
                sorted(g(), key=lambda v: pr(-v)),
                any((v > 9 for v in g())),
                all((pr(v) < 9 for v in g())),
                ",".join(map(str, g())),
                list(map(lambda a, b: pr(a * b), g(), g())),
                list(filter(lambda v: pr(v) % 2, g())),
                functools.reduce(lambda a, b: pr(a + b), g(), 0),
                list(enumerate(g(), pr(2))),
                dict.fromkeys(g(), x),
                frozenset(g()),
                [*g(), *g()],
                {**dict.fromkeys(map(str, g()))},
                collections.Counter(g()),
                collections.deque(g(), 2),
                list(itertools.chain(g(), g())),
                list(itertools.accumulate(g(), lambda a, b: pr(a + b))),
                list(zip(*[g(), g()])),
                list(reversed(list(g()))),
                next(g()),
                [a for a in g() if pr(a)],
                torch.tensor(list(g())),
                torch.stack([x * v for v in g()]),
            ],
            x,
        )

    return f


class Key:
    def __init__(s, v, pr, log):
        s.v, s.pr, s.log = (v, pr, log)

    def __eq__(s, o):
        s.log.append(("eq", s.v, o.v))
        s.pr("eq")
        return s.v == o.v

    def __hash__(s):
        s.log.append(("hash", s.v))
        s.pr("h")
        return s.v % 2

    def __lt__(s, o):
        s.log.append("lt")
        s.pr("lt")
        return s.v < o.v


@printing
def test_loud_keys(e, pr, log):
    """Keys whose hash and comparison print"""

    def f(x, n):
        d = {Key(1, pr, log): x, Key(3, pr, log): x + 1}
        d[Key(n, pr, log)] = x * 2
        log.append("set")
        r = [len(d), Key(2, pr, log) in d, d.get(Key(1, pr, log)), d.pop(Key(3, pr, log), None), d.setdefault(Key(5, pr, log), n)]
        st = {Key(1, pr, log), Key(1, pr, log)}
        st.add(Key(n, pr, log))
        r.append(len(st))
        l = [Key(i, pr, log) for i in (3, 1, 2)]
        l.sort()
        r.append([k.v for k in l])
        r.append([k.v for k in sorted(l, reverse=True)])
        r.append(max(l).v)
        r.append(l.index(Key(2, pr, log)))
        l.remove(Key(1, pr, log))
        r.append(Key(9, pr, log) in l)
        r.append(l == [Key(2, pr, log), Key(3, pr, log)])
        h = []
        heapq.heappush(h, l[0])
        heapq.heappush(h, l[1])
        r.append(heapq.heappop(h).v)
        return r

    return f


class Loud:
    def __init__(s, e, pr, log):
        s.e, s.pr, s.log = (e, pr, log)

    @property
    def p(s):
        s.e.o.v += 1
        s.log.append("p")
        s.pr("p")
        s.e.o.v += 1
        return s.e.o.v

    @p.setter
    def p(s, v):
        s.log.append(("set", v))
        s.pr("ps")
        s.e.l.append(v)

    def __getattr__(s, n):
        if n.startswith("__"):
            raise AttributeError(n)
        s.log.append(n)
        s.pr(n)
        return len(n)

    def __setattr__(s, n, v):
        if n in ("e", "pr", "log"):
            return object.__setattr__(s, n, v)
        s.log.append(("sa", n))
        object.__setattr__(s, n, v) if n != "p" else type(s).p.fset(s, v)
        s.pr("sa")

    def __getitem__(s, k):
        s.log.append(("gi", k))
        s.pr("gi")
        return k

    def __setitem__(s, k, v):
        s.e.d[k] = v
        s.pr("si")
        s.e.d[k] = v

    def __delitem__(s, k):
        s.log.append("di")
        s.pr("di")

    def __len__(s):
        s.e.l.append(0)
        s.pr("len")
        return 2

    def __bool__(s):
        s.e.l.append(1)
        s.pr("b")
        return True

    def __contains__(s, k):
        s.pr("in")
        s.log.append(k)
        return True

    def __call__(s, *a, **k):
        s.log.append("call")
        s.pr("c")
        return a[0]

    def __enter__(s):
        s.log.append("en")
        s.pr("en")
        return s

    def __exit__(s, *a):
        s.log.append("ex")
        s.pr("ex")
        s.log.append("ex2")
        return True

    def __add__(s, o):
        s.e.l.append(2)
        s.pr("add")
        return o * 2

    def __radd__(s, o):
        s.e.l.append(3)
        s.pr("radd")
        return o * 3

    def __iadd__(s, o):
        s.e.l.append(4)
        s.pr("iadd")
        return s

    def __index__(s):
        s.log.append("idx")
        s.pr("i")
        return 1

    def __iter__(s):
        s.log.append("it")
        s.pr("it")
        return iter([1, 2])

    def __format__(s, f):
        s.log.append("fmt")
        s.pr("f")
        return "F" + f

    def __str__(s):
        s.log.append("str")
        return "S"


@printing
def test_loud_object(e, pr, log):
    """An object of which each special method prints and has effects"""
    L = Loud(e, pr, log)

    def f(x, n):
        y = x * 2
        r = []
        r.append(L.p)
        L.p = n
        r.append(L.abc)
        L.zz = n
        r.append(L[n])
        L["k"] = y
        del L["k"]
        r.append(len(L))
        r.append(1 if L else 0)
        r.append(n in L)
        r.append(L(y))
        with L as q:
            r.append(q is L)
            y = y + 1
            raise ValueError
        r.append(L + y)
        r.append(y + 1 if n == 5 else 0 + L if False else 0)
        l = L
        l += 1
        r.append(l is L)
        r.append([5, 6][L])
        r.append(x[L])
        a, b = L
        r.append((a, b))
        r.append(f"{L:>3}{L}")
        r.append([*L])
        r.append({**{"z": 1}})
        y[L] = 7
        r.append(not L and 1)
        r.append(L and y)
        r.append(any(L))
        r.append(range(L))
        r.append(x[:L])
        r.append(sum(L, y))
        return (r, y)

    return f


@printing
def test_nested_effects(e, pr, log):
    """Effects, exceptions and printing in recursion"""

    def inner(v, depth):
        e.l.append(depth)
        e.o.v += depth
        try:
            if depth == 0:
                pr(v.shape)
                e.d["deep"] = v
                raise KeyError(depth)
            return inner(v * 2, depth - 1)
        except KeyError as ex:
            log.append(("ke", depth))
            pr(depth)
            if depth < 2:
                raise
            return v + e.o.v
        finally:
            e.dd[depth].append(len(e.l))
            log.append("f")

    def f(x, n):
        with contextlib.ExitStack() as st:
            st.callback(lambda: log.append(pr("cb")))
            st.callback(e.l.append, 9)
            y = inner(x, 3)
        k = [inner(x, 2) for _ in range(2)]
        return (y, k, len(e.l))

    return f


@printing
def test_comprehension_breaks(e, pr, log):
    """Comprehensions that print"""

    def f(x, n):
        a = [pr(i) * x for i in range(n)]
        b = {i: pr(i) for i in range(n)}
        c = {pr(i) % 2 for i in range(3)}
        g = (pr(i) for i in range(3))
        d = next(g)
        h = [[pr(i + j) for j in range(2)] for i in range(2)]
        k = [y for y in [x, x + 1] if pr(y.sum().item() > -99)]
        m = [(w := pr(i)) for i in range(2)]
        t = tuple(g)
        u = lambda v=pr(n): v

        class K:
            z = pr(n)
            q = [pr(1) for _ in range(2)]

        return (a, b, c, d, h, k, m, w, t, u(), K.z, K.q)

    return f
