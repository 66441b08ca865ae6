"""Another user of the machine gets nothing of theirs read or run, whatever they could write to, and whenever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bytejit import counters
from bytejit.common import caches
from bytejit.common.options import Options
from bytejit.kernels import build_cpp, owned
from bytejit.kernels.disk import Disk

from .test_build import UNIT

OTHER = 65533  # a user, and a group, that nobody is
AS_OTHER = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="needs root, and setpriv to act as another user",
)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """No warning is remembered, and what waits for a pipe fails."""
    caches.clear()
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of ours that others may enter."""
    made = Path(tempfile.mkdtemp(prefix="bytejit-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    subprocess.run(["rm", "-rf", str(made)], check=True)


def other(script: str, cwd: Path) -> None:
    """Run a shell script as another user."""
    subprocess.run([*AS_OTHER, "sh", "-ec", script], cwd=cwd, check=True)


def filled(place: Path) -> Disk:
    disk = Disk(place / "cache")
    disk.write("ab12", b"code")
    return disk


def refuses(folder: Path, why: str) -> None:
    """The folder is not used, with one warning that says why; nothing of it is read."""
    caches.MEMORY.clear()
    with pytest.warns(RuntimeWarning, match=why) as seen:
        disk = Disk(folder)
        assert disk.read("ab12") is None
        disk.write("ab12", b"ours")
        assert disk.read("ab12") == b"ours" and disk.memory is not None
    assert len(seen) == 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o722])
def test_a_folder_that_others_may_write_is_not_used(place: Path, mode: int) -> None:
    filled(place)
    os.chown(place / "cache", 0, OTHER)
    (place / "cache").chmod(mode)
    refuses(place / "cache", "others may write")


def test_a_folder_of_another_user_is_not_used(place: Path) -> None:
    place.chmod(0o1777)
    other("mkdir cache", place)
    refuses(place / "cache", "another user owns")
    caches.clear()
    other("mkdir parent; chmod 777 parent", place)
    (place / "parent" / "cache").mkdir(mode=0o700)
    refuses(place / "parent" / "cache", "another user owns .*/parent,")


def test_a_folder_below_one_that_others_may_write_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(place)
    place.chmod(0o777)
    refuses(place / "cache", "others may write .* in the place")
    place.chmod(0o1777)  # as /tmp
    assert Disk(place / "cache").read("ab12") == b"code"
    os.chown(place, 0, OTHER)
    place.chmod(0o775)
    caches.clear()
    refuses(place / "cache", "others may write .* in the place")
    monkeypatch.setattr(owned, "_group_of_one", lambda group, user: (group, user) == (OTHER, 0))
    assert Disk(place / "cache").read("ab12") == b"code"


