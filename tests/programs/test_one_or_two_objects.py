# ruff: noqa - the programs are as users write them
"""Values that are one object in one call and two in the next: stored, compared, as keys, in containers, swapped

Each program runs with two arguments and an object `s` that holds such values in every kind of place. In the first call all
are one object; then each argument is another one in turn, and one that was there before.
"""

import collections
import functools
import itertools
import threading
import types

import pytest
import torch
from torch import nn

from . import targets
from .compare import Comparer


class Plain:
    def __init__(self, v):
        self.v = v


class Equal(Plain):
    def __eq__(self, other):
        return isinstance(other, Equal) and self.v == other.v

    def __hash__(self):
        return hash(self.v)


class Slots:
    __slots__ = ("a", "b")


class Holder:
    @property
    def prop(self):
        return self._p

    @prop.setter
    def prop(self, v):
        self._p = v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        nn.init.ones_(self.lin.weight)
        nn.init.ones_(self.lin.bias)


def closures(v):
    held, count = v, 0

    def put(new):
        nonlocal held, count
        held, count = new, count + 1

    return put, lambda: (held, count)


def holder(v):
    """An object that has `v` in every place"""
    s = Holder()
    s.a = s.b = s._p = v
    s.l, s.t, s.d, s.od = [v, v], (v, v), {"a": v, "b": v}, collections.OrderedDict(a=v, b=v)
    s.q, s.g, s.st = collections.deque([v, v], maxlen=3), {"k": [v], 0: [v]}, {0}
    s.dd, s.cnt = collections.defaultdict(list, {1: [v], 2: v}), collections.Counter()
    s.cm = collections.ChainMap({"a": v}, {"b": v})
    s.cell, s.look = closures(v)
    s.o, s.fn, s.cls = Plain(0), types.FunctionType((lambda: 0).__code__, {}), type("C", (), {})
    s.mod, s.net, s.ten, s.sl = types.ModuleType("m"), Net(), torch.ones(2), Slots()
    s.ns, s.w, s.tl = types.SimpleNamespace(), type("D", (dict,), {})(), threading.local()
    for o in (s.o, s.fn, s.cls, s.mod, s.net, s.ten, s.sl, s.ns, s.w, s.tl):
        o.a = o.b = v
    return s


def seen(s, f):
    """What the comparison does not reach from `s` by itself"""
    pairs = [(o.a, o.b) for o in (s.cls, s.mod, s.sl, s.tl, s.fn, s.ten)]
    own = dict(s.net._parameters), dict(s.net._modules), s.net.__dict__.get("a"), s.net.__dict__.get("b")
    return vars(s), s.look(), pairs, own, [f.__globals__[name] for name in "GH"]


