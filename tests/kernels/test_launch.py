"""What is declared to cffi without its parser is what the parser makes of the same text."""

from __future__ import annotations

import runpy
from pathlib import Path

import _cffi_backend
import cffi
import pytest

from bytejit.kernels import launch


def test_the_parsed_declarations_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffi = cffi.FFI()
    ffi.cdef(launch.C)
    ffi.set_source("declarations", None)
    ffi.emit_python_code(str(tmp_path / "declarations.py"))
    monkeypatch.setattr(_cffi_backend, "FFI", lambda name, **parsed: parsed)
    made = runpy.run_path(str(tmp_path / "declarations.py"))["ffi"]
    assert made == launch.PARSED, f"kernels/launch.py: PARSED is to be {made}"


def test_another_version_of_cffi_parses_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launch.PARSED, "_version", 1)
    ffi = launch._ffi.__wrapped__()
    assert type(ffi) is cffi.FFI
    _, file = launch.openmp()
    assert not file or ffi.dlopen(file).omp_get_num_threads() >= 1
