"""Imports of the first compile run without the garbage collector, which is afterwards as the program had it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bytejit.common.late_imports import import_module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    was = gc.isenabled()
    yield tmp_path
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(folder: Path, enabled: bool) -> None:
    name = f"imported_late_{enabled}"
    (folder / f"{name}.py").write_text("import gc\nwas = gc.isenabled()\n")
    (gc.enable if enabled else gc.disable)()
    assert not import_module(name).was and gc.isenabled() == enabled
    assert import_module(name) is sys.modules.pop(name) and gc.isenabled() == enabled


def test_an_import_that_fails(folder: Path) -> None:
    (folder / "imported_badly.py").write_text("raise ValueError('odd')")
    gc.enable()
    with pytest.raises(ValueError, match="odd"):
        import_module("imported_badly")
    assert gc.isenabled()


def test_the_first_compile_collects_nothing_old() -> None:
    program = (
        "import gc, torch, bytejit\n"
        "before = gc.get_stats()[2]['collections']\n"
        "bytejit.compile(lambda x: x + 1, backend='eager')\n"
        "print(gc.get_stats()[2]['collections'] - before, gc.isenabled())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "0 True\n"
