# ruff: noqa - the programs are as users write them
"""Keys, texts and lengths that change between calls: one more costs no compile"""

import collections
import enum
import math

import pytest
import torch
from torch import nn

import bytejit

from .harness import F, Spec, Turn, check, program

KEYS = (2, 3, 5, 4, 7, 9, 8, 6, 12, 11, 13, 10)


@program(F(3), Turn(*KEYS), calls=12, total=2)
def test_a_table_of_floats():
    """Tables of numbers, looked up by a number that changes"""
    rates, steps, both = {i: i * 0.5 for i in range(20)}, [i * 0.25 for i in range(20)], tuple(i + 0.125 for i in range(20))
    recent = collections.deque(range(3, 23))
    return lambda x, k: x * rates[k] + steps[k] - both[k - 1] + recent[k] + rates.get(k, 3.0)


@program(F(3), Turn(*KEYS), calls=12, total=2)
def test_a_table_of_tensors():
    """Tables of tensors, one of which is written"""
    table = {i: torch.full((3,), float(i)) for i in range(20)}
    rows = [torch.full((3,), float(i)) for i in range(20)]

    def f(x, k):
        rows[k].add_(1)
        return x + table[k] * rows[k]

    return f, lambda: (table, rows)


@program(F(3), Turn(*KEYS), Turn(*KEYS[1:], 2, 13, 13), calls=14)
def test_two_picks_of_one_table():
    """What is written may be what another key gives"""
    rows = [torch.full((3,), float(i)) for i in range(20)]

    def f(x, i, j):
        before = rows[j] * 1
        rows[i].mul_(2)
        return x + before, rows[j] + 1, rows[i] is rows[j]

    return f, lambda: rows


@program(F(3), Turn(*KEYS, 99, -1, -20, -21), calls=16)
def test_keys_that_are_not_there():
    """Keys that are not there, and negative ones"""
    rates, steps = {i: i * 0.5 for i in range(20)}, [i * 0.25 for i in range(20)]

    def f(x, k):
        y = x * rates.get(k, -1.0) if k in rates else x + 7
        try:
            return y + steps[k], rates[k]
        except LookupError as e:
            return y, type(e).__name__, str(e)

    return f


@program(F(3), Turn(*KEYS), calls=12)
def test_tables_that_change():
    """Tables that lose, gain and replace what they have, in the function and outside"""
    table = {i: float(i) for i in range(14)}

    def f(x, k):
        y = x * table[k]
        table[3] = table[k] + 1.0
        if k == 9:
            del table[12]
        if k == 8:
            table[6] = torch.ones(3)
        return y * table.get(k, 0.5), table[3], len(table), table.pop(11, None)

    return f, lambda: table


@program(F(3), Turn(*KEYS), calls=12)
def test_items_of_other_kinds():
    """What a table has is a number, an int, a tensor, a list, text, nothing"""
    table = dict(enumerate([0, 1, 2.5, 3, torch.ones(3), [1], "a", None, True, 9.5, torch.ones(2, 3), (1, 2.5), {"a": 1}, 13]))

    def f(x, k):
        v = table[k]
        if isinstance(v, (int, float, torch.Tensor)) and v is not True:
            return x * v
        return x + (0 if not v else len(v) if not isinstance(v, bool) else 2), v

    return f, lambda: table


@program(F(3), Turn(*range(12)), calls=24, total=3)
def test_state_of_objects():
    """State kept by object: a step of an optimizer for one parameter after the other"""
    params = [nn.Parameter(torch.full((3,), float(i))) for i in range(12)]
    state = {p: {"m": torch.zeros(3), "n": torch.ones(3)} for p in params}

    def update(x, i):
        p = params[i]
        s = state[p]
        s["m"].mul_(0.9).add_(x, alpha=0.1)
        with torch.no_grad():
            p.sub_(s["m"] * s["n"])
        return s["m"] + 1

    def f(x, i):
        return update(x, i)

    return f, lambda: (params, [state[p] for p in params])


