"""Each example runs as a user runs it and asserts against eager by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def test_the_programs_of_the_documents_are_there() -> None:
    assert len(EXAMPLES) >= 12
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 60, path.name


@pytest.mark.cxx
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    paths = [str(path.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    out = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, f"{out.stdout}\n{out.stderr}"
    assert "[bytejit fault]" not in out.stderr, out.stderr
