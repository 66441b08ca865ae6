"""The disk cache: built libraries, plans and small JSON tables, by content key, in a private folder.

Who is kept out: every other user of the machine but root, also one who could write to the folder, or to all that is in it,
at some time before. So that nothing of theirs is ever run:

- Every folder on the way and every file is opened by descriptor and looked at, each time (`owned.py`).
- Entries lie in a generation, a folder within the cache's: `bytejit-<hash>`, the hash of a secret in its file `key`, of that
  file's inode and of the time at which the file was last changed, which the system keeps and nobody can set. After a
  `chmod -R`, there and back, the hash is another: a new generation is begun and the old one deleted. So it is with a folder
  that was copied or unpacked: its contents could be anybody's.
- An entry ends with a seal: a keyed hash (HMAC) of its name and body under the generation's secret. What was not written by
  this user, for this name, is deleted, counted (`counters["cache"]`) and made again.
- A library is loaded by way of the descriptor of the folder in which it was checked, not by its path.

An entry is written beside its place and renamed onto it, so that a reader sees all of it or nothing, however many processes
write. A folder that cannot be used costs one warning; entries are then kept in memory, for the process.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from bytejit.common import caches
from bytejit.common.counters import count

from . import owned
from .owned import Refused
from .scratch import temporary

T = TypeVar("T")
SEAL = b"\n#bytejit2 "  # ends an entry, with 64 hexadecimal digits after it
END = len(SEAL) + 64
GENERATION = "bytejit-"
MOST = 512 << 20  # bytes of an entry
OURS = re.compile(GENERATION + "[0-9a-f]{40}")
EARLIER = re.compile(r"[0-9a-f]{40}\.(so|sum|plan|cubin|py)|tb-\w+\.json")  # entries of versions before generations


def digest(*parts: str | bytes) -> str:
    """A key: the hash of parts, each with its length, so that no two lists of parts collide."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        h.update(b"%d:" % len(raw))
        h.update(raw)
    return h.hexdigest()[:40]


def _seal(secret: bytes, name: str, body: bytes | memoryview) -> bytes:
    """Returns the seal that an entry ends with."""
    own = hmac.digest(secret, name.encode(), "sha256")
    return SEAL + hmac.digest(own, body, "sha256").hex().encode()


