# ruff: noqa: UP003 - what the programs do is the point
"""Containers"""

import collections
import copy
import os
import sys
import types

import torch

from .harness import F, Sign, Turn, case, program


@case(F(4), graphs=1)
def test_list_methods(x):
    """list: all methods, made inside"""
    a = [3, 1]
    a.append(2)
    a.extend((5, 4))
    a.insert(1, 9)
    p = a.pop(), a.pop(0)
    a.remove(9)
    a.sort(key=lambda v: -v)
    a.reverse()
    b = a.copy()
    b.clear()
    a[1:2] = [7, 8]
    del a[0]
    c = [x, x + 1]
    c += [x * 2]
    c[0] = c[1] * 3
    return a, b, p, a.index(7), a.count(7), a + [1], a * 2, [1, 2] < [1, 3], c, len(c), [x] * 2


@case(F(4), graphs=1)
def test_dict_methods(x):
    """dict: all methods, made inside"""
    d = {"a": x, "b": 2}
    d["c"] = x + 1
    d.update({"e": 5}, f=6)
    d.setdefault("g", x * 3)
    got = d.get("zz", 7), d.pop("b"), d.pop("none", None)
    last = d.popitem()
    e = d | {"h": 1}
    d |= {"i": 1}
    del d["f"]
    f = dict.fromkeys("ab", 0)
    copy = d.copy()
    copy.clear()
    return (
        d,
        e,
        f,
        copy,
        got,
        last,
        list(d),
        [k for k in d.keys()],
        [v for v in d.values()],
        list(d.items()),
        list(reversed(d)),
        "a" in d,
        len(d),
        dict(a=1) == {"a": 1},
        d.keys() & {"a", "c"},
        dict(zip("ab", (1, 2))),
    )


@case(F(4), graphs=1)
def test_dict_keys_of_many_types(x):
    """dict keys: tuples, None, dtypes, classes, floats equal to ints"""
    d = {(1, "a"): x, None: 1, torch.float32: 2, int: 3, 1.0: 4}
    d[1] = 5
    return d[(1, "a")] + d[None], d[x.dtype], d[type(3)], d[1.0], len(d)


@case(F(4), graphs=1)
def test_set_methods(x):
    """set and frozenset: all methods"""
    s = {1, 2, 3}
    s.add(4)
    s.discard(9)
    s.remove(1)
    s.update([7], (8,))
    t = frozenset([2, 3, 10])
    ops = s & t, s | t, s - t, s ^ t, s <= t, s.issuperset({2}), s.isdisjoint({99}), t.union([1])
    s &= {2, 3, 4}
    s -= {4}
    s ^= {5}
    u = s.copy()
    u.clear()
    v = {2}
    return x + len(s), s, ops, u, v.pop(), t.intersection([2]), s.symmetric_difference([5]), {(1, 2): 3}


@case(F(4), graphs=1)
def test_tuple_methods(x):
    """tuple: methods, comparison, concatenation"""
    t = (x, 1, 2, 1)
    return (
        t[0] + 1,
        t[1:],
        t[1:].count(1),
        t[1:].index(2),
        (1, 2) + (3,),
        (1,) * 3,
        (1, 2) < (1, 3),
        tuple([1, 2]),
        hash((1, 2)) == hash((1, 2)),
        (),
    )


@case(F(4), graphs=1)
def test_deque(x):
    """deque: all methods, maxlen"""
    d = collections.deque([1, 2, 3], maxlen=4)
    d.append(x)
    d.appendleft(x + 1)
    d.rotate(1)
    a = d.pop()
    d.extend([5])
    d.extendleft([6])
    b = d.popleft()
    e = collections.deque([1, 2, 1])
    e.remove(1)
    e.insert(0, 9)
    e.reverse()
    return d, a, b, d.maxlen, e, e.count(1), len(d), e.index(9), e.copy(), list(reversed(e)), 9 in e, e[-1]


@case(F(4), graphs=1)
def test_ordered_dict(x):
    """OrderedDict"""
    d = collections.OrderedDict(a=1, b=x)
    d["c"] = x + 1
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return d, first, list(d), list(reversed(d)), d == collections.OrderedDict(b=d["b"], a=1)


@case(F(4), graphs=1)
def test_defaultdict(x):
    """defaultdict"""
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(x + 1)
    d["b"] += [1]
    n = collections.defaultdict(lambda: 5)
    return d, d["a"][1] * n["q"], "zz" in d, d.get("zz"), dict(n), d.default_factory is list


