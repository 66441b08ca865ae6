"""What stands beside a graph on its way: what the tracer tells a backend, and what a backend tells of itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass

from .options import Settings
from .where import Where

INFO, REPORT = "bytejit_info", "bytejit_report"  # keys of `GraphModule.meta`


@light_dataclass(frozen=True)
class GraphInfo:
    """What the tracer tells a backend of a graph: `info_of(gm)`."""

    settings: Settings = field(default_factory=Settings)
    where: Where | None = None
    needs_grad: bool = False  # an output, or an input that it writes, needs gradients
    inference: bool | str | None = None  # the mode that it sets: in or out of inference mode; "mixed": both; None: neither
    grads_off: bool = False  # no output needs gradients, though they are on and an input needs them
    backward: bool = False  # it runs a backward pass of its own
    is_backward: bool = False  # it is the backward pass of another graph, which is compiled when that first runs
    grad_at_start: bool = True  # whether gradients are on where it begins
    autocast: bool = False  # autocast is on around the region
    overrides: bool = False  # torch function modes or subclasses are around: it runs with none asked
    measures: bool = False  # it has sizes that are known only when it runs
    sets_data: bool = False  # it sets a tensor's `data`
    asked: bool = False  # the program asked whether it is compiled: eager may run other code of it
    arrays: bool = False  # inputs are memory of NumPy arrays: storages do not say which of them share memory
    texts: bool = False  # a report, log or debug folder was asked for: keep the plan and the kernels' text
    inner: frozenset[int] = frozenset()  # of a part of a graph: positions of the outputs that only other parts see
    weights: frozenset[int] = frozenset()  # positions of the inputs that are parameters or buffers
    new_grads: tuple[tuple[int, int], ...] = ()  # (output, input): it takes the place of the input's `.grad`, which nothing reads
    replayer: Callable | None = None  # (call, policy) -> what records and replays this graph, where it differs from the usual


@dataclass
class Report:
    """What a backend tells of a graph: `report_of(gm)`."""

    through_torch: str = ""  # why it runs through torch; "" when it is compiled
    stats: Any = None  # of the compiled graph
    plan: Any = None  # where texts are kept: what the printer read
    run_seconds: float = 0.0  # where it was measured: of one call
    pass_seconds: dict[str, float] = field(default_factory=dict)  # "loops.merge" -> time of each pass that ran
    stages: list[tuple[str, str, str]] = field(default_factory=list)  # files of the debug folder: (name, text, suffix)
    later: Callable[[list], None] | None = None  # takes stages that were made after the region was noted: a backward pass's
    saved: list[str] = field(default_factory=list)  # what is saved for the backward pass, a line a graph
    writes_last: weakref.ref | None = None  # what runs it, where that has written nothing when it raises
    writes_early: bool = False  # what runs it may have written an input when it finds no memory
    cudagraphs: list[str] = field(default_factory=list)  # what became of its recordings, each thing once

    def tell_later(self, stages: list[tuple[str, str, str]]) -> None:
        """Tell whoever noted the graph about stages that are made now."""
        if self.later is not None:
            self.later(stages)


def info_of(gm: torch.fx.GraphModule) -> GraphInfo:
    """The graph's `GraphInfo`; the defaults for a graph that the tracer did not make."""
    return gm.meta.get(INFO) or GraphInfo()


def report_of(gm: torch.fx.GraphModule) -> Report:
    """The graph's `Report`, made on first use."""
    return gm.meta.setdefault(REPORT, Report())


def note_around(gm: torch.fx.GraphModule, outer: Callable, inner: Callable) -> None:
    """Note that `outer` runs a graph, by a call of `inner` before it writes anything: it writes last where `inner` does."""
    report = report_of(gm)
    if not report.through_torch and (report.writes_last is None or report.writes_last() is inner):
        report.writes_last = weakref.ref(outer)