class Disk:
    """The cache in a folder. limit: bytes above which the entries longest unused are deleted."""

    def __init__(self, folder: Path, limit: int = 2 << 30) -> None:
        self.wanted, self.limit = Path(os.path.abspath(folder)), limit
        self.memory: dict[str, bytes] | None = None  # the entries, where the folder cannot be used
        self.generation = ""  # the one last seen
        self.used: set[str] = set()  # entries that were read or written
        self.spare = 0  # bytes that this process may write before it looks again at how large the cache is

    def __repr__(self) -> str:
        return f"Disk({self.wanted}, at most {self.limit >> 20} MiB)"

    def path(self, name: str) -> Path:
        """Returns where the entry `name` lies, for messages."""
        return (self.wanted / self.generation if self.memory is None else Path("<memory>")) / name

    # ---- the folder ---------------------------------------------------------------------------------------------------
    def _open(self, make: bool) -> tuple[int, bytes] | None:
        """(a descriptor of the generation in use, its secret). make: one is begun where there is none; else None."""
        try:
            root = owned.open_folder(self.wanted, make)
        except FileNotFoundError:
            if make:
                raise
            return None
        try:
            found = _trusted(root, self.generation) or self._search(root)
            if found is None and make:
                with owned.locked(root, ".lock"):
                    found = self._search(root) or self._begin(root)
            return found
        finally:
            os.close(root)

    def _begun(self) -> tuple[int, bytes]:
        """The same, begun where there is none."""
        found = self._open(make=True)
        assert found is not None
        return found

    def _search(self, root: int) -> tuple[int, bytes] | None:
        for name in sorted(os.listdir(root)):
            found = _trusted(root, name)
            if found is not None:
                self.generation = name
                return found
        return None

    def _begin(self, root: int) -> tuple[int, bytes]:
        """A new generation; what else there is of the cache is deleted."""
        made = f".{os.getpid()}.{os.urandom(4).hex()}"
        os.mkdir(made, 0o700, dir_fd=root)
        at = os.open(made, owned.FOLDER, dir_fd=root)
        try:
            with open(os.open("key", os.O_WRONLY | os.O_CREAT | os.O_EXCL | owned.FILE, 0o600, dir_fd=at), "wb") as file:
                file.write(os.urandom(32))
            self.generation = _name(at)[0]
        finally:
            os.close(at)
        os.rename(made, self.generation, src_dir_fd=root, dst_dir_fd=root)
        found = _trusted(root, self.generation)
        if found is None:
            raise Refused("its file system does not keep the time at which a file was changed")
        if _sweep(root, self.generation):
            caches.warn_once(
                f"new cache {self.wanted}",
                f"bytejit: kernel cache {self.wanted} is begun anew: it was copied there, or its permissions "
                "were changed, and others may have written to it.",
            )
            count("cache", "a cache folder is begun anew: it was copied, or its permissions were changed")
        return found

    def _fall_back(self, error: OSError) -> None:
        """Keeps entries in memory from now on: the folder cannot be used."""
        caches.warn_once(
            f"cache {self.wanted}",
            f"bytejit: kernel cache {self.wanted} cannot be used ({_words(error)}): built kernels are "
            "kept for this process only. Set BYTEJIT_CACHE_DIR to a folder of yours with free space.",
        )
        count("cache", "a cache folder cannot be used: entries are kept in memory")
        self.memory = caches.MEMORY.setdefault(str(self.wanted), {})

    # ---- entries --------------------------------------------------------------------------------------------------------
    def _entry(self, name: str) -> tuple[int, bytes] | None:
        """(a descriptor of the folder, to be closed; -1: none, the body of an entry), marked as used; None when it is absent,
        damaged or not ours (then deleted)."""
        if self.memory is None:
            try:
                found = self._open(make=False)
                if found is None:
                    return None
                at, secret = found
                try:
                    body = _checked(at, secret, name)
                except BaseException:
                    os.close(at)
                    raise
                if body is not None:
                    self.used.add(name)
                    return at, body
                os.close(at)
                return None
            except OSError as error:
                self._fall_back(error)
        body = (self.memory or {}).get(name)
        if body is None:
            return None
        self.used.add(name)
        return -1, body

    def read(self, name: str) -> bytes | None:
        """The body of an entry; None when there is none."""
        found = self._entry(name)
        if found is None:
            return None
        if found[0] >= 0:
            os.close(found[0])
        return found[1]

    def load(self, name: str, load: Callable[[str], T]) -> T | None:
        """`load(path)` of an entry that is a library; None when there is none. The path holds during the call only, and leads
        to what was checked."""
        found = self._entry(name)
        if found is None:
            return None
        at, body = found
        try:
            path = _by_descriptor(at, name) if at >= 0 else None
            return load(path) if path is not None else load_bytes(name, body, load)
        finally:
            if at >= 0:
                os.close(at)

    def write(self, name: str, body: bytes) -> None:
        """Store an entry. Where the folder cannot be used any more, this process keeps it."""
        self.used.add(name)
        self.spare -= len(body) + END
        if self.memory is None:
            try:
                at, secret = self._begun()
                try:
                    owned.write_file(at, name, body + _seal(secret, name, body))
                finally:
                    os.close(at)
                return
            except OSError as error:
                self._fall_back(error)
        if self.memory is not None:
            self.memory[name] = body

    def trim(self) -> int:
        """Delete entries longest unused until the cache is within its limit; returns how many went.

        All entries are looked at only when this process has written an eighth of what was free at the last look: seven other
        processes may write as much meanwhile.
        """
        if self.spare > 0:
            return 0
        try:
            found = self._open(make=False) if self.memory is None else None
            if found is None:
                return 0
            try:
                gone, total = _trim(found[0], self.limit)
                self.spare = (self.limit - total) // 8
                return gone
            finally:
                os.close(found[0])
        except OSError as error:
            self._fall_back(error)
            return 0

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Another process that asks for the same lock waits until the end."""
        at = -1
        if self.memory is None:
            try:
                at, _ = self._begun()
            except OSError as error:
                self._fall_back(error)
        try:
            with owned.locked(at, f".{name}.lock") if at >= 0 else nullcontext():
                yield
        finally:
            if at >= 0:
                os.close(at)

    def state(self) -> str:
        """Makes the folder. Returns in a few words what is wrong with it; "" when it can be used."""
        try:
            at, _ = self._begun()
            try:
                owned.write_file(at, ".probe", b"")
                owned.remove(at, ".probe")
            finally:
                os.close(at)
        except OSError as error:
            return _words(error)
        return ""


def _words(error: OSError) -> str:
    """Returns what went wrong, for a message."""
    return error.strerror or str(error)


def _name(at: int) -> tuple[str, bytes]:
    """Returns the name that a generation in an open folder must have, and its secret. Raises: OSError (Refused)."""
    found = owned.read_file(at, "key", 64)
    if found is None:
        raise Refused("a generation without a key")
    secret, info = found
    if stat.S_IMODE(info.st_mode) != 0o600 or len(secret) != 32:
        raise Refused("the key of a generation was changed")
    return GENERATION + digest(secret, str(info.st_ino), str(info.st_ctime_ns)), secret


def _trusted(root: int, name: str) -> tuple[int, bytes] | None:
    """(a descriptor of the generation `name`, its secret); None where it is none, or not to be trusted."""
    if not OURS.fullmatch(name):
        return None
    try:
        at = owned.open_inner(root, name)
    except OSError:
        return None
    try:
        owned.look(os.fstat(at), name)
        called, secret = _name(at)
        if called == name:
            return at, secret
    except OSError:
        pass
    except BaseException:
        os.close(at)
        raise
    os.close(at)
    return None


def _sweep(root: int, keep: str) -> bool:
    """Delete all generations but one, and entries of versions without them; returns whether there was another generation."""
    found = False
    for name in os.listdir(root):
        if OURS.fullmatch(name) and name != keep:
            found = True
            shutil.rmtree(name, ignore_errors=True, dir_fd=root)
        elif re.fullmatch("[0-9a-f]{2}|tb", name):
            try:
                at = owned.open_inner(root, name)
            except OSError:
                continue
            try:
                for entry in filter(EARLIER.fullmatch, os.listdir(at)):
                    owned.remove(at, entry)
            finally:
                os.close(at)
            with suppress(OSError):
                os.rmdir(name, dir_fd=root)  # it stays where there is anything else in it
    return found


def _checked(at: int, secret: bytes, name: str) -> bytes | None:
    """The body of an entry; None when absent, and where its seal is not ours (then it is deleted and counted)."""
    try:
        found = owned.read_file(at, name, MOST, used=True)
        if found is None:
            return None
        raw, _ = found
        if not hmac.compare_digest(raw[-END:], _seal(secret, name, memoryview(raw)[:-END])):
            raise Refused("its seal is not ours: it is damaged, or another program wrote it")
    except Refused as error:
        count("cache", f"an entry is not used: {str(error).replace(name, 'it')}")
        owned.remove(at, name)
        return None
    return raw[:-END]


def _by_descriptor(at: int, name: str) -> str | None:
    """A path of an entry through the descriptor of its folder; None where the system has no such paths.

    It ends with the entry's name: the loader takes a library for one that it has loaded where the paths are equal."""
    path = f"/proc/self/fd/{at}/{name}"
    try:
        ours, there = os.fstat(at), os.stat(os.path.dirname(path))
    except OSError:
        return None
    return path if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) else None