@program(F(3), Turn(*range(12)), calls=24, total=3)
def test_tables_keyed_by_objects():
    """A table keyed by objects that are equal to themselves only"""

    class Node:
        def __init__(self, n):
            self.n = float(n)

    nodes = [Node(i + 2) for i in range(12)]
    weight = {n: n.n * 0.5 for n in nodes[:10]}
    known = dict.fromkeys(nodes)

    def g(x, node):
        return x * weight.get(node, 7.0) if node in known else x

    return lambda x, i: g(x, nodes[i % 10])


@program(F(3), Turn(*"abcdefghijkl"), calls=12, total=2)
def test_tables_keyed_by_text():
    """Text as key, in text, and its methods"""
    table = {c: torch.full((3,), float(i)) for i, c in enumerate("abcdefghijkl")}
    pairs = {(c, f"{c}!"): float(i + 2) for i, c in enumerate("abcdefghijkl")}

    def f(x, name):
        return x * table[name] + pairs[name, f"{name}!"], f"<{name}>", name.startswith("zz"), len(name) + 1

    return f


@program(F(2, 4), Turn(*KEYS[:10]), calls=10, total=2)
def test_modules_by_number():
    """Modules taken by number or name from lists and dicts"""
    torch.manual_seed(3)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(14))
    heads = nn.ModuleDict({f"h{i}": nn.Linear(4, 2) for i in range(14)})

    def f(x, k):
        y = heads[f"h{k}"](layers[k](x).relu())
        y.sum().backward()
        return y, k

    return f, lambda: [p.grad for p in [*layers.parameters(), *heads.parameters()]]


class Kind(enum.Enum):
    A = 1
    B = 2


@program(F(3), Turn(Kind.A, Kind.B), Turn(*KEYS), calls=12)
def test_rows_as_keys():
    """Rows of members, numbers and text as keys"""
    table = {(k, n, "w"): n * 0.5 + k.value for k in Kind for n in range(20)}
    return lambda x, kind, n: x * table[kind, n, "w"]


@program(F(3), Turn(*[i + 0.3 for i in range(12)]), calls=12, total=2)
def test_functions_of_numbers():
    """Functions of math and methods of numbers that nothing in the graph computes"""

    def f(x, v):
        whole, rest = divmod(v, 1.0)
        part, base = math.modf(v + 1)
        m, e = math.frexp(v + 300.0)
        return x * math.fsum([v, v * 2, 0.5]) + part - base + m + math.ldexp(v, 2) + rest, v.is_integer(), e

    return f


@program(F(3), Turn(*KEYS), calls=12)
def test_functions_of_ints():
    """Functions of whole numbers"""

    def f(x, k):
        return x * math.isqrt(k * k) + math.gcd(k * 6, 30) + math.comb(k, 2), k.bit_length() + 2, (k * 0.5).as_integer_ratio()

    return f


@program(F(3), Turn(0.5, -1.0, 0.25, -2.0), calls=4)
def test_functions_that_raise():
    """Functions of numbers that raise for some of them"""

    def f(x, v):
        try:
            return x * math.fsum([math.sqrt(v), 1.0]), math.isqrt(int(v * 4))
        except ValueError as e:
            return x, str(e)

    return f


@program(F(3), calls=14)
def test_growing_deques():
    """Deques and lists that grow: what is appended, taken from their ends, and how many they hold"""
    recent, seen, window = collections.deque(), [], collections.deque(maxlen=5)

    def f(x):
        recent.append(x.sum())
        seen.append(x)
        window.extend([x, x + 1])
        y = x + recent[-1] + seen[-1] + window[-1] - window[-2]
        if len(seen) > 6:
            y = y * 2
        if recent and not (len(recent) > 100):
            y = y + len(recent)
        return y, window[0]

    return f, lambda: (recent, seen, window)


@program(F(3), calls=14, total=3)
def test_only_the_length_is_asked_for():
    """A list that grows, of which only the length is asked for"""
    seen = []

    def f(x):
        seen.append(1.5)
        return x * len(seen), len(seen) > 20

    return f, lambda: seen


def test_deques_of_other_lengths():
    """Two deques of one length that keep another number of items"""

    def f(x, d):
        d.append(x)
        return len(d), d[0]

    ones = [torch.ones(3) * i for i in range(4)]
    given = [collections.deque(ones, 4), collections.deque(ones, 5), collections.deque(ones), collections.deque(ones, 4)]
    check(f, F(3), Turn(*given), calls=4)


