"""Functions of Python's library for files, texts and time, and torch's for checkpoints, break a graph once: nothing in them is
compiled."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bytejit


def saves(x: torch.Tensor, folder: str) -> torch.Tensor:
    y = x * 2
    torch.save(y, f"{folder}/a.pt")
    return y + 1


def loads(x: torch.Tensor, folder: str) -> torch.Tensor:
    torch.save(x, f"{folder}/b.pt")
    return torch.load(f"{folder}/b.pt") + x


def writes(x: torch.Tensor, folder: str) -> torch.Tensor:
    y = x * 2
    Path(folder, "c").write_text(str(y.shape))
    return y + 1


def makes_folders(x: torch.Tensor, folder: str) -> torch.Tensor:
    y = x * 2
    os.makedirs(f"{folder}/d/e", exist_ok=True)
    return y + 1


def copies(x: torch.Tensor, folder: str) -> torch.Tensor:
    y = x * 2
    shutil.copytree(folder, f"{folder}_copy", dirs_exist_ok=True)
    return y + 1


@pytest.mark.parametrize(("f", "breaks"), [(saves, 1), (loads, 2), (writes, 1), (makes_folders, 1), (copies, 1)])
def test_a_call_breaks_once(f: Callable, breaks: int, tmp_path: Path) -> None:
    bytejit.reset()
    (tmp_path / "there").write_text("")
    x, before = torch.randn(3), bytejit.counters.total("breaks")
    compiled = bytejit.compile(f, backend="eager")
    for _ in range(12):
        assert torch.equal(compiled(x, str(tmp_path)), f(x, str(tmp_path)))
    assert bytejit.counters.total("breaks") - before == breaks


def test_what_the_library_calls_back_runs(tmp_path: Path) -> None:
    """A function of the program that the library calls computes tensors, as it is."""
    bytejit.reset()
    seen: list[torch.Tensor] = []

    def moved(storage: torch.UntypedStorage, place: str) -> torch.UntypedStorage:
        seen.append(torch.ones(2).sum())
        return storage

    def f(x: torch.Tensor) -> tuple:
        torch.save(x, tmp_path / "x.pt")
        said = re.sub("a", lambda m: str(int(torch.ones(2).sum())), "bab")
        with tempfile.TemporaryDirectory() as inner:
            y = x.sin()
            there = os.path.isdir(inner)
        return torch.load(tmp_path / "x.pt", map_location=moved) * 2, y, said, there

    x = torch.randn(3)
    for _ in range(4):
        seen.clear()
        a, y, said, there = bytejit.compile(f, backend="eager")(x)
        assert torch.equal(a, x * 2) and torch.equal(y, x.sin()) and said == "b2b" and there and len(seen) == 1
