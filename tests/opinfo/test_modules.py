"""A sample of torch's table of modules at each run; `make opinfo ARGS=--modules` runs all of it."""

from __future__ import annotations

import zlib

import pytest
import torch

from .__main__ import main
from .modules import ModuleRow, compared, modules, rows, run_module

pytest.importorskip("expecttest", reason="torch's table of modules needs expecttest")
EACH = 60  # one row in so many
SAMPLE = [r for r in rows() if not zlib.crc32(f"{r.name} {r.setting}".encode()) % EACH]


@pytest.mark.cxx
@pytest.mark.parametrize("row", SAMPLE, ids=lambda r: f"{r.name} {r.setting}")
def test_a_sample_of_modules(row: ModuleRow) -> None:
    """As eager, called with two sizes"""
    found = run_module(row, 1)
    assert found.ok and not found.bad, found.bad


def test_a_difference_is_seen() -> None:
    """Results, gradients and errors that are not eager's are noticed"""
    row = ModuleRow("nn.Linear", True, None)

    class Other(torch.nn.Linear):
        def __deepcopy__(self, memo: dict) -> torch.nn.Linear:
            return torch.nn.Linear(3, 2)

    given = (torch.ones(4, 3, requires_grad=True),), {}
    assert "output" in compared(row, Other(3, 2), given)
    assert not compared(row, torch.nn.Linear(3, 2), given)


def test_the_command(capsys: pytest.CaptureFixture) -> None:
    """Runs the rows of a module and counts them"""
    assert len(modules()) > 100
    assert main(["--modules", "--only", "nn.Linear", "--samples", "1"]) == 0
    assert "eval dynamic" in capsys.readouterr().out
