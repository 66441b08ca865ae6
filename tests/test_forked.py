"""A forked program is what a started one is: arguments, environment, paths, `__main__`, exit status, what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .forked import run_forked

SHOWN = """
import atexit, os, sys
atexit.register(lambda: print("at the end"))
import beside
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("SAID"), sys.modules["__main__"].__dict__ is globals(), sys.path[1:3])
print("to stderr", file=sys.stderr)
if sys.argv[1:] == ["leave"]: sys.exit(7)
if sys.argv[1:] == ["fail"]: raise KeyError("its own")
if sys.argv[1:] == ["die"]: os.abort()
"""


@pytest.mark.parametrize("argument", ["stay", "leave", "fail", "die"])
def test_as_python_starts_it(argument: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "beside.py").write_text("")
    for command in (["-c", SHOWN], ["-m", "shown"], ["shown.py"]):
        env = {**os.environ, "SAID": "hello"}
        want = subprocess.run([sys.executable, *command, argument], capture_output=True, text=True, env=env, cwd=tmp_path)
        got = run_forked(*command, argument, cwd=tmp_path, preload=("json",), SAID="hello")
        assert (got.returncode, got.stdout) == (want.returncode, want.stdout)
        assert got.stderr.splitlines()[-1:] == want.stderr.splitlines()[-1:] and "to stderr" in got.stderr


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(AssertionError, match="did not end"):
        run_forked("-c", "import time; time.sleep(600)", timeout=0.2, preload=("json",))
    assert run_forked("-c", "print(1)", preload=("json",)).stdout == "1\n"