PROGRAMS = """
s.a = m; s.b = n; return x
s.a, s.b = m, n; return x+1
s.l[0] = m; s.l[1] = n; return x+1
s.l.append(m); s.l.insert(0, n); return x+1
s.l.extend([m, n]); s.l.reverse(); return x+1
s.l += [n]; s.l.remove(n); s.l.append(m); return x+1
s.d['a'] = m; s.d['b'] = n; return x+1
s.d.update(a=n, b=m); return x+1
s.d.setdefault('a', m); s.d.setdefault('q', n); return x+1
s.d.pop('a', None); s.d['a'] = n; return x+1
s.d = {'a': m, 'b': n}; return x+1
s.d |= {'b': m}; return x+1
s.a = s.b; s.b = m; return x+1
s.a = s.l[0]; s.l[0] = m; return x+1
s.l[:] = [m, n]; return x+1
s.l[1:] = [m]; return x+1
s.t = (m, n); return x+1
s.t = (m, s.t[0]); return x+1
s.q.append(m); return x+1
s.q.appendleft(m); s.q.pop(); return x+1
s.q.rotate(1); s.q[0] = n; return x+1
s.od.move_to_end('a'); s.od['a'] = m; return x+1
s.o.a = m; s.o.b = s.o.a; s.a = n; return x+1
s.a, s.o = s.o, s.a; return x+1
s.o = s.o; s.a = s.a; return x+1
s.l[0], s.l[1] = s.l[1], s.l[0]; return x+1
s.l.sort(key=lambda v: 0); s.l[0] = n; return x+1
del s.l[0]; s.l.append(n); return x+1
s.g['k'] += [m]; return x+1
s.g[0].append(n); return x+1
s.fn.a = m; s.fn.b = n; return x+1
s.fn.a, s.fn.b = s.fn.b, s.fn.a; s.fn.a = m; return x+1
return (m, n, [m, n], {'a': m})
return x + (m is n)
return x + (m == n)
return x + (m is s.a) + (n is s.b)
return x + (m in s.l)
return x + (m in s.d.values())
return x + len({id(m), id(n)})
return (x, m is n, n is s.a)
return x + sum(v is m for v in s.l)
a = [m]; b = [n]; s.l = a; s.m = b; return a, b
a = [m, n]; s.l = a; s.d = {'x': a}; return x+1
s.cell(m); return x+s.look()[1]
s.cell(s.look()[0]); return x+1
s.cell(m); s.cell(n); return x+1
s.t = torch.Size((len(s.l), 2)); s.a = n; return x+1
setattr(s, 'a', m); delattr(s, 'b'); s.b = n; return x+1
del s.a; s.a = m; return x+1
s.__dict__['a'] = m; return x+1
vars(s).update(a=m, b=n); return x+1
s.cls.a = m; s.cls.b = n; return x+1
s.cls.a, s.cls.b = s.cls.b, s.cls.a; return x+1
s.mod.a = m; s.mod.b = n; return x+1
s.mod.a, s.mod.b = s.mod.b, s.mod.a; return x+1
s.net.a = m; s.net.b = n; return s.net.lin(x)
s.net.a, s.net.b = s.net.b, s.net.a; return s.net.lin(x)
s.ten.a = m; s.ten.b = n; return x+1
s.ten.a, s.ten.b = s.ten.b, s.ten.a; return x+1
s.sl.a = m; s.sl.b = n; return x+1
s.sl.a, s.sl.b = s.sl.b, s.sl.a; return x+1
global G; G = m; return x+1
global G, H; G, H = m, n; G, H = H, G; return x+1
s.p = functools.partial(max, m); s.a = s.p.args; return x+1
s.it = iter([m, n]); next(s.it); return x+1
s.l = sorted(s.l, key=lambda v: v is m); return x+1
s.l = list(dict.fromkeys([m, n])) if not isinstance(m, list) else [m]; return x+1
s.l = [v for v in s.l if v is not m]; return x+1
s.st.discard(0); s.st.add(len(s.l)); s.a = m; return x+1
s.a = max(m, n, key=lambda v: 0); return x+1
s.a = m or n; return x+1
s.a = m and n; return x+1
s.a = m if x.shape[0] == 2 else n; return x+1
s.l = [m] * 2 + [n]; s.l[0] = n; return x+1
s.a = [*s.l, m][-1]; s.b = {**s.d, 'z': n}['z']; return x+1
s.a = (lambda q=m: q)(); s.h = lambda: n; s.b = s.h(); return x+1
s.l.append(s.l.pop(0)); s.l[0] = m; return x+1
s.cm.maps[0]['a'] = m; s.cm['b'] = n; return x+1
s.dd[1].append(m); s.dd[2] = n; return x+1
s.cnt['a'] += 1; s.a = m; s.b = s.cnt['a']; return x+1
s.ns.a = m; s.ns.b = s.ns.a; s.ns.a = n; return x+1
s.w.a = m; s.w.b = n; return x*2
s.w.__dict__.update(a=n); return x*2
s.prop = m; s.b = s.prop; return x*2
s.tl.a = m; s.tl.b = n; return x*2
s.tl.a, s.tl.b = s.tl.b, s.tl.a; return x*2
""".strip().splitlines()
KINDS = {
    "numbers": lambda: [2, 3, 4],
    "floats": lambda: [2.5, 3.5, 4.5],
    "constants": lambda: [None, 3, "q"],
    "objects": lambda: [Plain(1), Plain(2), Plain(3)],
    "equal objects": lambda: [Equal(1), Equal(1), Equal(2)],
    "tensors": lambda: [torch.ones(2), torch.ones(2) * 2, torch.ones(2) * 3],
    "lists": lambda: [[1], [1], [2]],
    "modules": lambda: [nn.ReLU(), nn.ReLU(), nn.Tanh()],
}
TURNS = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (0, 2)]


