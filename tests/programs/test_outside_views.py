"""Views of dicts that come from outside: `names = table.keys()`."""

from __future__ import annotations

import collections

import pytest
import torch

import bytejit

X = torch.linspace(-1, 1, 4)


def compiled(f):
    return bytejit.compile(f, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, lambda d: collections.defaultdict(int, d)])
def test_views_are_gone_through_in_the_graph(kind):
    table = kind({"a": 1, "bb": 2})
    keys, values, items = table.keys(), table.values(), table.items()

    def f(x):
        for name in keys:
            x = x + len(name)
        for value in values:
            x = x * value
        for name, value in items:
            x = x - value * len(name)
        first, *_ = reversed(keys)
        return x * ("a" in keys) + (2 in values) + (("a", 1) in items) + len(keys), first, list(items), sorted(values), type(keys)

    c = compiled(f)
    assert repr(c(X)) == repr(f(X))
    n = bytejit.counters.total("graphs")
    assert repr(c(X)) == repr(f(X)) and bytejit.counters.total("graphs") == n
    table["ccc"] = 3  # the view looks at the dict as it is
    assert repr(c(X)) == repr(f(X))
    del table["a"]
    assert repr(c(X)) == repr(f(X))


def test_what_the_function_writes_shows_in_the_view():
    def f(x, table, keys):
        table["new"] = x * 2
        return [*keys], keys, x + len(keys)

    one, two = {"a": 1}, {"a": 1}
    got, want = compiled(f)(X, one, view := one.keys()), f(X, two, two.keys())
    assert got[0] == want[0] == ["a", "new"] and got[1] is view and torch.equal(got[2], want[2])
    assert torch.equal(one["new"], two["new"])


def test_views_of_tensors_as_arguments():
    def f(x, keys, values):
        return x + sum(values) * len(list(keys))

    c = compiled(f)
    for n in (2, 3):
        weights = {str(i): torch.full((4,), float(i)) for i in range(n)}
        assert torch.equal(c(X, weights.keys(), weights.values()), f(X, weights.keys(), weights.values()))


def test_operators_of_sets():
    keys, items = {"a": 1, "b": 2}.keys(), {"a": 1}.items()
    given = {"a", "z"}

    def f(x):
        mine, other = set(given), frozenset(given)
        also = mine
        mine &= keys
        return x + len(keys & {"a"}), [
            sorted(keys | {"z"}), keys - {"a"}, sorted(keys ^ given), keys & keys, items & {("a", 1)}, sorted(mine), sorted(also),
            type(other & keys), type(keys & other), keys == {"a", "b"}, keys <= {"a", "b", "c"}, keys.isdisjoint({"q"}),
        ]  # fmt: skip

    got, want = compiled(f)(X), f(X)
    assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_values_take_no_part_in_them():
    values = {"a": 1}.values()

    def f(x):
        try:
            return x, values & {1}
        except TypeError as e:
            return x + 1, str(e)

    got, want = bytejit.compile(f, backend="aot_eager")(X), f(X)
    assert torch.equal(got[0], want[0]) and got[1] == want[1]
    assert (bytejit.compile(lambda x: (x, values == {1}, values == values))(X))[1:] == (False, True)


def test_a_view_of_a_class_with_methods_of_its_own():
    class Counts(dict):
        def __missing__(self, key):
            return 7

    table = Counts(a=1)
    keys, values = table.keys(), table.values()

    def f(x):
        return x + len(list(keys)) + sum(values)

    assert torch.equal(bytejit.compile(f, backend="aot_eager")(X), f(X))
