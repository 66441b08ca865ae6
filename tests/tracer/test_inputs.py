"""The placeholders of a graph: their names, and what many of them cost"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import bytejit
from bytejit.guards.source import Source
from bytejit.tracer.torch.tensor_inputs import TensorInputs


def graphs_of(fn: Any, *args: Any) -> list[torch.fx.GraphModule]:
    found = []

    def keep(gm: torch.fx.GraphModule, example_inputs: list) -> Any:
        found.append(gm)
        return gm.forward

    want, got = fn(*args), bytejit.compile(fn, backend=keep, fullgraph=True)(*args)
    assert torch.equal(got, want)
    return found


def test_sources_that_are_one_identifier_have_names_of_their_own() -> None:
    def weighted(d: dict, d__a: torch.Tensor) -> torch.Tensor:
        return 2 * d["a+"] + 3 * d["a-"] + 5 * d["a_1"] + 7 * d["0"] + 11 * d__a + 13 * d["self"]

    d = {key: torch.tensor(float(i)) for i, key in enumerate(("a+", "a-", "a_1", "0", "self"))}
    (gm,) = graphs_of(weighted, d, torch.tensor(0.5))
    given = [n for n in gm.graph.nodes if n.op == "placeholder"]
    assert len({n.target for n in given}) == 6 and all(n.name == n.target and n.name.isidentifier() for n in given)


def test_naming_an_input_costs_the_same_beside_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    name, spent = TensorInputs.placeholder_name, [0.0]

    def timed(self: TensorInputs, source: Source) -> str:
        start = time.thread_time()
        try:
            return name(self, source)
        finally:
            spent[0] += time.thread_time() - start

    def total(d: dict) -> Any:
        s = torch.zeros(2)
        for v in d.values():
            s = s + v
        return s

    def seconds(n: int) -> float:
        bytejit.reset()
        spent[0] = 0.0
        graphs_of(total, {f"k{i}": torch.ones(2) for i in range(n)})
        return spent[0]

    monkeypatch.setattr(TensorInputs, "placeholder_name", timed)
    seconds(10)
    assert seconds(1200) < 20 * seconds(200)  # 6 times as many; 40 where all the others are looked at
