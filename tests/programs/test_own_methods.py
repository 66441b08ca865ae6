"""Subclasses of built-in types with special methods of their own: every use that may ask a method, or may not, as in eager.

The programs are the product of the types, the methods and the uses that could ask the method. Each notes in LOG what was
asked, in order, so that a method skipped, asked twice or asked while tracing shows.
"""

import collections
import enum
import math
import operator

import pytest
import torch

from . import targets

LOG: list[str] = []
OF_PROGRAMS = collections, enum, math, operator  # what the texts below name
TYPES = {
    "int": "3",
    "float": "2.5",
    "str": "'ab'",
    "complex": "1 + 2j",
    "list": "[1, 2]",
    "tuple": "[1, 2]",
    "dict": "{1: 5, 2: 6}",
    "frozenset": "[1, 2]",
    "collections.OrderedDict": "{1: 5, 2: 6}",
    "collections.Counter": "{1: 5, 2: 6}",
    "enum.IntEnum": "",
    "object": "",
}
# the method, what it returns, and uses that Python answers by it for some of the types
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "": (
        "",
        ("list(v)", "[3] + v", "v[1]", "2.5 * v", "float(v)", "range(v)", "[v] * 2 == [v, v]", "v < 'a'", "{3} & v", "[*v]"),
    ),
    "__float__": ("7.5", ("x * float(v)", "math.sqrt(v)", "'%.1f' % (v,)", "complex(v)", "torch.add(x, v)")),
    "__int__": ("7", ("int(v)", "'%d' % v", "x + int(v)", "float(v)")),
    "__index__": ("1", ("[10, 20, 30][v:]", "range(v)", "'a' * v", "operator.index(v)", "int(v)", "float(v)", "math.gcd(v, 6)")),
    "__bool__": ("False", ("x * bool(v)", "1 if v else 2", "v and 5", "any([v])")),
    "__len__": ("5", ("len(v)", "bool(v)", "x * len(v)", "[*v]")),
    "__iter__": ("iter([8, 9])", ("list(v)", "{*v}", "set(v)", "9 in v", "max(v)", "{1} | v", "dict.fromkeys(v)", "star(*v)")),
    "__contains__": ("True", ("9 in v", "operator.contains(v, 0)")),
    "__getitem__": (
        "44 if a[0] < 3 else LOG[99]",
        ("v[0]", "next(iter(v))", "torch.tensor(v)", "{**v}", "'%s' % v", "9 in v", "matched(v)"),
    ),
    "__eq__": ("0", ("v == 3", "3 == v", "x == v", "v in [3, v]", "(3,) == (v,)", "[3, 2.5, v].count(v)", "{v: 1}")),
    "__lt__": ("2", ("v < 3", "3 > v", "2.5 > v", "x > v", "sorted([v, v])", "torch.where(x > v, x, 0)", "min(v, v)")),
    "__hash__": ("77", ("hash(v)", "{v: 1} and 0", "v in {3, 2.5}", "hash((v,))", "len({v, 3})")),
    "__str__": ("'S!'", ("str(v)", "f'{v}'", "'%s' % (v,)", "'{:>4}'.format(v)", "print(v)", "', '.join([v])")),
    "__repr__": ("'R!'", ("repr(v)", "f'{v}'", "repr([v, {1: v}])", "'%r' % (v,)", "super(C, v).__repr__() and 0")),
    "__format__": ("'F!' + a[0]", ("f'{v:>4}'", "'{}'.format(v)", "format(v)")),
    "__add__": ("100", ("v + 2", "v + x", "x + v", "sum([v, 1])", "[3] + v", "grown([3], v)", "grown(v, [2])")),
    "__radd__": ("200", ("2 + v", "2.5 + v", "x + v", "[3] + v", "grown([3], v)", "sum([v], 0.5)", "v + 1")),
    "__rmul__": ("202", ("2 * v", "2.5 * v", "x * v", "(1,) * v", "math.prod([v, 2])")),
    "__ror__": ("208", ("{3} | v", "{3: 4} | v", "grown({3}, v)", "{1: 2}.keys() | v")),
    "__mod__": ("105", ("v % 2", "v % x", "'%s' % v", "7 % v")),
    "__abs__": ("11", ("x * abs(v)", "operator.abs(v)")),
    "__ceil__": ("15", ("math.ceil(v)", "round(v)")),
    "__length_hint__": ("3", ("list(v)", "operator.length_hint(v)")),
    "keys": ("[1]", ("dict(v)", "{**v}", "named(**v)", "collections.OrderedDict(v)", "merged(v)")),
}


def grown(left, right):
    """Whether an operator in place goes on with the same object, and what it gives."""
    was = left
    if isinstance(left, list):
        left += right
    else:
        left |= right
    return left is was, left, was


def matched(v):
    match v:
        case {1: found}:
            return found


def merged(v):
    d = {}
    d.update(v)
    return d


def star(*args):
    return args


def named(**kwargs):
    return kwargs


