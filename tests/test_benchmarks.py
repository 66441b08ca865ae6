"""Programs of benchmarks/ that name the compiler's own parts run: a part that has moved fails here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .forked import COMPILER, run_forked

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("shape", ["chain", "training"])
def test_growth(shape: str, tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / "bench_growth.py"
    done = run_forked(path, "--one", shape, "10", preload=COMPILER, BYTEJIT_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["n"] == 10 and row["stages"]["capture"] > 0 and row["stages"]["emit"] > 0


def test_operators(tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / "bench_ops.py"
    arguments = ("--backward", "--only", "relu6", "fold", "--seconds", "0.01")
    done = run_forked(path, *arguments, preload=COMPILER, BYTEJIT_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "relu6" in done.stdout and "3 operators, geometric mean" in done.stdout
