"""`python -m bytejit.verify`: every row, its exit status, and what it says where something is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit import verify
from bytejit.common.options import Options


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bytejit.verify", *args],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **env},
    )


@pytest.mark.cxx
def test_a_good_installation() -> None:
    out = run()
    assert out.returncode == 0, out.stdout + out.stderr
    for word in (
        "Python",
        "torch",
        "interfaces",
        "triton",
        "CUDA",
        "C++ compiler",
        "cache folder",
        "eager on cpu",
        "aot_eager on cpu",
        "inductor on cpu",
        "All that this machine can do works.",
    ):
        assert word in out.stdout, out.stdout


def test_json_and_one_backend() -> None:
    out = run("--json", "--backend", "eager")
    rows = {row["name"]: row for row in json.loads(out.stdout)}
    assert rows["Python"]["state"] == "works" and rows["torch"]["found"].startswith(torch.__version__)
    assert [name for name in rows if " on " in name][:1] == ["eager on cpu"]
    assert out.returncode == int(any(row["state"] == "broken" for row in rows.values()))


@pytest.mark.cxx
def test_folders_that_cannot_be_written_are_said_once() -> None:
    out = run("--json", "--backend", "inductor", TMPDIR="/proc/none", BYTEJIT_CACHE_DIR="/proc/none")
    rows = {row["name"]: row for row in json.loads(out.stdout)}
    assert rows["cache folder"]["state"] == "missing" and rows["C++ compiler"]["state"] == "works" and out.returncode == 0
    assert rows["inductor on cpu"]["state"] == "works" and not out.stderr


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    check = verify.check_compiler(Options())
    assert check.state == "missing" and "install g++" in check.do


def test_a_compiler_that_fails_is_broken(tmp_path: Path) -> None:
    fake = tmp_path / "c++"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo fake 1.2.3 && exit\necho no assembler >&2\nexit 1\n')
    fake.chmod(0o755)
    check = verify.check_compiler(Options(cxx=str(fake)))
    assert check.state == "broken" and "no assembler" in check.found
    fake = tmp_path / "other"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    check = verify.check_compiler(Options(cxx=str(fake)))
    assert check.state == "broken" and "--version fails" in check.found


def test_the_compiler_is_the_one_that_builds_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One with words after its name, as zig has: verify said that there was none, where kernels were built with it."""
    real = shutil.which("g++") or shutil.which("clang++")
    zig = tmp_path / "zig"
    zig.write_text(f'#!{shutil.which("sh")}\nPATH={os.environ["PATH"]}\n[ "$1" = c++ ] || exit 1\nshift\nexec {real} "$@"\n')
    zig.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    check = verify.check_compiler(Options())
    assert check.state == "works" and "built and called" in check.found, check


def test_the_cache_folder(tmp_path: Path) -> None:
    check = verify.check_cache(Options(cache_dir=str(tmp_path / "new")))
    assert check.state == "works" and (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    check = verify.check_cache(Options(cache_dir=str(tmp_path / "file" / "below")))
    assert check.state == "missing" and "BYTEJIT_CACHE_DIR" in check.do


def test_a_wrong_backend_is_broken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bytejit.common.registry.BACKENDS, "wrong", lambda gm, inputs: lambda *args: (torch.zeros(()),))
    check = verify.check_backend("wrong", "cpu")
    assert check.state == "broken" and check.name == "wrong on cpu" and check.found.startswith("function: ")
