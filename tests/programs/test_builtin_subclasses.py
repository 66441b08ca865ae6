"""Subclasses of built-in types: made outside and inside, their operators, copies and texts."""

import collections
import copy
import types
import typing

import pytest
import torch

from . import targets
from .harness import F, Spec, case, check


class Items(list):
    """A list that counts what is appended."""

    def append(self, v):
        super().append(v)
        self.n = getattr(self, "n", 0) + 1

    def __getitem__(self, i):
        found = super().__getitem__(i)
        return Items(found) if isinstance(i, slice) else found


class Plain(list):
    pass


class Table(dict):
    pass


class Bag(set):
    pass


class Pair(tuple):
    pass


class Text(str):
    pass


class Ordered(collections.OrderedDict):
    pass


class Lists(collections.defaultdict):
    pass


class Tally(collections.Counter):
    pass


class Number(int):
    def __repr__(self):
        return f"Number({int(self)})"


class Said(Exception):
    def __repr__(self):
        return "Said(...)"


@case(F(4), Spec(lambda r: Items([1, 2])))
def test_in_place_operators(x, items):
    """`+=`, `|=` and the like on subclasses: the same object goes on"""
    first = items
    items.append(x)
    items += [4]
    table = Table(a=1)
    same = table
    table |= {"b": x}
    bag = Bag([1])
    old = bag
    bag |= {2}
    bag -= {1}
    return items[1:], items.n, items is first, table, table is same, bag, bag is old, x + 1


class Told(dict):
    """A dict whose entries are what its methods say."""

    def __getitem__(self, k):
        return [super().__getitem__(k)]

    def __missing__(self, k):
        return f"no {k}"

    def __iter__(self):
        return iter(("a", "z"))

    def keys(self):
        return ["z", "b"]


class Noted(collections.defaultdict):
    """A defaultdict that notes what is set in it."""

    def __missing__(self, k):
        found = super().__missing__(k)
        self["missed"] = k
        return found

    def __setitem__(self, k, v):
        super().__setitem__(k, (v, "set"))


class Kept(collections.OrderedDict):
    """An OrderedDict that writes down how often an entry was set."""

    def __setitem__(self, k, v):
        super().__setitem__(k, (v, len(self)))


OPERATIONS = {
    "[1] + o": Plain,
    "o + [1]": Plain,
    "o * 2": Plain,
    "o == [1, 2]": Plain,
    "[1, 2] == o": Plain,
    "o < [3]": Plain,
    "copy.copy(o)": Plain,
    "(1,) + o": Pair,
    "o + (1,)": Pair,
    "o == (1, 2)": Pair,
    "type(o)(o)": Bag,
    "len(o)": Bag,
    "o | {9}": Bag,
    "{9} | o": Bag,
    "o & {1}": Bag,
    "o == {1, 2}": Bag,
    "sorted(o)": Bag,
    "repr(o)": Bag,
    "o.union([5])": Bag,
}
DICTS = {
    "copy.copy(o)": (Table, Ordered, Lists, Tally, Kept, Noted),
    "o.copy()": (Table, Ordered, Lists, Tally, Kept, Noted),
    "o | {'z': 1}": (Table, Ordered, Lists, Tally, Kept, Noted),
    "o.setdefault('z', 1), o.update(a=3), o.update([('y', 4)]), o.__ior__({'x': 5})": (Kept, Noted, Told, Ordered),
    "{'z': 1} | o": (collections.OrderedDict, collections.defaultdict, Table),
    "o == {'a': 1, 'b': 2}": (Tally, Ordered),
    "{'a': 1, 'b': 2} == o": (Tally, Table),
    "o == collections.OrderedDict(b=2, a=1)": (Ordered, collections.OrderedDict),
    "o < {}": (Table, Ordered, collections.OrderedDict, Lists),
    "hash(o)": (collections.OrderedDict, collections.defaultdict),
    "type(o)(o)": (Table, Lists, collections.defaultdict),
    "o.default_factory": (Lists,),
    "o['z'], o['a'], o.get('z'), list(o.items())": (Told, Noted, Lists, Tally),
    "dict.__getitem__(o, 'z')": (Told, Noted, Table),
    "collections.defaultdict.__missing__(o, 'z')": (Noted, Lists, collections.defaultdict),
    "o.copy(), o | {'y': 1}, dict(o)": (Told,),
    "o <= collections.Counter(a=5, b=5)": (Tally,),
}
DEQUES = (
    "o + collections.deque([1])",
    "collections.deque([1]) + o",
    "o * 2",
    "hash(o)",
    "o.index(99)",
    "o.pop(0)",
    "o.remove(77)",
    "o.__iadd__([7, 8]) is o",
)
EACH = [
    *((e, c, "[1, 2]") for e, c in OPERATIONS.items()),
    *((e, c, "int, a=1, b=2" if issubclass(c, collections.defaultdict) else "a=1, b=2") for e, cs in DICTS.items() for c in cs),
    *((e, collections.deque, "[1, 2, 3], 3") for e in DEQUES),
    *((e, frozenset, "[1, 2]") for e in ("o <= {1, 2, 3}", "o < {1}", "o == {1, 2}", "{1, 2} != o")),
    ("'z' + o", Text, "'abc'"),
    ("o + 'z'", Text, "'abc'"),
    ("o == 'abc'", Text, "'abc'"),
    ("o % ()", Text, "'abc'"),
    ("o.format(1)", Text, "'abc'"),
    ("copy.copy(o)", Bag, "[1, 2]"),
    ("copy.copy(o), copy.deepcopy(o)", Items, "[1, 2]"),
    ("f'{o}{o!r:>5}'", Number, "4"),
    ("str(o), repr([o]), '%s' % o", Number, "4"),
    ("o + 1, -o, [0, 1, 2][o - 3]", Number, "4"),
]


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("expression, cls, args", EACH, ids=[f"{c.__name__}: {e}" for e, c, _ in EACH])
def test_operations(expression, cls, args, where):
    """Operators, comparisons, copies and texts of subclasses and of the kinds of dict and deque"""
    name = cls.__name__ if cls.__module__ != "collections" else f"collections.{cls.__name__}"
    given, made = ("x, o", "") if where == "outside" else ("x", f"    o = {name}({args})\n")
    text = (
        f"def program({given}):\n{made}    y = x * 2\n    try:\n        r = {expression}\n"
        "    except Exception as e:\n        r = type(e).__name__, str(e)\n    return y, r, o, y + 1\n"
    )
    space = dict(globals())
    exec(compile(text, "<operation>", "exec"), space)
    specs = [Spec(lambda r: eval(f"{name}({args})", space))] if where == "outside" else []
    check(space["program"], F(4), *specs, calls=2)