@program(F(3), Turn(*KEYS), calls=12)
def test_keys_made_in_the_function():
    """A number that the function changed is the key; a size is; what a tensor holds is"""
    state = {"step": 0}
    table = [i * 0.5 for i in range(40)]

    def f(x, k):
        state["step"] += 1
        y = torch.ones(k).sum()
        return x * table[state["step"]] + table[k + 1] - table[torch.ones(k, 2).shape[0]] * y

    return f, lambda: state


@program(F(3), Turn(*KEYS), calls=12, total=2)
def test_what_is_written_under_a_key():
    """Results kept by number, text and row, read again in the same call"""
    history, metrics, grid = {}, {"last": 0}, {}

    def f(x, k):
        history[k] = x * 2
        metrics[f"loss_{k}"] = history[k].sum()
        grid[k, "a"] = k
        grid[k, "b"] = x
        assert k in history and (k, "b") in grid and grid.get((k, "b")) is x
        return history[k] + metrics[f"loss_{k}"], grid[k, "b"]

    return f, lambda: (history, metrics, grid)


@program(F(3), Turn(*KEYS), Turn(*KEYS[1:], 2, 13, 13), calls=14)
def test_what_two_keys_write():
    """Two keys that may be one: what is read, replaced, deleted and counted after both were written"""
    table, others = {3: 0.5}, {}

    def f(x, i, j):
        table[i] = x + 1
        table[j] = x * 2
        a = table[j] + table[i]
        table[i] = x * 3
        others[i] = 1
        others[j] = 2
        others[i] = 3
        if i == 9:
            del table[12], others[j]
        return a, j in table, table.get(3), len(others), list(others)[-1]

    return f, lambda: (table, others)


@program(F(3), Turn(*range(12)), calls=24, total=6)
def test_state_made_when_it_is_missing():
    """State by object that is made when it is first asked for, and looked for the next time"""
    params = [nn.Parameter(torch.full((3,), float(i))) for i in range(12)]
    state, steps = {}, {}

    def f(x, i):
        p = params[i]
        if p not in state:
            state[p] = {"m": torch.zeros_like(p), "step": 0}
        s = state[p]
        s["step"] += 1
        s["m"].lerp_(x, 0.1)
        steps[p] = steps.get(p, 0) + 1
        with torch.no_grad():
            p.sub_(s["m"], alpha=0.1 / s["step"])
        return s["m"] * s["step"]

    return f, lambda: (params, [state.get(p) for p in params], list(steps.values()))


@program(F(3), Turn(*range(12)), calls=24, total=6)
def test_a_list_written_by_number():
    """Caches in a list, one for each layer, made, grown and replaced"""
    cache = [None] * 12

    def f(x, layer):
        y = x.sin()
        if cache[layer] is None:
            cache[layer] = (y, y * 2)
        else:
            cache[layer] = tuple(torch.cat([a[-3:], b]) for a, b in zip(cache[layer], (y, y * 2)))
        return cache[layer][0].sum(), len(cache)

    return f, lambda: cache


@program(F(4), Turn(*"the cat sat on the mat with a hat and bat".split()), calls=11)
def test_a_vocabulary():
    """A table that gains what it lacks, counted by a dict of a class of its own"""
    vocab, table, counts = {"<unk>": 0}, torch.arange(80.0).view(20, 4).sin(), collections.Counter()

    def f(x, word):
        i = vocab.get(word, 0)
        if word not in vocab and len(vocab) < 9:
            vocab[word] = i = len(vocab)
        counts[word] += 1
        return x + table[i], i, counts[word], word in vocab, len(vocab), word.split("a")

    return f, lambda: (vocab, counts)


@program(Spec(lambda r: r.f(r.call + 2, 4)), calls=12, total=3)
def test_masks_by_size():
    """What is kept for each size, made where it is missing"""
    kept = {}

    def mask(n):
        if n not in kept:
            kept[n] = torch.ones(n, n).tril()
        return kept[n]

    return lambda x: (mask(x.shape[0]) @ x, len(kept)), lambda: kept


