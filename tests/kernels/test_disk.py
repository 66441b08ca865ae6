"""The disk cache: whole entries or none, damage found, bounded, private, and usable when the folder is not."""

from __future__ import annotations

import gc
import multiprocessing
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from bytejit import counters
from bytejit.common import caches
from bytejit.kernels import disk as disk_module
from bytejit.kernels import owned
from bytejit.kernels.disk import END, Disk, digest
from bytejit.kernels.json_cache import JsonCache


@pytest.fixture(autouse=True)
def fresh_caches() -> None:
    caches.clear()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cache")


def loaded(disk: Disk, name: str) -> bytes | None:
    """What a loader finds where a library is to be loaded."""
    return disk.load(name, lambda path: Path(path).read_bytes()[: -END or None])


def test_parts_of_a_key_do_not_run_together() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a") == digest(b"a")


def test_an_entry_comes_back_and_the_folder_is_private(disk: Disk) -> None:
    assert disk.read("ab12") is None and loaded(disk, "ab12") is None
    assert not disk.wanted.exists()  # a look makes nothing
    disk.write("ab12", b"code")
    assert disk.read("ab12") == b"code" == loaded(disk, "ab12") == loaded(Disk(disk.wanted), "ab12")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (disk.wanted, *disk.wanted.rglob("*"))}
    assert modes == {"cache": 0o700, disk.generation: 0o700, "key": 0o600, ".lock": 0o600, "ab12": 0o600}


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b[1:], lambda b: b"x" + b[1:], lambda b: b"", lambda b: b + b"\n", lambda b: b[:-1] + b"x"],
    ids="short later byte empty long seal".split(),
)
def test_a_damaged_entry_is_deleted_and_counted(disk: Disk, damage) -> None:
    disk.write("ab12", b"code")
    place = disk.path("ab12")
    place.write_bytes(damage(place.read_bytes()))
    assert disk.read("ab12") is None
    assert not place.exists() and counters.total("cache") == 1
    disk.write("ab12", b"code")
    assert disk.read("ab12") == b"code"


def test_an_entry_is_of_its_name(disk: Disk) -> None:
    """What a folder's other entries hold is ours, but of another meaning."""
    disk.write("ab12", b"code")
    disk.path("ab12").rename(disk.path("ab13"))
    assert disk.read("ab13") is None


def test_a_damaged_table_is_empty(disk: Disk) -> None:
    table = JsonCache(disk, "choices")
    table.merge({"a": 1})
    table.merge({"b": [2, 3]})
    assert table.load() == {"a": 1, "b": [2, 3]}
    place = disk.path(table.name)
    place.write_bytes(place.read_bytes()[:-2])
    assert table.load() == {}
    disk.write(table.name, b"[1]")
    assert table.load() == {}


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache", limit=2 * (100 + END) + 50)
    for i, key in enumerate(("aa", "bb", "cc")):
        disk.write(key, bytes(100))
        os.utime(disk.path(key), (time.time() - 100 + i,) * 2)
    left_over = disk.path(".dd.1.beef")
    left_over.write_bytes(b"")
    os.utime(left_over, (0, 0))
    disk.read("aa")
    assert disk.trim() == 1
    assert [key for key in ("aa", "bb", "cc") if disk.read(key)] == ["aa", "cc"] and not left_over.exists()


