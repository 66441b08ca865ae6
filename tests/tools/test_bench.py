"""`python -m bytejit bench`: a process for each way, a table, JSON, a picture; one line where something is wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bytejit
from bytejit.__main__ import main
from bytejit.commands import COMMANDS
from bytejit.tools import bench, loading

from ..models.zoo import torchvision

CODE = "import torch\ndef case():\n    return torch.nn.ReLU(), (torch.randn(64),)\ndef raises():\n    raise ValueError('no')\n"
CODE += "def called():\n    def wrong():\n        raise ValueError('yes')\n    return wrong, ()\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benched.py").write_text(CODE)
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """What is for a process of its own runs in this one."""

    def run(command: list[str], **_: object) -> SimpleNamespace:
        status = COMMANDS["bench"](command[4:])
        return SimpleNamespace(returncode=status, stdout=capsys.readouterr().out, stderr="")

    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr("sys.path", list(sys.path))


def test_a_table_json_and_a_picture(code: Path, here: None, capsys: pytest.CaptureFixture) -> None:
    arguments = ["benched.py:case", "--seconds", "0.01", "--json", "found.json", "--picture", "found.svg"]
    assert COMMANDS["bench"](arguments) == 0
    assert "times as fast" in capsys.readouterr().out
    found = json.loads((code / "found.json").read_text())
    assert [r["way"] for r in found["results"]] == ["eager", "bytejit"] and found["device"] == "cpu" and found["threads"] > 0
    assert all(r["median"] >= r["fastest"] > 0 and r["calls"] >= 5 and not r["error"] for r in found["results"])
    assert found["results"][1]["distance"] == 0 and found["results"][0]["distance"] is None
    assert len(xml.parse(code / "found.svg").getroot().findall("{*}rect")) == 3


def test_in_a_process_of_its_own(code: Path) -> None:
    found = bench.in_process(["benched.py:case", "--seconds", "0.01"], "eager")
    assert found.way == "eager" and found.median > 0 and not found.error


WRONG = {
    "none.py:f": (2, "no such file: none.py"),
    "benched.py:called": (1, "called.<locals>.wrong raised ValueError: yes at benched.py:8"),
    "benched.py:raises": (1, "benched.py:raises raised ValueError: no at benched.py:5"),
    "benched.py:case --device nothing": (2, "the device nothing cannot be used: "),
    "benched.py:case --json none/f.json": (2, "none/f.json cannot be written: No such file or directory"),
}


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_and_a_status(code: Path, here: None, capsys: pytest.CaptureFixture, arguments: str) -> None:
    status, said = WRONG[arguments]
    assert COMMANDS["bench"](arguments.split()) == status
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"bytejit bench: {said}") and not printed.out
    assert {p.name for p in code.iterdir()} <= {"benched.py", "__pycache__"}


@pytest.mark.parametrize("command", ["bench", "explain"])
def test_an_interrupt_is_one_line(code: Path, here: None, capsys: pytest.CaptureFixture, command: str) -> None:
    (code / "slow.py").write_text("def slow():\n    raise KeyboardInterrupt\n")
    assert main([command, "slow.py:slow"]) == 130
    assert capsys.readouterr().err == f"bytejit {command}: interrupted\n"


def test_a_child_that_dies_and_a_table() -> None:
    results = [bench.BenchResult("eager", 0.1, 0.002, 0.001, 5), bench.BenchResult("bytejit", 2.0, 0.001, 0.0005, 9, 1e-7)]
    results.append(bench.BenchResult("torch.compile", error="the process ended with status -9: it said nothing"))
    text = bench.rows_of(results)
    assert "2.00" in text and "1e-07" in text and "status -9" in text and "2 ms" in text and "500 us" in text
    assert bench.picture("a<b", results).count("<rect") == 3 and "a&lt;b" in bench.picture("a<b", results)
    assert bench.furthest({"x": torch.ones(2)}, {"x": torch.zeros(2)}) == 1.0 and bench.furthest(1, 1) is None
    assert bytejit.compile is not torch.compile


# ---- models by name ----------------------------------------------------------------------------------------------------
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
WHISPER = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
KINDS = {
    "bert": SMALL,
    "vit": SMALL,
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "whisper": {**WHISPER, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
    "clip": {"text_config": SMALL, "vision_config": SMALL, "projection_dim": 8},
    "wav2vec2": SMALL,
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers_get_what_they_take(kind: str) -> None:
    """Text, pictures, sounds, both sides of an encoder and a decoder."""
    transformers = pytest.importorskip("transformers")
    if importlib.util.find_spec("torchvision"):
        torchvision()
    config = transformers.AutoConfig.for_model(kind, **KINDS[kind])
    of_that = SimpleNamespace(for_model=lambda name: config)
    library = SimpleNamespace(AutoConfig=of_that, AutoModel=transformers.AutoModel)
    case = loading.of_transformers(library, kind)
    assert case is not None
    with torch.no_grad():
        assert isinstance(case.target(*case.args)[0], torch.Tensor)
    assert loading.of_transformers(transformers, "no-such") is None


def test_models_of_torchvision_get_what_they_take() -> None:
    models = torchvision().models
    names = ("r3d_18", "fcn_resnet50", "raft_small", "resnet18")
    cases = [loading.of_torchvision(SimpleNamespace(models=models), name) for name in names]
    assert [len(c.args) for c in cases] == [1, 1, 2, 1] and [c.args[0].dim() for c in cases] == [5, 4, 4, 4]
