"""Each example runs as a user runs it and asserts against eager by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from .forked import COMPILER, run_forked

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
# fewer steps and seeds than by themselves, of what costs a minute
ARGUMENTS = {"10_train_digits": ("12", "1")}


def test_the_programs_of_the_documents_are_there() -> None:
    assert len(EXAMPLES) >= 12
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 60, path.name


@pytest.mark.cxx
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    out = run_forked(path, *ARGUMENTS.get(path.stem, ()), cwd=tmp_path, preload=COMPILER)
    assert out.returncode == 0, f"{out.stdout}\n{out.stderr}"
    assert "[bytejit fault]" not in out.stderr, out.stderr
