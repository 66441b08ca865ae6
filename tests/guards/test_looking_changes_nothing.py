"""Guards look at the program's objects and change none: a dict that makes what is missing is looked at without that."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import bytejit


class Missing(dict):
    def __missing__(self, key: object) -> dict:
        return self.setdefault(key, {})


class Ordered(OrderedDict):
    def __missing__(self, key: object) -> dict:
        return self.setdefault(key, {})


class Counting(defaultdict):
    reads = 0

    def __getitem__(self, key: object) -> dict:
        Counting.reads += 1
        return super().__getitem__(key)


class Averages:
    def __init__(self, table: Callable, keys: list) -> None:
        self.keys, self.table = keys, table()

    def add(self, x: torch.Tensor) -> None:
        for key in self.keys:
            state = self.table[key]
            if len(state) == 0:
                state["n"], state["sum"] = 0, torch.zeros(2)
            state["n"] += 1
            state["sum"] = state["sum"] + x


def tables(table: Callable, text: bool, compiled: bool) -> list:
    """Two objects by turns, whose tables have keys of their own."""
    Counting.reads = 0
    two = [Averages(table, [f"{name}{k}" if text else nn.Parameter(torch.ones(k + 1)) for k in range(2)]) for name in "ab"]
    add = bytejit.compile(Averages.add) if compiled else Averages.add
    found = []
    for which in (0, 0, 1, 1, 0, 1):
        one = two[which]
        add(one, torch.ones(2))
        values = [(s.get("n"), s.get("sum")) for s in one.table.values()]
        found.append((len(one.table), all(k is key or text and k == key for k, key in zip(one.table, one.keys)), values))
    return [*found, Counting.reads]


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("table", [lambda: defaultdict(dict), Missing, Ordered, lambda: Counting(dict)])
def test_tables_that_make_what_is_missing(table: Callable, text: bool) -> None:
    torch.testing.assert_close(tables(table, text, True), tables(table, text, False))


@pytest.mark.parametrize("kind", [optim.Adam, optim.RMSprop, optim.Adagrad])
def test_states_of_two_optimizers(kind: type) -> None:
    """The first has stepped twice before the second steps once: its state holds its own parameters."""
    nets = [nn.Linear(3, 3), nn.Linear(3, 3)]
    opts = [kind(net.parameters(), lr=0.1) for net in nets]
    for opt in opts:
        opt.step = bytejit.compile(opt.step)
    for which in (0, 0, 1):
        nets[which](torch.ones(2, 3)).sum().backward()
        opts[which].step()
    assert [set(opt.state) for opt in opts] == [set(net.parameters()) for net in nets]
    assert [len(opt.state_dict()["state"]) for opt in opts] == [2, 2]
