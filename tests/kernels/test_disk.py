"""The disk cache: whole entries or none, damage found, bounded, private, and usable when the folder is not."""
from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bytejit.common import caches
from bytejit.kernels.disk import Disk, JsonCache, digest


@pytest.fixture(autouse=True)
def fresh() -> None:
    caches.clear()


def library(disk: Disk, tmp_path: Path, key: str, body: bytes) -> Path:
    built = tmp_path / "built.so"
    built.write_bytes(body)
    return disk.keep_library(key, built)


def test_parts_of_a_key_do_not_run_together() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a") == digest(b"a")


def test_a_library_comes_back_and_the_folder_is_private(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache")
    assert disk.library("ab12") is None
    place = library(disk, tmp_path, "ab12", b"code")
    assert disk.library("ab12") == place
    assert place.read_bytes() == b"code"
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert not [f for f in place.parent.iterdir() if f.name.startswith(".")]


@pytest.mark.parametrize("damage", [b"cod", b"codx", b""])
def test_a_damaged_library_is_deleted(tmp_path: Path, damage: bytes) -> None:
    disk = Disk(tmp_path / "cache")
    place = library(disk, tmp_path, "ab12", b"code")
    place.write_bytes(damage)
    assert disk.library("ab12") is None
    assert not place.exists()
    library(disk, tmp_path, "ab12", b"code")
    assert disk.library("ab12") is not None


def test_a_damaged_table_is_empty(tmp_path: Path) -> None:
    table = JsonCache(Disk(tmp_path / "cache"), "choices")
    table.merge({"a": 1})
    table.merge({"b": [2, 3]})
    assert table.load() == {"a": 1, "b": [2, 3]}
    place = table.disk.path(table.name)
    place.write_bytes(place.read_bytes()[:-2])
    assert table.load() == {}


def test_the_oldest_libraries_go_first(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache", limit=250)
    for i, key in enumerate(("aa", "bb", "cc")):
        place = library(disk, tmp_path, key, bytes(100))
        os.utime(place, (time.time() - 100 + i,) * 2)
    disk.library("aa") or library(disk, tmp_path, "aa", bytes(100))
    library(disk, tmp_path, "dd", bytes(100))
    left = [key for key in ("aa", "bb", "cc", "dd") if disk.path(key + ".so").exists()]
    assert len(left) == 2 and "dd" in left and "bb" not in left


def test_an_unusable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = Disk(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        place = library(disk, tmp_path, "ab12", b"code")
    assert disk.library("ab12") == place


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    disk = Disk(tmp_path / "open")
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert disk.folder != tmp_path / "open"


def test_a_full_disk_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path / "cache")
    real = os.replace

    def full(a: Path, b: Path) -> None:
        if str(b).startswith(str(tmp_path / "cache")):
            raise OSError(28, "No space left on device")
        real(a, b)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        place = library(disk, tmp_path, "ab12", b"code")
    assert not str(place).startswith(str(tmp_path / "cache"))


def test_processes_that_merge_at_once_keep_all_entries(tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; from bytejit.kernels.disk import Disk, JsonCache\n"
            "t = JsonCache(Disk(Path(sys.argv[1])), 'x')\n"
            "for i in range(20): t.merge({sys.argv[2] + str(i): i})")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache"), name], env=env) for name in "ab"]
    assert [p.wait(60) for p in running] == [0, 0]
    assert len(JsonCache(Disk(tmp_path / "cache"), "x").load()) == 40
