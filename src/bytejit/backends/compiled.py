"""`Compiled`: the stages from an ATen graph to a callable, for any target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.codegen.aten.batched_numbers import batch_numbers
from bytejit.codegen.aten.cpu_part import cpu_part, cpu_rest
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.number_row import number_row
from bytejit.codegen.aten.rewrite import spec_or_none
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.libraries.freeze import freeze
from bytejit.codegen.libraries.pass_list import choose_libraries
from bytejit.codegen.libraries.stride_feedback import foreseen, relaid
from bytejit.codegen.loops.check import check_loops, check_plan
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.plan import Plan, writes_early
from bytejit.codegen.loops.text import text
from bytejit.codegen.passes import Journal, Stage, run_passes
from bytejit.common import logs, registry
from bytejit.common.boxed import inner, wrapped
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.options import Options
from bytejit.common.where import Where, with_source
from bytejit.kernels import library
from bytejit.kernels.build import BuildFailed
from bytejit.kernels.number_row import RowSender, with_row
from bytejit.kernels.replaceable import Replaceable

from . import plan_cache
from .target import CompiledGraph, Target

LOOPS = Stage("loops", check_loops, text)
PLAN = Stage("schedule", check_plan, text)


def with_lines(graph: torch.fx.Graph) -> None:
    """Read the source lines of the nodes' places, for comments in kernels. The tracer does not read them."""
    for node in graph.nodes:
        where = node.meta.get("where")
        if isinstance(where, Where):
            node.meta["where"] = with_source(where)