def outcomes(text, make, compiled):
    """What each call returns and leaves"""
    space = dict(torch=torch, collections=collections, itertools=itertools, functools=functools)
    exec("def f(x, m, n, s):\n    " + text.replace("; ", "\n    ") + "\n", space)
    f, values = space["f"], make()
    s = holder(values[0])
    space.update(G=values[0], H=values[0])
    run = targets.compiled(f, targets.Counter()) if compiled else f
    for i, j in TURNS:
        try:
            result = run(torch.ones(2), values[i], values[j], s)
        except Exception as e:
            result = type(e).__name__, str(e)
        yield result, seen(s, f), values


@pytest.mark.parametrize("text", PROGRAMS)
def test_one_or_two(text):
    """A program over values that are one object or two, in turns"""
    # of neighbours, which are alike, one has every other kind
    for kind, make in list(KINDS.items())[PROGRAMS.index(text) % 2 :: 2]:
        targets.reset()
        for n, (want, got) in enumerate(zip(outcomes(text, make, False), outcomes(text, make, True))):
            Comparer().same(want, got, f"{kind}, call {n}")


KEYED = {
    "item of a dict from outside": lambda d, a, b: {a: 1, b: 2}[b] + d.get(a, 5),
    "in a dict from outside": lambda d, a, b: (a in d) + 2 * (b in d),
    "stored in a dict from outside": lambda d, a, b: d.setdefault(a, 3) + d.setdefault(b, 4) + len(d),
    "pairs": lambda d, a, b: len({(a, 1): 0, (b, 1): 1}) + d.get((a, b), 0),
    "sets": lambda d, a, b: len({a} & {b}) + 2 * len({a, b}) + (a in {b}),
    "missing": lambda d, a, b: {a: 1}.get(b, 5),
    "tuples": lambda d, a, b: ((a, 1) == (b, 1)) + 2 * ([a] == [b]),
    "in lists": lambda d, a, b: (a in [b]) + [a, b].count(a) + [a, b].index(b),
    "methods": lambda d, a, b: (a.__init__ == b.__init__) + 2 * (a.__str__ == b.__str__),
    "ids": lambda d, a, b: (id(a) == id(b)) + len({id(a), id(b), id(None), id(d.get("none"))}),
    "many": lambda d, a, b: len(set([*d, a, b])) + len(dict.fromkeys([*d, a, b])),
}


@pytest.mark.parametrize("many", [3, 30])
def test_visited(many):
    """A set of the objects that were visited, which each call makes anew: one compile, and two that are one are seen"""

    def f(x, nodes):
        seen = set()
        for node in nodes:
            if node not in seen:
                seen.add(node)
                x = x + node.v
        return x

    counter = targets.Counter()
    run = targets.compiled(f, counter)
    for _ in range(5):
        nodes = [Plain(i) for i in range(many)]
        assert run(torch.ones(1), nodes).item() == 1 + sum(range(many))
    assert counter.count == 1
    assert run(torch.ones(1), [*nodes[:-1], nodes[1]]).item() == 1 + sum(range(many - 1))


FUNCTIONS = lambda: [(lambda n=n: n) for n in range(3)]


@pytest.mark.parametrize("make", [KINDS["objects"], KINDS["modules"], KINDS["tensors"], FUNCTIONS])
@pytest.mark.parametrize("name", KEYED)
def test_keys(name, make):
    """Objects as keys, compared and found by identity, that are one object or two"""
    f, values = KEYED[name], make()
    if isinstance(values[0], torch.Tensor) and name in ("tuples", "in lists", "methods"):
        return
    program = lambda x, d, a, b: x * f(d, a, b)
    two_first = [(0, 1), (0, 0), (1, 0), (2, 2), (1, 1)]
    for turns, held in ((TURNS, (0,)), (two_first, (1, 2)), (two_first, ()), (TURNS, (1, 2))):
        targets.reset()
        run = targets.compiled(program, targets.Counter())
        for i, j in turns:
            ours, plain = ({values[k]: k for k in held} for _ in range(2))
            want, got = f(plain, values[i], values[j]), run(torch.ones(1), ours, values[i], values[j])
            assert got.item() == want and list(ours) == list(plain)
