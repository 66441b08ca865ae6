"""`bytejit.explain`: call a function compiled anew, and say what became of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bytejit.common.text import indent, plural, table
from bytejit.inspection import BreakReason, Region, recording

from .common import registry
from .errors import backend_name


@dataclass(frozen=True)
class Explanation:
    """What one call came to. `regions`: in the order of compiling; `seconds`: the whole first call.

    Prints as a report, and unpacks into the six values (explanation, out_guards, graphs, ops_per_graph, break_reasons,
    explanation_verbose); the middle four are lists, one item a graph (a break for `break_reasons`).
    """

    name: str
    backend: str
    regions: tuple[Region, ...]
    break_reasons: tuple[BreakReason, ...]
    fallbacks: dict[str, int]
    seconds: float

    def __iter__(self) -> Iterator[object]:
        yield from (self.explanation, self.out_guards, self.graphs, self.ops_per_graph, list(self.break_reasons), str(self))

    def __repr__(self) -> str:
        return self.explanation

    @property
    def with_graph(self) -> list[Region]:
        """The regions that hold operations."""
        return [r for r in self.regions if r.graph is not None]

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        """The FX graphs."""
        return [r.graph for r in self.with_graph]

    @property
    def out_guards(self) -> list[tuple[str, ...]]:
        """The guards of each graph, one line each."""
        return [r.guards for r in self.with_graph]

    @property
    def ops_per_graph(self) -> list[list[object]]:
        """The targets of each graph's calls."""
        return [r.ops for r in self.with_graph]

    @property
    def explanation(self) -> str:
        """One line: graphs, breaks, operations."""
        ops = sum(map(len, self.ops_per_graph))
        return (
            f"{self.name}: {plural(len(self.graphs), 'graph')}, {plural(len(self.break_reasons), 'break')}, "
            f"{plural(ops, 'op')}, backend {self.backend}, {self.seconds:.2f} s"
        )

    def __str__(self) -> str:
        parts = [self.explanation]
        if self.with_graph:
            rows = [
                [i, len(r.ops), len(r.guards), f"{r.seconds:.2f}", r.where.short, r.function, common(r.ops)]
                for i, r in enumerate(self.with_graph)
            ]
            parts += ["", table(["graph", "ops", "guards", "seconds", "from", "in", "what"], rows)]
        sections = (
            ("Breaks", [f"{b}" + (f"\n  do: {b.do}" if b.do else "") for b in self.break_reasons]),
            (
                "Graphs that run through torch",
                [f"graph {i}: {r.through_torch}" for i, r in enumerate(self.with_graph) if r.through_torch],
            ),
            ("Saved for the backward pass", [f"graph {i}: {line}" for i, r in enumerate(self.with_graph) for line in r.saved]),
            ("CUDA graphs", [f"graph {i}: {line}" for i, r in enumerate(self.with_graph) for line in r.cudagraphs]),
            ("Calls of libraries and of torch, by reason", self.extern_lines()),
            ("Left to the original code", [f"{n} x {what}" for what, n in self.fallbacks.items()]),
        )
        for title, lines in sections:
            if lines:
                parts += ["", f"{title}:", indent("\n".join(lines))]
        return "\n".join(parts)

    def extern_lines(self) -> list[str]:
        """ "5 x linear (library)", over all graphs."""
        total: Counter[str] = Counter()
        for r in self.with_graph:
            total.update(r.externs)
        return [f"{n} x {what}" for what, n in total.most_common()]


def common(ops: list[object]) -> str:
    """The most frequent operations of a graph: "12 linear, 6 relu, ..."."""
    names = Counter(op if isinstance(op, str) else getattr(op, "__name__", str(op)) for op in ops)
    first = [f"{n} {name}" if n > 1 else name for name, n in names.most_common(4)]
    return ", ".join(first) + (", ..." if len(names) > 4 else "")


def explain(compiled: Callable, args: tuple, kwargs: dict, backend: str | Callable, name: str) -> Explanation:
    """Call a function that nothing is compiled of yet, and record. Raises: what the call raises."""
    before = Counter(registry.counters["fallbacks"])
    began = time.perf_counter()
    with recording() as record:
        compiled(*args, **kwargs)
    seconds = time.perf_counter() - began
    fallbacks = {
        what: n
        for what, n in (registry.counters["fallbacks"] - before).items()
        if not what.startswith("a graph runs through torch")
    }
    return Explanation(name, backend_name(backend), tuple(record.regions), tuple(record.breaks), fallbacks, seconds)
