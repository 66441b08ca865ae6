"""Files that no other user can have written: every folder on the path to one is opened by descriptor and checked.

A folder of ours belongs to this user and is not writable by others. The same holds for a file of ours, which is a regular file.
The folders above belong to this user or to root and are not writable by others, or are sticky (/tmp), or writable by the user's
own group of one. Links are followed one by one, where the folder that holds them is such a one. All names below an opened
folder are relative to its descriptor, so swapping a folder after the check has no effect.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe does not wait
OTHERS = stat.S_IWGRP | stat.S_IWOTH
LINKS = 40  # links on the way to a folder, as in the kernel
SUPPORTED = {os.open, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd and hasattr(os, "geteuid")


class Refused(OSError):
    """A file or folder that somebody else may have made or changed. Says why."""


def open_folder(path: Path, make: bool = True) -> int:
    """A descriptor of a folder of ours. make: folders that are missing are made, private.

    Raises: Refused; OSError (FileNotFoundError without `make`)."""
    at = _walk(path, make)
    try:
        look(os.fstat(at), str(path))
    except BaseException:
        os.close(at)
        raise
    return at


def _walk(path: Path, make: bool) -> int:
    """A descriptor of a folder that no other user can replace. Raises: Refused, OSError."""
    if not SUPPORTED:
        raise Refused("this system opens no files relative to a folder")
    waiting, links = [*reversed(Path(os.path.abspath(path)).parts[1:])], 0
    at, shown = os.open("/", FOLDER), Path("/")
    try:
        _look_above(at, shown)
        while waiting:
            name = waiting.pop()
            try:
                inner = open_inner(at, name, make)
                shown = shown.parent if name == ".." else shown / name
            except OSError as error:
                target, links = _link(at, name, shown / name, error), links + 1
                if links > LINKS:
                    raise Refused(f"too many links on the way to {path}") from None
                waiting += [part for part in reversed(target.parts) if part != "/"]
                if not target.is_absolute():
                    continue
                inner, shown = os.open("/", FOLDER), Path("/")
            os.close(at)
            at = inner
            _look_above(at, shown)
    except BaseException:
        os.close(at)
        raise
    return at


def open_inner(at: int, name: str, make: bool = False) -> int:
    """A descriptor of a folder in an open one. No link is followed, and it is not checked. make: a missing one is made,
    private."""
    try:
        return os.open(name, FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        pass  # made by another process meanwhile
    return os.open(name, FOLDER, dir_fd=at)


def look(info: os.stat_result, shown: str) -> None:
    """Raise Refused where a file or folder belongs to somebody else, or others may write to it."""
    if info.st_uid != os.geteuid():
        raise Refused(f"another user owns {shown}: what is in it would run as you")
    if info.st_mode & OTHERS:
        raise Refused(f"others may write to {shown}: what they put there would run as you (chmod go-w)")


def _look_above(at: int, shown: Path) -> None:
    """Raise Refused where somebody else could put another folder in the place of one in this folder."""
    info = os.fstat(at)
    if info.st_uid not in (os.geteuid(), 0, _unmapped_root()):
        raise Refused(f"another user owns {shown}, and could put a folder of theirs in the place of one in it")
    shared = info.st_mode & OTHERS
    if shared and not info.st_mode & stat.S_ISVTX and not (shared == stat.S_IWGRP and _group_of_one(info.st_gid, os.geteuid())):
        raise Refused(f"others may write to {shown}, and could put a folder of theirs in the place of one in it (chmod go-w)")


@functools.cache
def _group_of_one(group: int, user: int) -> bool:
    """Whether a group is the user's own: it has the user's name, and no other member. Many systems make such a group for each
    user, with a umask that lets it write."""
    import grp
    import pwd

    try:
        found, me = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    others = {p.pw_name for p in pwd.getpwall() if p.pw_gid == group} | set(found.gr_mem)
    return found.gr_name == me.pw_name and me.pw_gid == group and others <= {me.pw_name}


@functools.cache
def _unmapped_root() -> int:
    """The user that root's files seem to belong to in a user namespace without root (a sandbox); 0 elsewhere."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return 0
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0


def _link(at: int, name: str, shown: Path, error: OSError) -> Path:
    """Where the link that could not be opened as a folder points to. Raises: `error` where it is no link; Refused."""
    try:
        info = os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        raise error from None
    if not stat.S_ISLNK(info.st_mode):
        raise error
    if info.st_uid not in (os.geteuid(), 0, _unmapped_root()):
        raise Refused(f"another user made the link {shown}")
    return Path(os.readlink(name, dir_fd=at))


def read_file(at: int, name: str, most: int, used: bool = False) -> tuple[bytes, os.stat_result] | None:
    """The content of a file of ours in an open folder, and its stat; None where there is none. most: bytes. used: its times are
    set to now.

    Raises: Refused (a link, a pipe, another user's, writable by others, larger than `most`)."""
    try:
        fd = os.open(name, os.O_RDONLY | FILE, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{name} cannot be opened: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Refused(f"{name} is no regular file")
        look(info, name)
        if info.st_size > most:
            raise Refused(f"{name} has more than {most >> 20} MiB")
        if used:
            with suppress(OSError):  # a read-only folder still serves; only the age of what is in it is not kept
                os.utime(fd)
        parts, left = [], info.st_size
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), info
    finally:
        os.close(fd)


def write_file(at: int, name: str, body: bytes) -> None:
    """Write a file in an open folder atomically: a reader sees all of it, or what was there before. Raises: OSError."""
    temp = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o600, dir_fd=at), "wb") as file:
            file.write(body)
        os.replace(temp, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        remove(at, temp)
        raise


def remove(at: int, name: str) -> None:
    """Delete a file in an open folder, if it is there. What cannot be deleted is renamed."""
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except OSError:  # a folder
        with suppress(OSError):  # it may not be renamed either: a write will fail, and say so
            os.rename(name, f".{os.urandom(8).hex()}", src_dir_fd=at, dst_dir_fd=at)


@contextmanager
def locked(at: int, name: str) -> Iterator[None]:
    """An exclusive lock on a file in an open folder, where the system has locks; elsewhere the last write wins."""
    fd = -1
    try:
        import fcntl

        fd = os.open(name, os.O_RDWR | os.O_CREAT | FILE, 0o600, dir_fd=at)
        info = os.fstat(fd)
        look(info, name)
        if stat.S_ISREG(info.st_mode):
            fcntl.flock(fd, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def temporary_root() -> str:
    """The folder in which temporary folders are made: the system's; if other users could replace files there, /tmp or
    /var/tmp. Raises: Refused if they could in all of them."""
    import tempfile

    reasons = []
    for root in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        try:
            os.close(_walk(Path(root), make=False))
            return root
        except OSError as error:
            reasons.append(str(error))
    raise Refused(f"no place for temporary files: {reasons[0]}")
