"""The disk cache: built libraries and small JSON tables, by content key, under a private folder.

An entry is one file: a header line (magic, sha256 of the body, length) and the body. It is written beside its place
and renamed onto it, so that a reader sees all of it or nothing, however many processes write. A body that does not
match its header is deleted and counts as absent. A library is used from its own file (`<key>.so`, with the header in
`<key>.sum`).
A folder that cannot be written costs one warning; a temporary folder serves the process.
"""
from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bytejit.common import caches


def digest(*parts: str | bytes) -> str:
    """A key: the hash of parts, each with its length, so that no two lists of parts collide."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(b"%d:" % len(raw))
        h.update(raw)
    return h.hexdigest()[:40]


def _usable(folder: Path) -> str:
    """Why a folder cannot hold the cache; "" when it can. Makes it, private to the user."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except OSError as e:
        return str(e)
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        return "another user owns it: its kernels would run as you"
    if stat.S_IMODE(info.st_mode) & 0o022:
        return "others may write to it: their kernels would run as you (chmod go-w)"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "not writable"


def _temporary(key: str) -> Path:
    """A folder of this process that vanishes with it."""
    if key not in caches.FOLDERS:
        import atexit
        import shutil
        made = Path(tempfile.mkdtemp(prefix="bytejit-"))
        caches.FOLDERS[key], owner = made, os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(made, ignore_errors=True))
    return caches.FOLDERS[key]


class Disk:
    """The cache in a folder. limit: bytes above which the entries longest unused are deleted."""

    def __init__(self, folder: Path, limit: int = 2 << 30) -> None:
        self.wanted, self.limit = folder, limit
        self._folder: Path | None = None

    def __repr__(self) -> str:
        return f"Disk({self.wanted}, at most {self.limit >> 20} MiB)"

    @property
    def folder(self) -> Path:
        """Where entries lie: the wanted folder, or a temporary one (one warning) when that cannot be used."""
        if self._folder is None:
            why = _usable(self.wanted)
            if why:
                self._fall_back(why)
            else:
                self._folder = self.wanted
        return self._folder

    def _fall_back(self, why: str) -> Path:
        caches.warn_once(f"cache {self.wanted}",
                         f"bytejit: kernel cache {self.wanted} cannot be used ({why}): built kernels are "
                         "kept for this process only. Set BYTEJIT_CACHE_DIR to a folder of yours with free space.")
        self._folder = _temporary(str(self.wanted))
        return self._folder

    def path(self, name: str) -> Path:
        """Where the entry `name` lies; entries are spread over 256 folders by the first two characters."""
        return self.folder / name[:2] / name

    def _write(self, name: str, body: bytes, mode: int = 0o600) -> Path:
        """Put a file in its place at once. Falls back to the temporary folder when the disk is full or gone."""
        for attempt in range(2):
            place = self.path(name)
            temp = place.with_name(f".{place.name}.{os.getpid()}.{os.urandom(4).hex()}")
            try:
                place.parent.mkdir(mode=0o700, exist_ok=True)
                with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as f:
                    f.write(body)
                os.replace(temp, place)
                return place
            except OSError as e:
                temp.unlink(missing_ok=True)
                if attempt or self._folder != self.wanted:
                    raise
                self._fall_back(str(e))
        raise AssertionError("unreachable")

    def _seal(self, body: bytes) -> bytes:
        return b"bytejit1 %s %d" % (hashlib.sha256(body).hexdigest().encode(), len(body))

    def library(self, key: str, suffix: str = ".so") -> Path | None:
        """The file of a built library, checked and marked as used; None when absent or damaged (then deleted)."""
        place, seal = self.path(key + suffix), self.path(key + ".sum")
        try:
            expected, body = seal.read_bytes(), place.read_bytes()
        except OSError:
            return None
        if expected != self._seal(body):
            for file in (place, seal):
                file.unlink(missing_ok=True)
            return None
        try:
            os.utime(place)
        except OSError:
            pass  # a read-only cache still serves; only its age is not kept
        return place

    def keep_library(self, key: str, built: Path, suffix: str = ".so") -> Path:
        """Take a built library in; answers the file to load."""
        body = built.read_bytes()
        place = self._write(key + suffix, body, 0o700)
        self._write(key + ".sum", self._seal(body))
        self.trim()
        return place

    def read(self, name: str) -> bytes | None:
        """The body of a small entry; None when absent or damaged (then deleted)."""
        place = self.path(name)
        try:
            seal, _, body = place.read_bytes().partition(b"\n")
        except OSError:
            return None
        if seal != self._seal(body):
            place.unlink(missing_ok=True)
            return None
        return body

    def write(self, name: str, body: bytes) -> None:
        """Store a small entry. Raises: OSError only when the temporary folder fails too."""
        self._write(name, self._seal(body) + b"\n" + body)

    def trim(self) -> int:
        """Delete libraries longest unused until the cache is within its limit; answers how many went."""
        files = []
        for sub in self.folder.iterdir():
            if len(sub.name) == 2 and sub.is_dir():
                files.extend((f.stat().st_mtime, f.stat().st_size, f) for f in _existing(sub))
        total, gone = sum(size for _, size, _ in files), 0
        for _, size, file in sorted(files, key=lambda row: row[0]):
            if total <= self.limit:
                break
            file.unlink(missing_ok=True)
            file.with_suffix(".sum").unlink(missing_ok=True)
            total, gone = total - size, gone + 1
        return gone


def _existing(folder: Path) -> list[Path]:
    """Entries that may be deleted: libraries and tables, not the sums that go with them."""
    return [f for f in folder.iterdir() if f.suffix != ".sum" and not f.name.startswith(".")]


class JsonCache:
    """A table of text to JSON values that outlives the process: `load()`, `merge(entries)`. One file a name.

    Two processes that merge at once both keep their entries: a merge reads, adds and replaces under a file lock.
    """

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk, self.name = disk, "tb-" + name + ".json"

    def __repr__(self) -> str:
        return f"JsonCache({self.name} in {self.disk!r})"

    def load(self) -> dict:
        """All entries; empty when there is no file, or a damaged one."""
        body = self.disk.read(self.name)
        return json.loads(body) if body is not None else {}

    def merge(self, entries: Mapping[str, object]) -> None:
        """Add or replace entries."""
        with _Lock(self.disk.folder / ("." + self.name + ".lock")):
            table = self.load()
            table.update(entries)
            self.disk.write(self.name, json.dumps(table, sort_keys=True).encode())


class _Lock:
    """An exclusive lock on a file, where the system has flock; elsewhere last write wins, which only costs a timing."""

    def __init__(self, path: Path) -> None:
        self.path, self.fd = path, -1

    def __enter__(self) -> None:
        try:
            import fcntl
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def disk_of(folder: Path, limit_mb: int = 2048) -> Disk:
    """The `Disk` of a folder; one object a folder and limit, so that a fall-back holds for the process."""
    key = (str(folder), limit_mb)
    if key not in caches.DISKS:
        caches.DISKS[key] = Disk(folder, limit_mb << 20)
    return caches.DISKS[key]


def json_cache(name: str, folder: Path, limit_mb: int = 2048) -> JsonCache:
    """The table `name` in the cache of `folder`: `load() -> dict`, `merge(entries)`."""
    return JsonCache(disk_of(folder, limit_mb), name)
