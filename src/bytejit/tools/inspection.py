"""Shows users what code was compiled to: regions and breaks as `explain` records them, logs, the debug folder."""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bytejit.common import debug, logs, profiler_ranges
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.graph_script import graph_file, read_only
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import Options
from bytejit.common.where import Where
from bytejit.runtime.function import CompiledFunction
from bytejit.runtime.region_names import Named

if TYPE_CHECKING:
    import torch

    from bytejit.tracer.trace import Trace

NOTHING = "No graph was made: the call holds no work for one."
COMMENTS = {".py": "#", ".cpp": "//"}  # suffix of a file of code -> how its comments begin


@light_dataclass(frozen=True)
class Region:
    """One compiled region. `where`: its first line; `guards`: one line each; `seconds`: trace and backend."""

    function: str
    where: Where
    point: int
    trace: Trace = field(repr=False)
    guards: tuple[str, ...] = field(repr=False)
    seconds: float

    @property
    def graph(self) -> torch.fx.GraphModule | None:
        """The FX graph; None for a region without operations."""
        return self.trace.graph

    @property
    def ops(self) -> list[Any]:
        """The targets of the graph's calls, in order."""
        nodes = () if self.graph is None else self.graph.graph.nodes
        return [n.target for n in nodes if n.op.startswith("call_") and n.target not in profiler_ranges.NODES]

    @property
    def through_torch(self) -> str:
        """Returns why the graph runs through torch; "" when it is compiled."""
        return report_of(self.graph).through_torch if self.graph is not None else ""

    @property
    def cudagraphs(self) -> tuple[str, ...]:
        """Returns what became of the graph as a CUDA graph until now; () on the CPU, and where none is asked for."""
        return tuple(report_of(self.graph).cudagraphs) if self.graph is not None else ()

    @property
    def saved(self) -> tuple[str, ...]:
        """Returns what the graph saves for its backward pass, and what that computes again."""
        return tuple(report_of(self.graph).saved) if self.graph is not None else ()

    @property
    def externs(self) -> dict[str, int]:
        """Library calls of the compiled graph: "name (reason)" and how many."""
        stats = report_of(self.graph).stats if self.graph is not None else None
        return dict(Counter(f"{name} ({reason})" for name, reason in stats.externs)) if stats is not None else {}


@light_dataclass(frozen=True)
class BreakReason:
    """Why and where a graph ended; `do` says what may avoid it."""

    reason: str
    where: Where
    do: str

    def __str__(self) -> str:
        return f"{self.reason} at {self.where}"


@dataclass
class Inspection:
    """What was compiled while it was on."""

    timed: bool = False  # each graph is measured
    regions: list[Region] = field(default_factory=list)
    breaks: dict[BreakReason, None] = field(default_factory=dict)


# owner: recording(); size: one a nested `explain` or `export`; cleared at its end
_RECORDINGS: list[Inspection] = []


@contextmanager
def recording(timed: bool = False) -> Iterator[Inspection]:
    """Record all regions and breaks until the end of the block. timed: each graph runs some times more, for its time."""
    record = Inspection(timed)
    _RECORDINGS.append(record)
    try:
        yield record
    finally:
        _RECORDINGS.remove(record)


def note_break(reason: str, where: Where, do: str, options: Options) -> None:
    """Tell recordings and the log about a graph break."""
    for record in _RECORDINGS:
        record.breaks.setdefault(BreakReason(reason, where, do))
    logs.log("breaks", reason, where, options)


def recorded() -> bool:
    """Whether anybody records."""
    return bool(_RECORDINGS)


def _region(found: Trace, named: Named, where: Where, point: int, seconds: float) -> Region:
    guards = tuple(named.reworded(repr(g)) for g in found.guards)
    return Region(named.where.function, where, point, found, guards, seconds)


def timed() -> bool:
    """Whether anybody who records wants times."""
    return any(record.timed for record in _RECORDINGS)


def note_empty(found: Trace, named: Named, where: Where, point: int) -> None:
    """Tell recordings about a region that has no operations, but returns symbolic numbers."""
    for record in _RECORDINGS:
        record.regions.append(_region(found, named, where, point, 0.0))


def note_region(found: Trace, function: CompiledFunction, point: int, entry: Any, seconds: float, options: Options) -> None:
    """Tell recordings, logs and the debug folder about a region that was compiled."""
    where = function.place(point)
    if _RECORDINGS:
        region = _region(found, function.named, where, point, seconds)
        for record in _RECORDINGS:
            record.regions.append(region)
    if found.graph is not None and logs.wanted("graph", options):
        logs.log("graph", found.graph.code, where, options)
    if logs.wanted("guards", options):
        logs.log("guards", found.guards.text(), where, options)
    if logs.wanted("code", options):
        logs.log("code", entry.text, where, options)
    dump = debug.region(options, where, point)
    if dump:
        write_stages(dump, function.rewritten, found, entry, where)
    if found.graph is not None:
        report, tell = report_of(found.graph), partial(note_stages, dump, where, options)
        tell(report.stages)
        report.later = tell


def note_stages(dump: debug.Dump, where: Where, options: Options, stages: list) -> None:
    """Tell logs and the debug folder about stages of a backend. A file of code says whether it runs by itself."""
    for stage, text, suffix in stages:
        if stage.removeprefix("backward_").startswith(("kernel", "call")) and logs.wanted("code", options):
            logs.log("code", text, where, options)
        if suffix in COMMENTS:
            text = read_only("1_graph.py runs this graph, in eager and compiled", text, COMMENTS[suffix])
        dump.write(stage, text, suffix)


def write_stages(dump: debug.Dump, rewritten: Any, found: Trace, entry: Any, where: Where) -> None:
    """The stages of a region before its backend's as files."""
    dump.write("original", dis.Bytecode(rewritten.original).dis())
    dump.write("rewritten", dis.Bytecode(rewritten.code).dis())
    graph = found.graph
    if graph is not None:
        dump.write("graph", graph_file(graph, found.examples, where, info_of(graph).grad_at_start))
    dump.write("guards", found.guards.text())
    dump.write("entry", read_only("it is bound to objects of the process that made it", entry.text))
