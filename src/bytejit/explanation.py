"""`bytejit.explain`: call a function compiled anew, and say what became of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bytejit.common.files import writable
from bytejit.common.text import indent, plural, table
from bytejit.tools.inspection import NOTHING, BreakReason, Region, recording

from .common import registry
from .common.errors import backend_name


@dataclass(frozen=True)
class Explanation:
    """What one call came to. `regions`: in the order of compiling; `seconds`: the whole first call; `recompiles`: of the
    process until then, each place with the reason, and how often.

    Prints as a report, and unpacks into the six values (explanation, out_guards, graphs, ops_per_graph, break_reasons,
    explanation_verbose); the middle four are lists, one item a graph (a break for `break_reasons`).
    """

    name: str
    backend: str
    regions: tuple[Region, ...]
    break_reasons: tuple[BreakReason, ...]
    fallbacks: dict[str, int]
    seconds: float
    recompiles: dict[str, int] = field(default_factory=dict)

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
        elif not self.break_reasons and not self.fallbacks:
            parts += ["", NOTHING]
        sections = (
            ("Breaks", [f"{b}\n  do: {b.do}" for b in self.break_reasons]),
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

    def _story(self) -> Any:
        from .tools.page import Story

        return Story(self.name, self.explanation, self.regions, self.break_reasons, self.recompiles, self.fallbacks)

    def html(self) -> str:
        """The report as one page that needs no network: the program with its graphs and breaks, pictures, kernels, guards."""
        from .tools.page import page

        return page(self._story())

    def _repr_html_(self) -> str:
        """The same in a notebook's cell."""
        from .tools.page import fragment

        return fragment(self._story())

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


def explain(
    compiled: Callable, args: tuple, kwargs: dict, backend: str | Callable, name: str, html: str | os.PathLike | None = None
) -> Explanation:
    """Call a function that nothing is compiled of yet, and record. html: a file for the page, with times of the graphs.

    Raises: what the call raises; OSError where the file cannot be written, before anything is called.
    """
    if html is not None:
        writable(Path(html))
    before = Counter(registry.counters["fallbacks"])
    began = time.perf_counter()
    with recording(timed=html is not None) as record:
        compiled(*args, **kwargs)
    seconds = time.perf_counter() - began
    fallbacks = {
        what: n
        for what, n in (registry.counters["fallbacks"] - before).items()
        if not what.startswith("a graph runs through torch")
    }
    recompiles = dict(registry.counters["recompiles"])
    made = Explanation(name, backend_name(backend), tuple(record.regions), tuple(record.breaks), fallbacks, seconds, recompiles)
    if html is not None:
        Path(html).write_text(made.html(), encoding="utf-8")
    return made