def load_bytes(name: str, body: bytes, load: Callable[[str], T]) -> T:
    """`load(path)` of a library that lies in no folder."""
    with temporary() as folder:
        (folder / name).write_bytes(body)
        return load(str(folder / name))


def _trim(at: int, limit: int) -> tuple[int, int]:
    """Delete entries longest unused until their sizes are within the limit, and what writers that died left.

    Returns how many went, and the bytes of those that stay.
    """
    files, total, gone, now = [], 0, 0, time.time()
    with os.scandir(at) as found:
        for entry in found:
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process has renamed or deleted it meanwhile
            if entry.name.startswith("."):
                if not entry.name.endswith(".lock") and info.st_mtime < now - 86400:
                    owned.remove(at, entry.name)
            elif entry.name != "key":
                files.append((info.st_mtime, info.st_size, entry.name))
                total += info.st_size
    for _, size, name in sorted(files):
        if total <= limit:
            break
        owned.remove(at, name)
        total, gone = total - size, gone + 1
    return gone, total


def disk_of(folder: Path, limit_mb: int = 2048) -> Disk:
    """The `Disk` of a folder; one object a folder and limit, so that a fall-back holds for the process."""
    key = (str(folder), limit_mb)
    found = caches.DISKS.get(key)
    if not isinstance(found, Disk):
        found = caches.DISKS[key] = Disk(folder, limit_mb << 20)
    return found
