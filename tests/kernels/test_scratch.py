"""Temporary folders: deleted at the end, by the process that made them, and by the next one where that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bytejit.kernels import scratch
from bytejit.kernels.build_triton import triton_version
from bytejit.kernels.workers import WARM, Workers

HOLDS = """
import sys
from bytejit.kernels.scratch import temporary
with temporary() as folder:
    (folder / "x.cpp").write_text("")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def made_anew() -> None:
    scratch._sweep.cache_clear()
    with scratch.temporary():
        pass


def test_a_folder_goes_with_its_block(root: Path) -> None:
    with pytest.raises(KeyError), scratch.temporary() as folder:
        assert folder.parent == root and folder.stat().st_mode & 0o777 == 0o700
        raise KeyError
    assert not list(root.iterdir())


def test_what_a_killed_process_left_is_deleted_by_the_next(root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = Path(process.stdout.readline().strip())
    others = [root / name for name in ("bytejit-mine", "bytejit-12345678x", "other-12345678", "bytejit-87654321")]
    for other in others:
        other.mkdir(mode=0o755)
        aged(other)
    made_anew()
    assert aged(folder).exists()  # it was new
    made_anew()
    assert folder.exists()  # its process has locked it
    process.kill()
    process.communicate()
    assert folder.exists()
    made_anew()
    assert sorted(root.iterdir()) == sorted(others)


def test_a_forked_process_that_leaves_the_block_deletes_nothing(root: Path) -> None:
    block = scratch.temporary()
    folder = block.__enter__()
    if not (child := os.fork()):
        block.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.exists()
    block.__exit__(None, None, None)
    assert not folder.exists()


@pytest.mark.skipif(not triton_version(), reason="needs triton")
@pytest.mark.parametrize("end", ["stopped", "on its own"])
def test_workers_leave_nothing(root: Path, end: str) -> None:
    request = {
        "text": WARM, "name": "k", "kernel": "warm", "signature": {"x": "*fp32"}, "constants": {"N": 128}, "aligned": [],
        "arch": 80, "warps": 4, "stages": 1, "contracts": True,
    }  # fmt: skip
    pool = Workers(1)
    assert "binary" in pool.ask(request)
    (folder,) = root.iterdir()
    assert list(folder.iterdir())  # what triton keeps
    if end == "on its own":
        worker = pool.free.get()
        worker.jobs.close()
        assert worker.process.wait(60) == 0
    else:
        pool.stop()
    assert not list(root.iterdir())