@dataclass
class Compiled:
    """Compiles one graph. Its `Report` gets statistics and the texts of the debug folder."""

    gm: torch.fx.GraphModule
    aten: Aten
    options: Options
    target: Target
    journal: Journal = field(init=False)
    texts: bool = field(init=False)  # the plan and the text of the kernels are kept

    def __post_init__(self) -> None:
        self.texts = self.options.debug or info_of(self.gm).texts
        self.journal = Journal(self.options.debug, self.options.debug or self.options.check_passes)

    # ---- parts ------------------------------------------------------------------------------------------------------
    def build(self, aten: Aten) -> Callable:
        """The graph's callable. What the CPU computes first or last becomes a graph of its own, for the target's host."""
        aten = self.target.prepare(aten)
        if not self.target.host:
            return self.build_part(aten)
        aten = batch_numbers(aten)
        found, single = cpu_rest(aten), aten.single
        if found is None:
            return self.build_after_host(aten)
        after = self.on_host(found.after)
        return found.joined(self.build_after_host(found.first), after, single)

    def build_after_host(self, aten: Aten) -> Callable:
        """The callable of a graph after which nothing runs on the CPU."""
        found = cpu_part(aten)
        if found is None:
            return self.build_part(aten)
        before, writes = (None if part is None else self.on_host(part) for part in (found.before, found.writes))
        return found.joined(self.build_part(found.first), before, writes)

    def on_host(self, part: Aten) -> Callable:
        """A part's callable, compiled for the host."""
        host = registry.lookup_target(self.target.host)(torch.device("cpu"), self.options)
        return Compiled(self.gm, part, self.options, host).build_part(part)

    # ---- one part ---------------------------------------------------------------------------------------------------
    def build_part(self, aten: Aten) -> Callable:
        """Libraries, loops, kernels, call sequence."""
        through_memory = self.target.numbers_in_memory()
        found = number_row(aten, self.target.device) if through_memory else None
        given = aten.inputs()
        aten = aten if found is None else found.aten
        tuner = self.target.tuner()
        self.target.prepare_libraries(aten)
        if self.options.debug:
            self.journal.note("aten", aten.text())
        chosen = choose_libraries(aten, self.target.aten_passes, tuner, library, journal=self.journal)
        tuner.save()
        call, read = self.emit(chosen)
        call = self.target.replay(self.gm, aten, call)
        unread = frozenset(i for i, n in enumerate(given) if spec_or_none(n) is None) - read
        if not through_memory or found is None and not unread:
            return call
        return with_row(call, None if found is None else RowSender(found.pack, self.target.device), unread)

    def frozen(self, inputs: Sequence) -> Callable:
        """The callable with weights folded into constants. It notices writes to weights by version and address, and folds
        again."""
        state: dict = {}

        def fold(args: Sequence) -> None:
            tuner = self.target.tuner()
            self.target.prepare_libraries(self.aten)
            weights = info_of(self.gm).weights
            params = {i: t for i, t in enumerate(args) if isinstance(t, torch.Tensor) and i in weights}
            made, _, state["check"] = freeze(self.aten, params, self.target.aten_passes, tuner, library, self.journal)
            tuner.save()
            state["call"] = self.target.replay(self.gm, self.aten, self.emit(made)[0])

        def call(*args: Any) -> Any:
            if not state["check"](args):
                registry.count("recompiles", "a frozen weight was written")
                fold(args)
            return state["call"](*args)

        fold(inputs)
        return call

    def emit(self, aten: Aten) -> tuple[Callable, frozenset[int]]:
        """The graph's callable, and which inputs are numbers that it reads. Where a kernel cannot be built, the graph is planned
        again with the target's `smaller`. Where that fails too, the graph runs through torch."""
        target: Target | None = self.target
        while target is not None:
            try:
                return self.emit_for(target, aten)
            except BuildFailed as error:
                target = target.smaller(error)
        return run_aten(aten), frozenset(range(len(aten.inputs())))

    def emit_for(self, target: Target, aten: Aten) -> tuple[Callable, frozenset[int]]:
        """Loops, plan, kernels, a callable. Raises: BuildFailed."""
        aten = foreseen(aten)
        if self.texts:
            with_lines(aten.graph)
        plan, source = self.planned(target, aten)
        made = target.launch(plan, source, aten)
        for name, n in made.stats.unfused.items():
            registry.count("externs", f"{name} has no row: run by torch", n)
        if self.texts or logs.wanted("code", self.options):
            self.journal.stages += [("kernel", made.source, target.suffix), ("call", made.call_source, ".py")]
        report = report_of(self.gm)
        report.stats, report.plan = made.stats, plan if self.texts else None
        report.writes_early |= writes_early(plan)
        report.stages, report.pass_seconds = list(self.journal.stages), dict(self.journal.seconds)
        if made.library_results is None:
            return made.call, made.numbers

        def again(returned: dict[str, tuple]) -> Callable | None:
            """The graph with the strides that its libraries returned. Results that still differ then are copied."""
            better = relaid(aten, plan, returned)
            try:
                return None if better is None else inner(self.compiled(target, better).call)
            except BuildFailed as error:
                registry.count("fallbacks", f"a graph keeps its copies: {str(error).partition(chr(10))[0]}")
                return None

        results = made.library_results
        return wrapped(lambda call: Replaceable(call, results.returned, again), made.call), made.numbers

    def planned(self, target: Target, aten: Aten) -> tuple[Plan, object]:
        """The plan and the kernels' text, from disk unless the texts of all stages are wanted."""
        facts = None if self.texts else target.plan_key()
        key = plan_cache.key_of(aten, *facts) if facts is not None else None
        found = plan_cache.load(key, self.options) if key else None
        if found is not None:
            return found
        plan = self.plan(target, aten)
        source = target.emit(plan)
        if key:
            plan_cache.keep(key, plan, source, self.options)
        return plan, source

    def compiled(self, target: Target, aten: Aten) -> CompiledGraph:
        """A graph planned, printed and built. Raises: BuildFailed."""
        plan = self.plan(target, aten)
        return target.launch(plan, target.emit(plan), aten)

    def plan(self, target: Target, aten: Aten) -> Plan:
        """The passes from a graph with its libraries chosen to a plan."""
        loops = lower(aten)
        if self.options.debug:
            self.journal.note("loops", text(loops))
        loops = run_passes(LOOPS, target.loop_passes, loops, self.journal)
        plan = run_passes(PLAN, target.plan_passes, target.schedule(loops), self.journal)
        if self.options.debug:
            self.journal.note("schedule", text(plan))
        return plan