def test_a_cache_far_from_its_limit_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look comes when an eighth of what was free is written; near the limit each time, and none too late."""
    looks, size = [], 100 + END
    trim = disk_module._trim
    monkeypatch.setattr(disk_module, "_trim", lambda *given: looks.append(given) or trim(*given))
    disk = Disk(tmp_path / "cache", limit=20 * size)
    went = []
    for i in range(24):
        disk.write(f"a{i}", bytes(100))
        went.append(disk.trim())
    assert went == [0] * 20 + [1] * 4 and 5 < len(looks) < 20, (went, len(looks))


def test_others_write_while_the_cache_is_trimmed(disk: Disk) -> None:
    """What a listing names may be renamed or deleted before it is looked at: that is no reason to leave the folder."""
    others, ended = [Disk(disk.wanted) for _ in range(2)], threading.Event()

    def writes(other: Disk) -> None:
        while not ended.is_set():
            other.write("ab12", b"x")

    threads = [threading.Thread(target=writes, args=(other,)) for other in others]
    disk.write("cd34", b"y")
    for thread in threads:
        thread.start()
    for _ in range(500):
        disk.spare = 0
        disk.trim()
    ended.set()
    for thread in threads:
        thread.join()
    assert disk.memory is None and disk.read("cd34") == b"y" and not any(other.memory for other in others)


def test_an_unusable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = Disk(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be used") as seen:
        disk.write("ab12", b"code")
        JsonCache(disk, "x").merge({"a": 1})
        assert disk.read("ab12") == b"code" == disk.load("ab12", lambda path: Path(path).read_bytes())
        assert JsonCache(Disk(disk.wanted), "x").load() == {"a": 1} and disk.trim() == 0
    assert len(seen) == 1


def test_a_full_disk_falls_back(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write("ab12", b"code")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        disk.write("ab13", b"code")
    assert disk.read("ab13") == b"code"
    assert sorted(os.listdir(disk.wanted / disk.generation)) == ["ab12", "key"]


def test_without_proc_a_library_is_copied(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write("ab12", b"code")
    seen: list = []
    monkeypatch.setattr("bytejit.kernels.disk._by_descriptor", lambda at, name: None)
    assert disk.load("ab12", lambda path: (seen.append(path), Path(path).read_bytes())[1]) == b"code"
    assert seen[0].endswith("/ab12") and not Path(seen[0]).exists()


def test_processes_that_merge_at_once_keep_all_entries(tmp_path: Path) -> None:
    def merge(name: str) -> None:
        table = JsonCache(Disk(tmp_path / "cache"), "x")
        for i in range(20):
            table.merge({name + str(i): i})

    running = [multiprocessing.get_context("fork").Process(target=merge, args=(name,)) for name in "ab"]
    for process in running:
        process.start()
    for process in running:
        process.join(300)
    assert [process.exitcode for process in running] == [0, 0]
    assert len(JsonCache(Disk(tmp_path / "cache"), "x").load()) == 40
    assert len([n for n in os.listdir(tmp_path / "cache") if n.startswith("bytejit-")]) == 1


def test_entries_of_earlier_versions_go_and_nothing_else(tmp_path: Path) -> None:
    kept = ["ab/notes.txt", "bytejit-mine/x", "bytejit-12/x", "tb/a.json"]
    gone = [f"ab/{'0' * 40}.plan", f"cd/{'1' * 40}.so", "tb/tb-choices.json"]
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    Disk(tmp_path).write("ab12", b"code")
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} >= set(kept)
    assert not any((tmp_path / name).exists() for name in (*gone, "cd"))


def test_links_on_the_way_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "one").symlink_to("real/../real/inner")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "round").symlink_to("round")
    Disk(tmp_path / "two" / "cache").write("ab12", b"code")
    assert Disk(tmp_path / "real" / "inner" / "cache").read("ab12") == b"code"
    with pytest.raises(owned.Refused, match="too many links"):
        owned.open_folder(tmp_path / "round" / "cache")


@pytest.mark.filterwarnings("ignore:.*begun anew")
def test_nothing_stays_open(disk: Disk) -> None:
    gc.collect()  # files of earlier tests, which would go meanwhile
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        disk.write("ab12", b"code")
        disk.read("ab12"), disk.read("none"), loaded(disk, "ab12"), disk.trim(), disk.state()
        JsonCache(disk, "x").merge({"a": 1})
        disk.path("ab12").write_bytes(b"")
        disk.read("ab12")
        disk.path("key").chmod(0o644)  # a new generation
    assert sorted(os.listdir("/proc/self/fd")) == before