@case(F(4), graphs=1)
def test_counter(x):
    """Counter"""
    c = collections.Counter("abca")
    c.update("a")
    c["z"] += 2
    c.subtract({"b": 1})
    return x * c["a"], c, c.most_common(1), c["none"], sum(c.values()), (c + collections.Counter("b"))["b"], sorted(c.elements())


@case(F(4), graphs=1)
def test_chainmap_mappingproxy(x):
    """ChainMap, MappingProxyType, SimpleNamespace"""
    c = collections.ChainMap({"a": 1}, {"a": 2, "b": x})
    m = types.MappingProxyType({"k": 3})
    n = types.SimpleNamespace(t=x)
    n.u = n.t + 1
    c["z"] = 5
    return c["a"], c["b"] * m["k"], n.u, len(c), c.maps[0], "k" in m, list(m.items())


@program(F(4), graphs=1)
def test_subclasses():
    """User subclasses of list, dict, tuple, str, int"""

    class L(list):
        def second(self):
            return self[1]

        def append(self, v):
            super().append(v * 2)

    class D(dict):
        def __missing__(self, k):
            return k + "!"

        def __getattr__(self, k):
            return self[k]

    class T(tuple):
        def total(self):
            return sum(self)

    class N(int):
        def up(self):
            return N(self + 1)

    def f(x):
        a = L([x, x + 1])
        a.append(x)
        d = D(w=x)
        d["q"] = 1
        return a, a.second(), len(a), d["nope"], d.w, T((1, 2)).total(), N(3).up(), isinstance(N(1), int), d

    return f


@case(F(4), graphs=1)
def test_subclasses_made_inside(x):
    """Classes made in the program that leave it with their instances"""

    class L(list):
        def second(self):
            return self[1]

        def append(self, v):
            super().append(v * 2)

    class D(dict):
        def __missing__(self, k):
            return k + "!"

    a = L([x, x + 1])
    a.append(x)
    d = D(w=x)
    return a, a.second(), len(a), d["nope"], d


@program(F(4), graphs=1)
def test_list_outside_changed():
    """A list from outside, changed: identity and contents"""
    log, alias = [1], None
    alias = log

    def f(x):
        log.append(x)
        log.extend([x + 1, 2])
        log[0] = "first"
        log.insert(0, 5)
        return alias[2] * 2, log

    return f, lambda: (log, alias)


@program(F(4), calls=2)
def test_dict_outside_changed():
    """A dict from outside, changed"""
    d = {"a": 1, "b": 2}

    def f(x):
        d["t"] = x + 1
        d.pop("a", None)
        d.update(z=x)
        d.setdefault("s", []).append(x)
        return d["t"] * 2

    return f, lambda: d


@program(F(4))
def test_set_deque_outside_changed():
    """A set, deque, OrderedDict, defaultdict, Counter from outside, changed"""
    s, q = {1}, collections.deque([1, 2], maxlen=3)
    o, dd, c = collections.OrderedDict(a=1, b=2), collections.defaultdict(list), collections.Counter("ab")

    def f(x):
        s.add(5)
        s.discard(1)
        q.append(x)
        q.rotate(1)
        o.move_to_end("a")
        dd["k"].append(x)
        c.update("b")
        return x + len(s) + len(q)

    return f, lambda: (s, q, o, dd, c)


@case(F(4), {"a": [1, {"b": 2}]}, graphs=1)
def test_nested_argument_changed(x, d):
    """Nested containers as argument, changed in depth"""
    d["a"][1]["b"] = x
    d["a"].append(d)
    d["a"][0] += 1
    return d["a"][1]["b"] + 1


@case(args=lambda r: (lambda x, xs: (x, xs, xs))(r.f(4), [r.f(2)]), graphs=1)
def test_aliased_list_arguments(x, a, b):
    """The same list as two arguments"""
    a.append(x)
    return b[1] * 2, a is b, len(b)


@case(F(4), [1, 2, 3], graphs=1)
def test_argument_cleared_and_sorted(x, a):
    """A list argument sorted, reversed, cleared, refilled"""
    a.sort(reverse=True)
    top = a[0]
    a.clear()
    a += [x, top]
    return x * top


@case(F(4), Turn([1, 2], [1, 2, 3], [1, 2]), graphs=1, total=2)
def test_list_length_changes(x, a):
    """A list argument whose length changes between calls"""
    for v in a:
        x = x + v
    return x


@case(F(4), Turn({"a": 1}, {"b": 1}, {"a": 1}), graphs=1, total=2)
def test_dict_keys_change(x, d):
    """A dict argument whose keys change between calls"""
    return {k: x * v for k, v in d.items()}