PARTS = ("{0.v} {0.t[1][q]:>3} {0[0]} {0[a]}", "{1[0].what!r} {2.shape} {2.dtype}", "{0.nope}", "{1[9]}", "{1[z]}", "{3}")


@case(F(4), graphs=1)
def test_parts_of_objects_in_texts(x):
    """Attributes and items of objects that a text asks for, whatever their names"""

    class Shown:
        t: typing.ClassVar = [0, {"q": 1}]

        def __init__(self, v):
            self.v, self.what = v, self

        def __getitem__(self, key):
            return f"<{key!r}>"

        def __repr__(self):
            return "{0.__class__.__name__}({0.v})".format(self)  # noqa: UP032

    shown, said = Shown(3), []
    for text in PARTS:
        try:
            said.append(text.format(shown, [shown], x))
        except (AttributeError, IndexError, TypeError) as e:
            said.append(str(e))
    return x + 1, said, "{k.v} {n}".format_map({"k": shown, "n": 2})


FORMAT = "{} {:>5} {k!r}"


@case(F(4), graphs=1)
def test_texts(x):
    """str() of exceptions and int subclasses with a repr of their own"""
    n = Number(3)
    old = "%d %s %r" % (n, n, Said(2))  # noqa: UP031
    return x + n, str(Said("k")), repr(Said("k")), f"{n}", f"{n:3}", str(n), old, FORMAT.format(n, 2, k=Said(1)), f"{Said(2)}"


@case(F(4), graphs=1)
def test_mapping_proxy_made_inside(x):
    """A mapping proxy made inside: read only, follows its dict, leaves"""
    d = {"k": x}
    m = types.MappingProxyType(d)
    try:
        m["q"] = 1
    except TypeError as e:
        words = str(e)
    d["later"] = x + 1
    return words, m["k"] * 2, list(m), {**m}, "later" in m, m | {"j": 1}, m, d, type(m).__name__, len(m), m.get("no", 3)


@case(F(4), Spec(lambda r: types.SimpleNamespace(a=2, t=r.f(4))), graphs=1)
def test_namespace_given(x, n):
    """A SimpleNamespace from outside: read, changed, its attributes listed"""
    n.b = x * n.a + n.t
    del n.a
    return n.b, vars(n), hasattr(n, "a"), getattr(n, "z", 3), list(n.__dict__), isinstance(n, types.SimpleNamespace)


@case(F(4), Spec(lambda r: Table(a=r.f(4))), graphs=1)
def test_shallow_copy_is_apart(x, d):
    """A shallow copy of a subclass's instance: changes of one are not seen in the other"""
    other = copy.copy(d)
    other["b"] = x
    d["c"] = 1
    return other, torch.stack([other["a"], x])


def test_values_nested_too_deep(capfd):
    """Values nested deeper than the compiler can follow: the original code runs, and nothing is said"""
    nested: list = []
    for _ in range(3000):
        nested = [nested]

    def program(x, items):
        try:
            return x + 1, len(copy.deepcopy(items))
        except RecursionError:
            return x + 2, None

    x = torch.ones(2)
    compiled = targets.compiled(program, targets.Counter("eager"))
    for _ in range(2):
        assert torch.equal(compiled(x, nested)[0], x + 2)
    assert "fault" not in capfd.readouterr().err
