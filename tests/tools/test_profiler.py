"""Traces of torch.profiler, and logs: files, JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.backends import plan_cache
from bytejit.common import profiling

HERE = Path(__file__)


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        return torch.sigmoid(x).relu() * n  # here


LINE = next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith("# here"))


def traced(call) -> list:
    with torch.profiler.profile() as profile:
        call()
    return [e for e in profile.events() if e.name.startswith("bytejit")]


def test_traces_show_graphs_kernels_and_recompiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "load", lambda *_: None)  # plans from the disk name no lines: they may be another program's
    net, x = bytejit.compile(Net(), dynamic=False), torch.randn(32)
    first = Net.forward.__code__.co_firstlineno
    graph, place = f"bytejit Net.forward tests/tools/{HERE.name}:{first}", f"tests/tools/{HERE.name}:{LINE}"
    with torch.no_grad():
        wanted = net(x, 1)
        results = []
        events = traced(lambda: results.append(net(x, 1)))
        assert [e.name for e in events] == [graph, f"bytejit kernel sigmoid, relu, mul.Tensor {place}"]
        assert events[1].cpu_parent.name == graph and torch.equal(results[0], wanted)
        names = [e.name for e in traced(lambda: net(x, 2))]
    assert names[0] == graph.replace("bytejit", "bytejit compile", 1) and graph in names
    assert any(n.startswith(f"bytejit recompile Net.forward tests/tools/{HERE.name}:{first}: n was 1, is 2") for n in names)


def test_without_a_profiler_no_scope_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(profiling, "scope", lambda name: opened.append(name) or profiling.contextlib.nullcontext())
    f = bytejit.compile(lambda x: x + 1, backend="eager")
    f(torch.ones(2))
    opened.clear()  # of the compile
    f(torch.ones(2))
    assert not opened
    traced(lambda: f(torch.ones(2)))
    assert len(opened) == 1


def test_an_error_in_a_traced_graph_is_the_program_s() -> None:
    f = bytejit.compile(lambda x, i: x[i] + 1, backend="eager")
    f(torch.ones(4), torch.tensor([1]))
    with pytest.raises(IndexError):
        traced(lambda: f(torch.ones(4), torch.tensor([7])))


def test_logs_go_to_a_file_as_text_or_json(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def f(x):
        bytejit.graph_break()
        return x + 1

    text, lines = tmp_path / "log.txt", tmp_path / "log.jsonl"
    for file in (text, lines):
        bytejit.compile(f, backend="eager", options={"logs": ("breaks", "graph", f"file={file}")})(torch.ones(2))
    assert not capfd.readouterr().err
    assert text.read_text().startswith("[bytejit breaks] tests/tools/test_profiler.py:") and "[bytejit graph]" in text.read_text()
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [e["kind"] for e in events] == ["breaks", "graph"] and "def forward" in events[1]["text"]
    assert events[0]["file"] == str(HERE) and events[0]["text"] == "bytejit.graph_break()"
    assert events[0]["source"] == "bytejit.graph_break()" and events[0]["line"] == f.__code__.co_firstlineno + 1
    bytejit.compile(f, backend="eager", options={"logs": ("breaks", "json")})(torch.ones(2))
    assert json.loads(capfd.readouterr().err)["kind"] == "breaks"


def test_a_log_that_cannot_be_written_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    f = bytejit.compile(lambda x: x + 1, backend="eager", options={"logs": ("graph", f"file={tmp_path / 'no' / 'log'}")})
    with pytest.warns(RuntimeWarning, match="the log cannot be written"):
        f(torch.ones(2))
    assert "[bytejit graph]" in capfd.readouterr().err and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no kind|unknown kind of log 'file='"):
        bytejit.config.patch(logs=("file=",))