@case({"x": 1.5, "y": [1, 2]}, F(4), graphs=1)
def test_returned_same_containers(d, x):
    """Arguments returned: identity kept, new containers are new"""
    new = {"x": 1.5, "y": d["y"]}
    return d, new, d["y"], x, (x, x), [x + 1] * 2


@case(F(4), graphs=1)
def test_error_methods(x):
    """Errors of container methods caught"""
    out = []
    for g in (
        lambda: [].pop(),
        lambda: [1].remove(2),
        lambda: {}.popitem(),
        lambda: set().pop(),
        lambda: {1}.remove(2),
        lambda: (1,).index(2),
        lambda: collections.deque().pop(),
        lambda: {[]: 1},
        lambda: dict([1]),
    ):
        try:
            g()
        except Exception as e:
            out.append((type(e).__name__, e.args))
    return x + len(out), out


@case(F(4), graphs=1)
def test_dict_changed_while_iterating(x):
    """dict changed during iteration raises"""
    d = {"a": 1}
    try:
        for k in d:
            d[k + "b"] = 1
    except RuntimeError as e:
        return x + 1, str(e)


@case(F(4), graphs=1)
def test_list_changed_while_iterating(x):
    """list changed during iteration"""
    a = [1, 2, 3]
    out = []
    for v in a:
        out.append(v)
        if v < 3:
            a.append(v * 10)
        if len(a) > 6:
            a.pop(0)
    return x + len(out), out


@case(Sign(4), breaks=True)
def test_break_with_containers_alive(x):
    """Break while containers made inside are alive: identity and contents kept"""
    a = [x + 1]
    d = {"a": a, "t": x * 2}
    s = {1, 2}
    q = collections.deque([a])
    it = iter(a + [3])
    next(it)
    if x.sum() > 0:
        a.append("pos")
    q.append(d)
    s.add(len(a))
    return a, d, s, q, q[0] is a, next(it), d["a"] is a


@case(F(4), graphs=1)
def test_sharing_inside(x):
    """Containers shared and self-referring"""
    a = [x + 1]
    a.append(a)
    b = {"a": a, "b": a}
    return a, b, b["a"] is b["b"], a[1] is a


@case(F(4), graphs=1)
def test_heapq_bisect_copy(x):
    """heapq, bisect, copy, deepcopy"""
    import bisect
    import copy
    import heapq

    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    src = [1, [2, x]]
    sh, dp = copy.copy(src), copy.deepcopy([1, [2]])
    few = heapq.nsmallest(2, [(3, x), (1, x), (2, x)]), heapq.nlargest(1, [src[0], 3], key=lambda n: -n)
    return heapq.heappop(h), bisect.bisect([1, 3, 5], 3), sh[1] is src[1], dp, x + h[0], few


@case(F(4), graphs=1)
def test_pytree(x):
    """torch.utils._pytree map and flatten"""
    from torch.utils import _pytree as pytree

    tree = {"a": [x, 1], "b": (x + 1, None)}
    leaves, spec = pytree.tree_flatten(tree)
    return (
        pytree.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, tree),
        len(leaves),
        pytree.tree_unflatten(leaves, spec),
    )


@program(F(3), graphs=1)
def test_moved_keys_of_an_ordered_dict():
    """An OrderedDict from outside whose keys were moved: its own order"""
    table = collections.OrderedDict(a=1, b=2, c=3)
    table.move_to_end("a")
    return lambda x: (x * 2, list(table), list(table.values()), [k for k in table], dict(table))


@case(F(3))
def test_keywords_that_compare_in_their_own_way(x):
    """`f(**d)` with keys of a subclass of str whose __eq__ has effects"""

    class Name(str):
        def __eq__(self, other):
            table.pop(self, None)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    table = {Name("a"): 1, Name("b"): 2}

    def f(a, b):
        return a, b

    return x * 2, f(**table)


def _said(call, *args):
    try:
        return call(*args)
    except (TypeError, MemoryError) as e:
        return type(e).__name__, str(e)


@case(F(4), breaks=True)
def test_wrong_number_of_arguments(x):
    """Methods of containers and builtins called with too many arguments or too few"""
    a, d, s = [1], {"k": 1}, {1}
    y = x + 1
    return (
        y,
        _said(a.append, 1, 2),
        _said(a.append),
        _said(a.insert, 1),
        _said(a.pop, 1, 2),
        _said(a.__contains__),
        _said(a.__getitem__),
        _said(d.get),
        _said(d.get, 1, 2, 3),
        _said(s.add),
        _said(s.add, 1, 2),
        _said(getattr),
        _said(next),
        _said(isinstance, 1),
        _said(len),
        _said(len, a, a),
        a,
        d,
        s,
    )