@program(F(3), Turn(*KEYS), Turn(*KEYS[1:], 2, 13, 13, -1, -3), calls=16)
def test_what_two_numbers_write_in_a_list():
    """A list written at two places that may be one, from either side, then read, appended to and counted"""
    rows, recent = [float(i) for i in range(20)], collections.deque(range(20), 20)

    def f(x, i, j):
        rows[i] = x
        a = rows[j] * 1.0
        rows[j] = 7.5
        recent[i] = j
        recent[j] = i
        b = rows[i] if i != 9 else rows[-j]
        rows.append(1.0)
        if i == 8:
            recent.append(1)
        return a + b, len(rows), rows[3], recent[j], recent[-1]

    return f, lambda: (rows, recent)


@program(F(3), Turn(*"abcdeabcde"), calls=10)
def test_default_dicts():
    """Dicts with a factory: totals and lists by name"""
    totals, lists = collections.defaultdict(float), collections.defaultdict(list)

    def f(x, name):
        totals[name] += 0.5
        lists[name].append(x)
        return x * totals[name], len(lists[name]), len(totals), lists[name][-1]

    return f, lambda: (totals, lists)


@program(F(3), Turn(*range(12)), Turn(*range(1, 12), 0, 5), calls=26)
def test_what_two_objects_write():
    """Two objects as keys, which may be one, written and counted"""
    params = [nn.Parameter(torch.full((3,), float(i))) for i in range(12)]
    table, seen = {}, collections.OrderedDict()

    def f(x, i, j):
        p, q = params[i], params[j]
        table[p] = x
        table[q] = x * 2
        seen[p, 1] = i
        seen.last = j
        return x + 1, len(table), table[q], p in table, seen[p, 1]

    return f, lambda: ([table.get(p) for p in params], list(seen.values()), seen.last)


NAMES = tuple(f"a{k}" for k in KEYS)


class Held:
    """Attributes of an object, one of the class's and one that is computed."""

    a90 = 4.5

    def __init__(self) -> None:
        for k in range(14):
            setattr(self, f"a{k}", k * 0.5)

    @property
    def a91(self):
        return 2.5


@program(F(3), Turn(*NAMES), calls=12, total=2)
def test_attributes_by_name():
    """getattr with names that change"""
    held = Held()
    return lambda x, name: x * getattr(held, name) + getattr(held, name[:1] + name[1:], 3.0)


@program(F(3), Turn(*NAMES, "a90", "a91", "gone", "a3", "a2"), calls=17)
def test_attributes_that_the_object_does_not_hold():
    """Names of the class's, a property's, and names that nobody has"""
    held = Held()
    return lambda x, name: x * getattr(held, name, 7.0) + (0 if hasattr(held, name) else 1)


@program(F(3), Turn(*KEYS), calls=12)
def test_attributes_that_are_written():
    """What is written under one name may be what another name gives"""
    held = Held()

    def f(x, k):
        before = getattr(held, f"a{k}")
        held.a3 = before + 1
        return x * getattr(held, f"a{k}") + before

    return f, lambda: held.__dict__


