"""Functions of the standard library whose C parts a trace cannot see into."""

from __future__ import annotations

import collections
import functools
import graphlib
import heapq
import json
import logging
import math
import re
import string
import struct

import torch

from .harness import F, case, program


@case(F(4), graphs=1)
def test_json(x):
    """json.dumps and json.loads of what is known while tracing"""
    data = {"z": 1, "a": [x.shape[0], None, 2.5, True, "é"], "t": (1,)}
    made = json.loads(json.dumps(data, sort_keys=True, separators=(",", ":")))
    made["new"] = x * made["a"][0]
    return made, json.dumps(data, indent=1, ensure_ascii=False)


@case(F(4), breaks=True)
def test_json_refuses(x):
    """json raises: the exception is its own"""
    seen, inside = [], []
    inside.append(inside)
    for work in (lambda: json.loads("{"), lambda: json.dumps({1: x}), lambda: json.dumps(inside), lambda: json.dumps({(1,): 2})):
        try:
            work()
        except (ValueError, TypeError) as e:
            seen.append((type(e).__name__, str(e), getattr(e, "pos", None)))
    return x + 1, seen


@case(F(4), breaks=True)
def test_json_of_own_classes(x):
    """json.dumps with an encoder of the program"""

    class Encoder(json.JSONEncoder):
        def default(self, o):
            return sorted(o)

    return x + 1, json.dumps({2, 1}, cls=Encoder), json.dumps([{3}], default=list)


@case(F(4), graphs=1)
def test_next_as_a_method(x):
    """iter(x).__next__ bound to a name"""
    step, pairs = iter([x, x + 1]).__next__, {"a": x * 2}.items()
    found = [step(), step(), iter(pairs).__next__()[1], enumerate("ab").__next__(), zip([1], [2]).__next__()]
    try:
        step()
    except StopIteration as e:
        return found, e.value, list(heapq.merge([1, 4], [2, 3]))


@case(F(4), breaks=True)
def test_next_as_a_method_over_a_break(x):
    """iter(x).__next__ kept over a graph break"""
    step = iter([x, x + 1, x + 2]).__next__
    first = step() * 2
    print("between")
    return first, step() * 3, list(graphlib.TopologicalSorter({"b": {"a"}, "c": {"b"}}).static_order())


@case(F(4), graphs=1)
def test_mro_as_a_method(x):
    """type.mro"""

    class A:
        pass

    class B(A):
        pass

    return x + len(B.mro()), [c.__name__ for c in B.mro()], bool.mro()


logging.getLogger("tests.a logger")


@case(F(4), graphs=1)
def test_get_logger(x):
    """logging.getLogger of a logger that exists"""
    log = logging.getLogger("tests.a logger")
    log.debug("not shown: %s", x)
    return x + 1, log.name, log is logging.getLogger("tests.a logger")


class Both:
    """A sequence and a number."""

    def __init__(self, items):
        self.items = items

    def __getitem__(self, i):
        return self.items[i]

    def __len__(self):
        return len(self.items)

    def __index__(self):
        return 1


@case(F(4, 4), breaks=True)
def test_index_that_is_a_sequence_too(x):
    """A tensor indexed by an object that torch takes for a sequence"""
    y = x * 2
    return y[Both([slice(0, 2), 0])]


@program(F(4))
def test_singledispatch_that_grows():
    """functools.singledispatch: functions registered between the calls, and between graphs"""

    def f(x):
        @functools.singledispatch
        def kind(v):
            return 0

        @kind.register
        def _(v: int):
            return v + 1

        @kind.register(list)
        def _(v):
            return [kind(a) for a in v]

        return x * kind(3), kind([1, 2.5])

    return f


@case(F(4), graphs=1)
def test_iterators_of_library_calls(x):
    """re.finditer, Pattern.finditer, struct.iter_unpack, `__iter__` called by name: each call has its own"""
    digits = re.compile(r"\d")
    found = [int(m[0]) for m in re.finditer(r"\d", "a1b2")] + [m.start() for m in digits.finditer("12")]
    pairs = struct.iter_unpack("<H", b"\1\0\2\0")
    (first,) = next(pairs)
    return x * first + sum(a for (a,) in pairs), found, list("ab".__iter__()), sum(range(3).__reversed__())


@case(F(4), breaks=True)
def test_iterators_of_library_calls_that_leave(x):
    """re.finditer that stands in its middle: over a graph break, and returned"""
    steps, kept = re.finditer(r"\d", "a1b2c3"), re.finditer("a", "a")
    first = next(steps).group()
    print(first)
    return x + 1, [m.group() for m in steps], type(steps).__name__, [m.span() for m in kept], [*iter("ab")], [*iter(b"ab")]


@case(F(4), breaks=True)
def test_scanner(x):
    """Pattern.scanner, whose calls go on from one another"""
    steps = re.compile(r"\d").scanner("a1b2")
    return x + int(steps.search().group()), steps.search().group()


@case(F(4), graphs=1)
def test_substitutions(x):
    """re.sub with functions made in the region, empty matches, bytes, None; string.Template"""
    n = x.shape[0]
    made = string.Template("$a b ${c} $$").substitute(a="qq", c=n)
    empty = re.sub("x*", lambda m: "-", "abxd"), re.subn("x*", lambda m: f"{m.start()}{n}", "abxd")
    return (
        x * n,
        made,
        empty,
        re.sub(b"x", lambda m: b"yy", b"axa"),
        re.sub("x", lambda m: None, "axx"),
        re.sub("(x)", r"\1\1", "ax"),
    )


@case(F(4), graphs=1)
def test_a_substitution_that_is_no_text(x):
    """re.sub with a function that gives a number: in re's words"""
    try:
        return x, re.sub("x", lambda m: 3, "axx")
    except TypeError as e:
        return x + 1, str(e)


@case(F(3, 4), graphs=1)
def test_products(x):
    """math.prod of a generator, of sizes, of tensors, of nothing; what it refuses"""
    found = [
        math.prod(n for n in x.shape),
        math.prod([]),
        math.prod((2, 3.5), start=4),
        math.prod(map(int, "23")),
        math.prod([True]),
    ]
    for refused in (3, ["a", None]):
        try:
            math.prod(refused)
        except TypeError as e:
            found.append(str(e))
    return x.reshape(math.prod(x.shape[:1]), -1) * math.prod([x.mean(), 2.0]), found


@case(F(3), graphs=1)
def test_tensors_of_deques(x):
    """returns summed from the end, as programs that learn by rewards write it"""
    returns, total = collections.deque(), 0.0
    for reward in (1.0, 0.5, 2.0):
        total = reward + 0.9 * total
        returns.appendleft(total)
    nested = torch.tensor([collections.deque([1]), (2,)])
    return (
        torch.tensor(returns) * x,
        torch.as_tensor(collections.deque([1, 2], maxlen=3)),
        nested,
        torch.stack([*returns, x.sum()][3:]),
    )