def test_a_folder_that_is_opened_to_others_later_is_not_used_from_then_on(place: Path) -> None:
    disk = filled(place)
    (place / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert disk.read("ab12") is None


def test_another_users_link_is_not_followed(place: Path) -> None:
    filled(place)
    place.chmod(0o1777)
    other("ln -s cache mine; ln -s . here", place)
    refuses(place / "mine", "another user made the link")
    caches.clear()
    refuses(place / "here" / "cache", "another user made the link")
    (place / "ours").symlink_to("cache")
    assert Disk(place / "ours").read("ab12") == b"code"


def test_what_is_swapped_after_the_look_is_not_what_is_loaded(place: Path) -> None:
    disk = filled(place)

    def load(path: str) -> bytes:
        shutil.copytree(place / "cache", place / "copy")
        (place / "copy" / disk.generation / "ab12").write_bytes(b"theirs")
        (place / "cache").rename(place / "away")
        (place / "copy").rename(place / "cache")
        return Path(path).read_bytes()[:4]

    assert disk.load("ab12", load) == b"code"
    with pytest.warns(RuntimeWarning, match="begun anew"):
        disk.write("ab13", b"code")
    assert disk.read("ab12") is None


PLANTED: dict[str, Callable[[Path], None]] = {
    "of another user": lambda p: os.chown(p, OTHER, OTHER),
    "writable by all": lambda p: p.chmod(0o666),
    "writable by a group": lambda p: p.chmod(0o660),
    "a link": lambda p: (p.rename(p.with_name("real")), p.symlink_to("real")),
    "a link to nothing": lambda p: (p.unlink(), p.symlink_to("nothing")),
    "a second name": lambda p: (p.unlink(), os.link(p.with_name("ab99"), p)),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "a folder": lambda p: (p.unlink(), p.mkdir(), (p / "x").write_text("")),
    "a device": lambda p: (p.unlink(), os.mknod(p, 0o20600, os.makedev(1, 5))),
    "huge": lambda p: os.truncate(p, 1 << 40),
    "empty": lambda p: os.truncate(p, 0),
}


@pytest.mark.parametrize("how", PLANTED)
def test_an_entry_that_is_not_ours_is_replaced(place: Path, how: str) -> None:
    disk = filled(place)
    disk.write("ab99", b"of another name")
    PLANTED[how](disk.path("ab12"))
    assert disk.read("ab12") is None and disk.load("ab12", pytest.fail) is None
    assert counters.total("cache")
    disk.write("ab12", b"code")
    assert disk.read("ab12") == b"code" and disk.memory is None


@pytest.mark.parametrize("how", [h for h in PLANTED if h != "a second name"] + ["touched"])
def test_a_key_that_is_not_ours_begins_a_new_generation(place: Path, how: str) -> None:
    disk = filled(place)
    key, old = disk.path("key"), disk.generation
    PLANTED.get(how, lambda p: os.utime(p))(key)
    for again in (disk, Disk(disk.wanted)):
        assert again.read("ab12") is None
    with pytest.warns(RuntimeWarning, match="begun anew"):
        disk.write("ab12", b"code")
    assert disk.generation != old and Disk(disk.wanted).read("ab12") == b"code"


def test_a_pipe_for_a_lock_does_not_wait(place: Path) -> None:
    disk = filled(place)
    for lock in (place / "cache" / ".lock", disk.path(".x.lock")):
        lock.unlink(missing_ok=True)
        os.mkfifo(lock)
    with disk.lock("x"):
        disk.path("key").chmod(0o644)
    with pytest.warns(RuntimeWarning, match="begun anew"):
        disk.write("ab12", b"code")


@pytest.mark.parametrize("deep", [False, True], ids=["the folder", "all of it"])
def test_a_folder_that_was_open_to_others_and_mended(place: Path, deep: bool) -> None:
    """Another user changes all that they may meanwhile, by the rules of the cache, and keeps files open. Modes are put back."""
    disk = filled(place)
    generation = disk.wanted / disk.generation
    assert os.system(f"chmod {'-R' * deep} a+rwX {place}/cache") == 0
    forge = (
        "import hmac, os\n"
        "name = next(n for n in os.listdir('.') if n.startswith('bytejit-'))\n"
        "os.rename(name, 'away'); os.mkdir(name)\n"
        "try:\n    secret = open('away/key', 'rb').read()\nexcept PermissionError: secret = b'x' * 32\n"
        "own = hmac.digest(secret, b'ab12', 'sha256')\n"
        "raw = b'theirs' + b'\\n#bytejit2 ' + hmac.digest(own, b'theirs', 'sha256').hex().encode()\n"
        "for f, b in ('key', secret), ('ab12', raw):\n"
        "    open(name + '/' + f, 'wb').write(b); os.chmod(name + '/' + f, 0o600)\n"
        "os.chmod(name, 0o700)\n"
        "if secret != b'x' * 32:\n"
        "    os.rename(name, 'planted'); os.rename('away', name)\n"  # in place, so that it stays its owner's
        "    open(name + '/ab12', 'wb').write(raw)\n"
    )
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if not python:
        pytest.skip("needs a python that other users may run")
    subprocess.run([*AS_OTHER, python, "-c", forge], cwd=place / "cache", check=True)
    with open(generation / "key", "rb+", buffering=0), open(generation / "ab12", "rb+", buffering=0):
        time.sleep(0.02)
        subprocess.run(
            "find cache -user 0 -type d -exec chmod 700 {} +; find cache -user 0 -type f -exec chmod 600 {} +",
            shell=True,
            cwd=place,
            check=True,
        )
        assert (place / "cache").stat().st_mode & 0o777 == 0o700
        for again in (disk, Disk(disk.wanted)):
            assert again.read("ab12") is None
        with pytest.warns(RuntimeWarning, match="begun anew"):
            disk.write("ab12", b"code")
        assert disk.read("ab12") == b"code"
    assert [n for n in os.listdir(disk.wanted) if n.startswith("bytejit-")] == [disk.generation]


@pytest.mark.cxx
def test_a_planted_library_does_not_run(place: Path) -> None:
    """It is well sealed, and lies where it would be looked for; the folder was open to others for a while."""
    options = Options(cache_dir=str(place / "cache"))
    file = Path(build_cpp.build([UNIT], options).files[0])
    caches.clear()
    ran = f'void ran() {{ fopen("{place}/ran", "w"); }}'
    (place / "theirs.cpp").write_text(
        f"#include <cstdio>\n__attribute__((constructor)) {ran}\n"
        'extern "C" void bj_fill(void*, void*, void*, void*) { ran(); }\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", "theirs.cpp", "-o", "theirs.so"], cwd=place, check=True)
    raw = (place / "theirs.so").read_bytes() + file.read_bytes()[-75:]
    (place / "theirs.so").write_bytes(raw)
    for folder in (place / "cache", file.parent):
        folder.chmod(0o777)
    other(f"cd {file.parent}; mv {file.name} old; cp {place}/theirs.so {file.name}; chmod 600 {file.name}", place)
    for folder in (place / "cache", file.parent):
        folder.chmod(0o700)
    built = build_cpp.build([UNIT], options)
    assert built.cached == 0 and not (place / "ran").exists() and file.read_bytes() != raw
    assert counters["cache"] and file.stat().st_uid == 0


def test_temporary_folders_are_out_of_reach(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert owned.temporary_root() == "/tmp"
    place.chmod(0o1777)
    assert owned.temporary_root() == str(place)


def test_a_user_without_rights_to_write(place: Path) -> None:
    """A folder that is missing is made, where that may be; one that is read only, or root's, costs one warning."""
    program = """
import sys, types, warnings
from pathlib import Path
package = types.ModuleType("bytejit")
package.__path__ = [sys.argv[1]]
sys.modules["bytejit"] = package            # so that torch is not imported
from bytejit.kernels.disk import Disk
from bytejit.kernels.json_cache import JsonCache
for folder, works in ("home/missing", True), ("home/read_only", False), ("roots", False), ("roots/missing", False):
    with warnings.catch_warnings(record=True) as seen:
        disk = Disk(Path(folder))
        disk.write("ab12", b"code")
        JsonCache(disk, "x").merge({"a": 1})
        assert disk.read("ab12") == b"code" and JsonCache(disk, "x").load() == {"a": 1}
        assert (disk.memory is None) == works and len(seen) == (not works), (folder, seen)
"""
    src = Path(build_cpp.__file__).parent.parent
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if not python or subprocess.run([*AS_OTHER, python, "-c", f"open('{src}/__init__.py')"], capture_output=True).returncode:
        pytest.skip("needs a python and sources that other users may read")
    (place / "roots").mkdir()
    (place / "home" / "read_only").mkdir(parents=True)
    for folder in (place / "home", place / "home" / "read_only"):
        os.chown(folder, OTHER, OTHER)
    (place / "home" / "read_only").chmod(0o500)
    done = subprocess.run([*AS_OTHER, python, "-c", program, str(src)], cwd=place, capture_output=True, text=True)
    assert not done.returncode, done.stderr
