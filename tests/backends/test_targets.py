"""Targets: one that is registered from outside, and what is told of passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.backends.devices import target_of
from bytejit.backends.target import CompiledGraph, Stats, Target
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.cpu.schedule import schedule
from bytejit.codegen.libraries.pass_list import CPU_PASSES
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.passes.fuse import FUSE
from bytejit.codegen.loops.text import text
from bytejit.codegen.passes import Pass
from bytejit.common.errors import Bug
from bytejit.common.graph_info import report_of
from bytejit.common.registry import BACKENDS, TARGETS


class Null(Target):
    """Plain text; torch runs the graph."""

    name = "null"
    loop_passes = FUSE
    printed: list[str] = []

    def schedule(self, loops):
        return schedule(loops, self.machine())

    def emit(self, plan):
        return text(plan)

    def launch(self, plan, source, aten):
        self.printed.append(source)
        return CompiledGraph(run_aten(aten), source, "", Stats(len(plan.steps), 0, (), 0, plan.arena, 0.0, True))


@pytest.fixture
def null() -> Iterator[type[Null]]:
    Null.printed = []
    bytejit.register_target("null", Null)
    yield Null
    del TARGETS["null"], BACKENDS["null"]


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + x.cos()).softmax(-1)


def test_a_printer_from_outside(null: type[Null]) -> None:
    x = torch.randn(4, 8)
    assert torch.equal(bytejit.compile(f, backend="null", fullgraph=True)(x), f(x))
    (source,) = null.printed
    assert source.count("kernel ") == 1 and "sin(" in source and "exp(" in source
    assert "null" in bytejit.list_backends() and bytejit.counters["graphs"] == {"null": 1}


def test_a_device_has_the_target_of_its_type(null: type[Null]) -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    next(iter(gm.graph.nodes)).meta["val"] = torch.ones(2, device="meta")
    assert target_of(gm)[1] == "a tensor is on meta"
    bytejit.register_target("meta", Null)
    try:
        target, reason = target_of(gm)
        assert (type(target), str(target.device), reason) == (Null, "meta:0", "")
    finally:
        del TARGETS["meta"], BACKENDS["meta"]


def test_a_target_without_kernels_leaves_the_graph_to_torch(null: type[Null], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Null, "unavailable", lambda self: "no such device")
    x = torch.randn(4, 8)
    assert torch.equal(bytejit.compile(f, backend="null")(x), f(x)) and not null.printed
    assert bytejit.counters["fallbacks"] == {"a graph runs through torch: no such device": 1}


def test_only_a_callable_is_a_target() -> None:
    with pytest.raises(TypeError, match="a target is a callable"):
        bytejit.register_target("none", "not a path")


def test_each_pass_is_timed_and_printed(null: type[Null], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def look(gm, inputs):
        call = null_backend(gm, inputs)
        seen.append(report_of(gm).pass_seconds)
        return call

    null_backend = BACKENDS["null"]
    monkeypatch.setattr(Null, "aten_passes", CPU_PASSES)
    bytejit.register_backend(look, name="null")
    bytejit.compile(f, backend="null", options={"debug": True, "debug_dir": str(tmp_path)})(torch.randn(4, 8))
    loops = [f"loops.{p.name}" for p in FUSE]
    assert list(seen[0]) == [*(f"aten.{p.name}" for p in CPU_PASSES), *loops] and all(s >= 0 for s in seen[0].values())
    files = {p.name for p in tmp_path.rglob("*.txt")}
    assert {"5_loops.txt", "5_loops_2_inline.txt", "5_loops_4_merge.txt", "6_schedule.txt"} <= files, files
    texts = [next(tmp_path.rglob(f"5_loops_{n}_*")).read_text() for n in (1, 4)]
    assert [t.count("kernel ") > 1 for t in texts] == [True, False]


def test_a_pass_that_makes_an_illegal_program_is_named(null: type[Null], monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(loops):
        kernel = next(s for s in loops.steps if isinstance(s, Kernel))
        return loops.__class__(loops.inputs, loops.buffers, tuple(s for s in loops.steps if s is not kernel), loops.outputs)

    monkeypatch.setattr(Null, "loop_passes", (*FUSE, Pass("lose", lose)))
    with pytest.raises(Bug, match="after the pass loops.lose: .* is never made"):
        bytejit.compile(f, backend="null", fullgraph=True, options={"check_passes": True})(torch.randn(4, 8))
