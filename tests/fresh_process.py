"""A program in a process of its own, in which torch's own compiler cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys

WATCH = """
import sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        assert not name.startswith(("torch._dynamo", "torch._inductor")), name
sys.meta_path.insert(0, Watch())
"""


def run_without_compiler(code: str, file: str) -> None:
    """Runs a program that may import what lies beside a test's file. Fails where it fails."""
    beside = f"sys.path.insert(0, {os.path.dirname(os.path.abspath(file))!r})\n"
    done = subprocess.run([sys.executable, "-c", WATCH + beside + code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