@case(F(4), breaks=True)
def test_repetition_that_is_too_long(x):
    """A list repeated more often than memory holds"""
    y = x + 1
    return y, _said(lambda n: [0] * n, 1 << 62), _said(lambda n: (0, 1) * n, 1 << 62)


class _Letters(frozenset):
    pass


@case(F(4), lambda: _Letters("abc"), breaks=True)
def test_methods_of_a_frozenset_subclass(x, letters):
    """Methods of a subclass of frozenset from outside, and of one made inside"""
    y = x + 1
    made = _Letters("bcd")
    return (
        y,
        sorted(letters.union("x")),
        sorted(made.union(letters)),
        sorted(made - letters),
        sorted(made.symmetric_difference(letters)),
        type(made | letters).__name__,
    )


@program(F(4), total=2, breaks=True, calls=4)
def test_appended_to_in_a_breaking_loop():
    """A list appended to in a loop that breaks: how long it is by then is not looked at"""
    outside = []

    def f(x):
        inside = []
        for _ in range(12):
            x = x * 0.9
            inside.append(x)
            outside.extend([x, 1])
            if x.sum() > 1e6:
                break
        return x, inside

    return f, lambda: outside


@case([1], F(4), graphs=1)
def test_list_given_appended_to_then_read(items, x):
    """A list from outside appended to, read afterwards, appended to again"""
    items.append(x)
    items.extend(items)
    n = len(items)
    items += [n, x + n]
    del items[0]
    return items[-1] * 2, n, items


def _ordered(given=None):
    if given is None:
        given = collections.OrderedDict()
        given._metadata = collections.OrderedDict()
    if hasattr(given, "_metadata"):
        given._metadata["x"] = dict(version=1)
    given["a"] = 1
    return given


@program(F(3), graphs=1)
def test_attributes_of_an_ordered_dict():
    """Attributes set on an OrderedDict, made inside and from outside, read, asked for, copied"""
    outside = collections.OrderedDict(a=1)
    outside.note = "n"

    def f(x):
        made, copied = _ordered(), copy.deepcopy(outside)
        again = copy.copy(made)
        outside.last = made._metadata
        try:
            outside.missing
        except AttributeError as e:
            words = str(e)
        _ordered(outside)
        return x + 1, made, copied, again, words, outside.note, hasattr(outside, "zip"), made._metadata is again._metadata

    return f, lambda: outside


@case(F(4), graphs=1)
def test_index_within_bounds(x):
    """list, tuple and deque.index with bounds, negative ones too; the errors of what is not found"""
    out, d = [], collections.deque([1, 2, 3, 2])
    for seq in ([1, 2, 3, 2], (1, 2, 3, 2), d):
        out += [seq.index(2, -1), seq.index(2, 2), seq.index(2, -3, -1), seq.index(1, -10, 10)]
        for bounds in ((9,), (1, 1), (3, 0, 2), (3, -1)):
            try:
                out.append(seq.index(*bounds))
            except ValueError as e:
                out.append(str(e))
    try:
        d.remove("absent")
    except ValueError as e:
        out.append(str(e))
    return x + len(out), out


@case(F(4), graphs=1)
def test_struct_sequences(x):
    """the interpreter's own named tuples: sys.flags, sys.version_info, sys.float_info"""
    info = sys.version_info
    return x + info.major, sys.flags.optimize, sys.flags.dev_mode, info >= (3, 8), info[:2], sys.float_info.max, info.releaselevel


STAT = os.stat_result(range(19))


@case(F(4))
def test_struct_sequences_with_fields_past_their_items(x):
    """os.stat_result: st_atime is no item of the tuple"""
    return x + STAT.st_size, STAT.st_mode, STAT[7], STAT.st_atime, STAT.st_atime_ns, len(STAT)


@case(F(4), graphs=1)
def test_constant_slices(x):
    """slices written out, which 3.14 keeps among a code's constants"""
    t, s, n = (x, 1, 2, 3), [1, 2, 3, 4], slice(1, 3)
    s[1:2] = [9, 9]
    s[-1:] = [7]
    return t[1:], t[:-1][0], s[::2], s[n], x[1:3], x[..., :2], "abcdef"[1:-1:2], x[None, 1:]