@program(F(2, 3), Turn(*NAMES), calls=12, total=2)
def test_modules_by_name():
    """getattr(self, name) of layers, parameters and buffers"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            for k in range(14):
                setattr(self, f"a{k}", nn.Linear(3, 3))
                self.register_buffer(f"b{k}", torch.full((3,), float(k)))

        def forward(self, x, name):
            return getattr(self, name)(x) + getattr(self, "b" + name[1:])

    torch.manual_seed(0)
    net = Net().requires_grad_(False)
    return lambda x, name: net(x, name), lambda: None


@program(F(3), Turn(*NAMES), calls=12, total=5)
def test_names_compared():
    """Text that changes, compared with constants"""
    return lambda x, name: x + 1 if name == "a3" else x * 2 if name != "a9" and name < "a5" else x - 1


TEXTS = (*NAMES[:6], "a", "", "b7", "a13", "zz")


@program(F(3), Turn(*TEXTS), Turn(1, 0, -1, 2, 1, 0, 3, -1, -4, 1, 0), calls=11)
def test_letters_that_are_not_there():
    """A place in text that changes: what raises is caught where the program catches it"""

    def f(x, text, k):
        found, seen = [], []
        for pick in (lambda: text[1], lambda: text[k], lambda: "{0[1]}".format(text), lambda: "%c" % text):
            seen.append(1)
            try:
                found.append(pick())
            except (IndexError, TypeError) as e:
                found.append(type(e).__name__)
        return x + len(seen), found

    return f


@program(F(3), Turn(0.5, 1.5, 2.25, math.inf, 7.5, math.nan, -3.5, -math.inf, 4.5), calls=9)
def test_floats_written_as_integers():
    """%d of floats that change, some of which are no integers"""

    def f(x, v):
        try:
            return x + 1, "%d%% of %s, %f" % (v, v, v)
        except (ValueError, OverflowError) as e:
            return x - 1, str(e)

    return f


HOOKS = {
    "reads": lambda net, log, i: [net[0].register_forward_hook(lambda m, a, out: log.append(out.detach()))],
    "two kinds": lambda net, log, i: [
        net[0].register_forward_hook((lambda m, a, out: out * 2) if i % 2 else (lambda m, a, out: out + 1)),
        net[0].register_forward_hook(lambda m, a, out: out * i),
    ],
    "before, with keywords": lambda net, log, i: [
        net[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
        net[2].register_forward_hook(lambda m, a, named, out: log.append(len(named)), with_kwargs=True),
    ],
    "of each layer": lambda net, log, i: [
        m.register_forward_hook(lambda m, a, out, n=n: log.append((n, out.detach()))) for n, m in enumerate(net)
    ],
}


@pytest.mark.parametrize(("kind", "most"), [(kind, 4 if kind == "two kinds" else 2) for kind in HOOKS])
def test_hooks_put_on_for_each_call(kind, most):
    """Each hook has a key of its own: one more costs no compile"""
    seen = []
    for compile in (lambda f: f, lambda f: bytejit.compile(f, backend="eager")):
        bytejit.reset()
        torch.manual_seed(0)
        net, log = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), []
        f = compile(lambda x: net(x) * 2)
        for i in range(8):
            put_on = HOOKS[kind](net, log, i)
            log.append(f(torch.arange(3.0) + i).detach())
            for hook in put_on:
                hook.remove()
        seen.append(log)
    torch.testing.assert_close(*seen)
    assert bytejit.counters.total("graphs") <= most, bytejit.counters


def test_all_items_of_a_dict_whose_keys_change():
    """All at once, before and after the region writes it, and as views that are kept"""

    def f(x, d):
        rows, pairs, keys = [*d.values()], [*d.items()], d.keys()
        d[5] = x
        return x + sum(rows), pairs, [*keys], len(keys), [*d.items()], len(d), 101 in keys

    compiled = bytejit.compile(f, backend="eager")
    for i in range(10):
        ours, theirs = ({100 + i * 7 + k: torch.full((3,), float(i + k)) for k in range(2)} for _ in range(2))
        torch.testing.assert_close(compiled(torch.ones(3), ours), f(torch.ones(3), theirs))
        assert list(ours) == list(theirs)


def weighted(x, d):
    out = x
    for k, v in d.items():
        out = out + v * k
    return out, [d[k] * 2 for k in d], sum(d.values()), {n: k for n, k in enumerate(d)}


def held(x, d):
    rest = iter(d.items())
    return x + next(rest)[1], rest


def written(x, d):
    for k, v in d.items():
        d[k] = v * k + x
        if k % 2 == 0:
            break
    return x + 1


def grown(x, d):
    try:
        for k, v in d.items():
            d[k + 50] = v * k
    except RuntimeError as e:
        return x + 1, str(e)


def emptied(x, d):
    out = []
    for k in d:
        out.append(d[k] * 2)
        if k % 3 == 0:
            d.pop(k)
            break
    return x, out


@pytest.mark.parametrize(("f", "most"), [(weighted, 2), (held, 2), (written, 20), (grown, 20), (emptied, 20)])
def test_going_through_a_dict_whose_keys_change(f, most):
    """One after the other, also where the loop writes the dict"""
    compiled = bytejit.compile(f, backend="eager")
    bytejit.reset()
    for i in range(8):
        ours, theirs = ({10 + i * 7 + k: torch.full((3,), float(i + k)) for k in range(3)} for _ in range(2))
        found, wanted = compiled(torch.ones(3), ours), f(torch.ones(3), theirs)
        if f is held:
            found, wanted = (found[0], type(found[1]), [*found[1]]), (wanted[0], type(wanted[1]), [*wanted[1]])
        assert str(found) == str(wanted) and str(ours) == str(theirs)
    assert bytejit.counters.total("graphs") <= most, bytejit.counters


def one_hook(net, x):
    hook = net[0].register_forward_hook(lambda m, a, out: out * 2)
    y = net(x)
    hook.remove()
    return y, net(x)


def hooks_of_all(net, x):
    seen = {}
    hooks = [m.register_forward_hook(lambda m, a, out, n=n: seen.__setitem__(n, out)) for n, m in net.named_children()]
    try:
        y = net(x)
    finally:
        for hook in hooks:
            hook.remove()
    return y, seen, [len(m._forward_hooks) for m in net]


def two_of_one_layer(net, x):
    first = net[0].register_forward_hook(lambda m, a, out: out * 2)
    last = net[0].register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    second = net[0].register_forward_hook(lambda m, a, out: out - 3)
    y = net(x)
    first.remove()
    z = net(x)
    first.remove()
    second.remove()
    last.remove()
    third = net[0].register_forward_hook(lambda m, a, out: out + 5)
    return y, z, net(x), third.id in net[0]._forward_hooks, third.remove(), len([*net[0]._forward_hooks.values()])


def left_on(net, x):
    net[2].register_forward_hook(lambda m, a, out: out + 1)
    return net(x), len(net[2]._forward_hooks)


@pytest.mark.parametrize(("f", "most"), [(one_hook, 2), (hooks_of_all, 2), (two_of_one_layer, 2), (left_on, 8)])
@pytest.mark.parametrize("other", [False, True])
def test_hooks_put_on_and_removed_within(f, most, other):
    """Hooks that the function itself puts on, beside others; nothing of them is left"""
    seen = []
    for _ in range(3):  # the first numbers of all, 0 and 1, stay constants
        nn.Identity().register_forward_hook(print).remove()
    for compile in (lambda f: f, lambda f: bytejit.compile(f, backend="eager")):
        bytejit.reset()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        if other:
            net[0].register_forward_hook(lambda m, a, out: out * 3)
        g, log = compile(lambda x: f(net, x)), []
        for i in range(8):
            log.append([str(g(torch.arange(3.0) + i)), [len(m._forward_hooks) for m in net]])
        seen.append(log)
    assert seen[0] == seen[1]
    assert bytejit.counters.total("graphs") <= most and not (bytejit.counters["breaks"] and most == 2), bytejit.counters


def test_taking_back_what_was_put_there():
    """Under keys that change: an item of before stays away"""

    def f(x, d, k):
        d[k] = x
        found = [k in d, len(d), [*d.values()]]
        del d[k]
        d[k + 1] = x * 2
        return found, k in d, len(d), sum(d.values())

    compiled = bytejit.compile(f, backend="eager")
    for i in (3, 4, 9, 5, 20, 21, 4, 7, 30, 8):
        ours, theirs = ({n: torch.full((3,), float(n)) for n in (4, 5, 20)} for _ in range(2))
        assert str(compiled(torch.ones(3), ours, i)) == str(f(torch.ones(3), theirs, i)) and str(ours) == str(theirs)


LISTED = {
    "index": lambda x, ids: x[ids] * 2,
    "indices": lambda x, ids: x[ids, ..., [0, len(ids)]] + x[:, ids].sum(),
    "made in the region": lambda x, ids: x[[ids[0], 0, -ids[1]]],
    "written": lambda x, ids: x.index_fill(0, torch.tensor(ids), 0.5) + torch.as_tensor(ids).sum(),
    "twice": lambda x, ids: (torch.tensor(ids).add_(1), torch.tensor(ids), torch.tensor(ids, dtype=torch.float64)),
    "appended": lambda x, ids: (ids.append(2), x[ids], torch.tensor(ids)),
    "halves": lambda x, ids: torch.tensor([i / 2 for i in ids]) + x[0, 0],
}


@pytest.mark.parametrize("name", LISTED)
def test_lists_of_numbers_that_change(name):
    """As indices and as tensors: other numbers and other lengths, one that is too large, floats, none"""
    f, x = LISTED[name], torch.rand(40, 40)
    compiled = bytejit.compile(f, backend="eager")
    lists = [
        [3, 4],
        [5, 6],
        [7, 9],
        [2, 30],
        [4, 5, 6],
        [7, 8, 9, 10],
        [8, 3, 2, 1, 12],
        [5, 39],
        [4, 45],
        [1.5, 2],
        [],
        [2**70, 1],
    ]
    for i, ids in enumerate(lists):
        found = []
        for g in (f, compiled):
            given = list(ids)
            try:
                found.append((str(g(x, given)), str(given)))
            except Exception as e:
                found.append((type(e), str(e), str(given)))
        assert found[0] == found[1]
        if i == 3 and name not in ("appended", "halves"):
            assert bytejit.counters.total("recompiles") <= 1
    bytejit.counters.clear()


@program(F(3), Turn(*KEYS, 99, -20), calls=14)
def test_tables_in_the_code():
    """Numbers that the code itself names, some places out of range"""

    def f(x, k):
        try:
            return x * (1.5, 2.5, 3.0, 5.0, 7.5, 1.5, 2.25, 3.5, 4.5, 5.5, 6.5, 8.5, 9.5, 3.25)[k], [i * i for i in range(14)][-k]
        except IndexError as e:
            return x, str(e)

    return f


@program(F(3), Turn(*KEYS, 0, 1, -1, 63, 70), calls=17)
def test_powers_of_two():
    """Shifts by, and powers with, a number that changes"""

    def f(x, k):
        try:
            return x * 2**k + (1 << k) % 1000, 1000 >> k, k << k, -k >> k, x.new_ones(2 ** (k % 5)).sum()
        except ValueError as e:
            return x, str(e), 2**k

    return f


@program(F(3), Turn(*KEYS), calls=12, total=2)
def test_counting_from_a_number():
    """enumerate from a number that changes, and one that is returned"""

    def f(x, k):
        left = enumerate("abc", k)
        found = [v * i for i, v in enumerate([x, x + 1], k)], next(left)[0], [i for i, _ in left]
        return found, x * (2, *range(20))[k] * 2**k, k << 2 & ~3

    return f


def test_going_through_a_dict_whose_names_change():
    """Texts as keys"""

    def f(x, d):
        found = [(f"<{k}>", v * 2 if k.startswith("a") else v - x) for k, v in d.items()]
        return found, sum(d.values()), len(d), [d[k] for k in d]

    bytejit.reset()
    compiled = bytejit.compile(f, backend="eager")
    for i in range(8):
        d = {f"{name}{i}": torch.full((3,), float(i)) for name in "abc"}
        assert str(compiled(torch.ones(3), d)) == str(f(torch.ones(3), d))
    assert bytejit.counters.total("graphs") <= 2, bytejit.counters


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, lambda: [0] * 3, lambda: collections.deque([0] * 3)])
def test_all_items_behind_writes_under_changing_keys(kind):
    """What was written under keys that differ in each call is there for who asks for all items"""

    def build():
        table = kind()

        def f(x, n):
            before = [*table] if isinstance(table, dict) else len(table)
            if n % 4 != 1:
                table[n % 3] = x * n
            table[n % 2] = n
            return before, sum(table.values() if isinstance(table, dict) else table), [*table], len(table)

        return f, table

    (f, ours), (g, plain) = build(), build()
    compiled = bytejit.compile(f, backend="eager")
    for n in (0, 1, 2, 3, 4, 5, 6, 7, 300):
        x = torch.full((2,), float(n))
        assert str(compiled(x, n)) == str(g(x, n)) and str(ours) == str(plain)