def space_of(base: str, method: str) -> dict:
    """A class that has one method of its own, its instance V, and a program that uses it in many ways."""
    returned, uses = METHODS[method]
    body = f"    def {method}(self, *a):\n        LOG.append('{method}')\n        return {returned}\n" if method else ""
    made = "C.A" if base == "enum.IntEnum" else f"C({TYPES[base]})"
    member = "    A = 3\n" if base == "enum.IntEnum" else "    pass\n"
    lines = "".join(
        f"    try:\n        r.append({use})\n    except Exception as e:\n        r.append((type(e).__name__, str(e)))\n"
        for use in uses
    )
    program = f"def make():\n    return {made}\ndef program(x, v):\n    r = []\n{lines}    return r, x + 1\n"
    space = dict(globals())
    exec(compile(f"class C({base}):\n{member}{body}{program}", "<own methods>", "exec"), space)
    return space


def shown(r: object) -> object:
    """A result past the methods of its class."""
    if isinstance(r, torch.Tensor):
        return r.dtype, r.tolist()
    kind = next((k for k in (int, float, str, complex, dict) if isinstance(r, k)), None)
    if isinstance(r, (list, tuple)):
        return type(r).__name__, [shown(e) for e in (list if isinstance(r, list) else tuple).__iter__(r)]
    if isinstance(r, (set, frozenset)):
        return type(r).__name__, sorted(repr(shown(e)) for e in (set if isinstance(r, set) else frozenset).__iter__(r))
    text = kind.__repr__(r) if kind is not None else object.__repr__(r)
    return type(r).__name__, text.partition(" at 0x")[0]


@pytest.mark.parametrize("base", TYPES)
def test_as_eager(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What each use gives, raises and prints, and which methods it asks, made outside"""
    for method in METHODS:
        targets.reset()
        found = []
        for compiles in (False, True):
            space = space_of(base, method)
            f = targets.compiled(space["program"], targets.Counter()) if compiles else space["program"]
            for n in range(2):
                LOG.clear()
                results, _ = f(torch.arange(3.0) + n, space["make"]())
                asked = list(LOG)
                found.append((list(map(shown, results)), asked, capsys.readouterr().out))
        for want, got in zip(found[:2], found[2:]):
            for use, a, b in zip(METHODS[method][1], want[0], got[0]):
                assert a == b or "<C object" in str(a), f"{method} of a {base}: {use}: {b}, {a} in eager"
            assert want[1:] == got[1:] or base == "object", f"{method} of a {base}: {got[1:]}, {want[1:]} in eager"


RIGHT = {list: "[3, 1]", dict: "{1: 2}", set: "{1, 2}", torch.Size: "torch.Size([1, 2])"}


@pytest.mark.parametrize("cls", RIGHT)
def test_methods_of_built_in_types(cls: type) -> None:
    """Each method of a built-in type called through the type: on what is no instance, and with arguments that it refuses"""
    name = "torch.Size" if cls is torch.Size else cls.__name__
    methods = [
        n
        for n, v in vars(cls).items()
        if type(v) in (type(list.append), type(list.__len__)) and n not in ("__new__", "__getattribute__")
    ]
    for method in methods:
        calls = [f"{name}.{method}({args})" for args in ("5.0", f"{RIGHT[cls]}, key=3")]
        lines = "".join(
            f"    try:\n        r.append({call})\n    except Exception as e:\n        r.append(str(e))\n" for call in calls
        )
        targets.reset()
        space = dict(globals())
        exec(compile(f"def program(x):\n    r = []\n    y = x + 1\n{lines}    return r, y", "<methods>", "exec"), space)
        want, got = (f(torch.ones(2))[0] for f in (space["program"], targets.compiled(space["program"], targets.Counter())))
        assert list(map(repr, want)) == list(map(repr, got)), f"{name}.{method}: {got}, {want} in eager"


class EqualText(str):
    """Compared by code of its own, hashed as text is."""

    def __eq__(self, other):
        LOG.append("__eq__")
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class HashedRow(tuple):
    """Hashed by code of its own, compared as tuples are."""

    def __hash__(self):
        LOG.append("__hash__")
        return 9


KEYS = (
    "len({a: 1, b: 2, a: 3})",
    "a in {b}, {a} & {b} == {a}, len({a} | {b})",
    "{(a, 1): 2}.get((b, 1))",
    "[d.update({a: 1}), len(d), {**d}.get(b)]",
    "[d.pop(a), len(d)]",
    "collections.Counter([a, b, a])[a]",
)


@pytest.mark.parametrize("cls", [EqualText, HashedRow])
def test_keys(cls: type) -> None:
    """Keys whose comparison, or hash, is code of the program with effects: in dicts from outside and made inside"""
    for use in KEYS:
        targets.reset()
        space = dict(globals())
        exec(compile(f"def program(x, a, b, d):\n    y = x + 1\n    return ({use}), y * 2", "<keys>", "exec"), space)
        found = []
        for f in (space["program"], targets.compiled(space["program"], targets.Counter())):
            for n in range(2):
                a, b = cls("ab"), cls("ab")
                d = {a: 1, "z": 2}
                LOG.clear()
                result, _ = f(torch.ones(2) + n, a, b, d)
                found.append((repr(result), list(LOG)))
        assert found[:2] == found[2:], f"{use} with a {cls.__name__}"
