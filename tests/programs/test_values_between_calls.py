"""One function for each question about a value, compiled once, meets values of all kinds in turn, and says what eager says."""

from __future__ import annotations

import collections
import copy
import re
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import bytejit

Pair = collections.namedtuple("Pair", "a b")
Other = collections.namedtuple("Other", "b a")


class Words(list):
    pass


class Known(dict):
    def __missing__(self, key):
        return 9


def plain() -> None:
    pass


SEQUENCES: list[Any] = [[], [1], [True], [2, 1], (1, 2), collections.deque([1, 2]), collections.deque([1, 2], maxlen=2)]
SEQUENCES += [
    range(1, 3),
    Words([1, 2]),
    "ab",
    b"ab",
    {1, 2},
    frozenset({1, 2}),
    {0, 8},
    {8, 0},
    frozenset({8, 0}),
    frozenset({0, 8}),
]
SEQUENCES += [Pair(1, 2), Other(1, 2), torch.Size([1, 2]), [-0.0], [0.0]]
MAPPINGS: list[Any] = [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {True: "a"}, collections.OrderedDict(b=2, a=1)]
MAPPINGS += [collections.defaultdict(int, a=1), collections.Counter("aab"), collections.Counter("baa"), Known(a=[1])]
MAPPINGS += [types.MappingProxyType({"a": 1}), collections.ChainMap({"a": 1}), collections.defaultdict(list, a=[1])]
OBJECTS: list[Any] = [re.match("a(.)", "ab"), re.match("a(.)", "ac"), re.compile("a"), re.compile("b"), weakref.ref(plain), plain]
OF_ALL = ["type(v).__name__", "bool(v)", "repr(v)", "hash(v)", "getattr(v, 'maxlen', 7)", "copy.copy(v)", "isinstance(v, dict)"]
OF_CONTAINERS = [*OF_ALL, "list(v)", "f'{v}'", "sorted(v)", "tuple(v)", "copy.deepcopy(v)", "v == {'a': 1}", "len(v)"]
OF_SEQUENCES = [*OF_CONTAINERS, "v * 2", "v + v", "v[:1]", "bytes(v)", "v[0]", "1 in v", "v == (1, 2)", "getattr(v, 'a', 5)"]
OF_MAPPINGS = [*OF_CONTAINERS, "v.get('a')", "v['a']", "v['z']", "list(v.items())", "dict(v)", "getattr(v, 'default_factory', 5)"]
OF_OBJECTS = [*OF_ALL, "v.group(1)", "v.span()", "v.pattern", "v(3)", "v()", "v.__name__"]


def shown(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        return re.sub("0x[0-9a-f]+", "", str(value))
    if isinstance(value, (dict, types.MappingProxyType)):
        return type(value), [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return type(value), list(map(shown, value))
    return type(value), repr(value)


def said(f: Callable, v: Any) -> Any:
    try:
        return shown(f(torch.ones(1), v)[1])
    except Exception as e:
        return type(e), str(e)


CASES = [
    (text, values)
    for texts, values in ((OF_SEQUENCES, SEQUENCES), (OF_MAPPINGS, MAPPINGS), (OF_OBJECTS, OBJECTS))
    for text in texts
]


@pytest.mark.parametrize(("text", "values"), CASES, ids=[f"{text} of {len(values)}" for text, values in CASES])
def test_a_question_about_values_of_all_kinds(text: str, values: Sequence) -> None:
    asked = eval(f"lambda x, v: (x + 1, {text})", {"copy": copy})
    compiled = bytejit.compile(asked, backend="eager", options={"recompile_limit": 60})
    for v in (*values, *reversed(values)):
        assert said(compiled, v) == said(asked, v), v
