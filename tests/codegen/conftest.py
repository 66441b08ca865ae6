"""Lets the tests of codegen import their helpers (graphs, interp) by name; fixtures of several of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many attentions of each compiled graph became our own, which is chosen wherever it is offered; nothing is timed."""
    import bytejit
    from bytejit.backends import cpu
    from bytejit.codegen.libraries import attention, pass_list
    from bytejit.codegen.libraries.choices import on_graph
    from bytejit.kernels.tune import Choice, Tuner

    class Own(Tuner):
        def choose(self, op: str, specs: Any, candidates: Any, *rest: Any, **sample: Any) -> Choice:
            names = [c.name for c in candidates]
            chosen = "attention_own" if "attention_own" in names else names[0]
            return Choice(chosen, (), {n: 1.0 if n == chosen else 9.0 for n in names}, {})

    found: list[int] = []

    def look(graph: Any, choices: Any) -> None:
        found.append(sum(str(n.target) == "bytejit.attention.default" for n in graph.nodes))

    bytejit.reset()
    monkeypatch.setattr(cpu.CpuTarget, "aten_passes", (*pass_list.CPU_PASSES, on_graph(look)))
    monkeypatch.setattr(attention, "LEAST_WORK", 0)
    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: Own())
    yield found
    bytejit.reset()
