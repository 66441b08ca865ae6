"""Temporary folders, deleted at the end; those of processes that were killed are deleted by the next one that needs a folder.

A folder in use is locked by the process that made it, and a lock ends with its process. A folder of ours that is an hour old
and not locked is nobody's.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .owned import FOLDER, temporary_root

PREFIX = "bytejit-"
OURS = re.compile(PREFIX + "[a-z0-9_]{8}")  # as tempfile names them
NEW = 3600  # seconds in which a folder may not be locked yet


@contextmanager
def temporary() -> Iterator[Path]:
    """A new private folder for what is compiled, deleted at the end by the process that made it. Raises: as `temporary_root`."""
    import tempfile

    root = temporary_root()
    _sweep(root)
    made, owner = tempfile.mkdtemp(prefix=PREFIX, dir=root), os.getpid()
    lock = os.open(made, FOLDER)
    try:
        _locked(lock)
        yield Path(made)
    finally:
        if os.getpid() == owner:  # not in a child that was forked meanwhile
            shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _locked(fd: int) -> bool:
    """Lock an open folder, without waiting. Returns: whether it is ours now; False, too, where the system has no locks."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


@functools.cache
def _sweep(root: str) -> None:
    """Delete what processes of this user left when they were killed; once in a process."""
    with suppress(OSError), os.scandir(root) as found:
        for name in [entry.name for entry in found if OURS.fullmatch(entry.name)]:
            with suppress(OSError):
                _delete(os.path.join(root, name))


def _delete(path: str) -> None:
    """Delete a folder if it is ours and no running process uses it. Raises: OSError."""
    fd = os.open(path, FOLDER)
    try:
        info = os.fstat(fd)
        ours = info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) == 0o700 and info.st_mtime < time.time() - NEW
        if ours and _locked(fd):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)
