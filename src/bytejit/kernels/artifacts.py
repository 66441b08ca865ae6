"""What a process built and read, as bytes for another cache: `torch.compiler.save_cache_artifacts` and its counterpart.

Libraries and plans have the machine and the compiler in their keys: where these differ, what was loaded is not found. Tables of
timed choices are joined, and what the cache has already comes first. Libraries are code: load only what is yours.
"""

from __future__ import annotations

import hashlib
import json
import re

from bytejit.common import caches

from .disk import Disk

MAGIC = b"bytejit artifacts 1\n"
ENTRY = re.compile(r"[0-9a-f]{40}\.(so|sum|plan|cubin|py)|(tb-\w+\.json)")  # no name of another folder's file is one


class BadArtifacts(ValueError):
    """The bytes are not what was saved."""


def save() -> tuple[bytes, list[str]]:
    """All entries of the cache that this process wrote or read, and their names; names are in order."""
    found: dict[str, bytes] = {}
    for disk in list(caches.DISKS.values()):
        if isinstance(disk, Disk):
            bodies = ((name, disk.read(name)) for name in sorted(disk.used) if ENTRY.fullmatch(name))
            found.update((name, body) for name, body in bodies if body is not None)
    names = sorted(found)
    head = json.dumps([[name, len(found[name])] for name in names]).encode() + b"\n"
    rest = head + b"".join(found[name] for name in names)
    return MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest, names


def load(data: bytes, disk: Disk) -> list[str]:
    """Put what was saved into a cache. Returns: the names. Raises: BadArtifacts, before anything is written."""
    mark, _, rest = data.removeprefix(MAGIC).partition(b"\n")
    if not data.startswith(MAGIC) or hashlib.sha256(rest).hexdigest().encode() != mark:
        raise BadArtifacts("these are no artifacts of bytejit, or not all of them")
    head, _, bodies = rest.partition(b"\n")
    try:
        names = [(str(name), int(size)) for name, size in json.loads(head)]
    except (ValueError, TypeError):
        raise BadArtifacts("these artifacts have another form") from None
    if not all(ENTRY.fullmatch(name) and size >= 0 for name, size in names) or sum(size for _, size in names) != len(bodies):
        raise BadArtifacts("these artifacts have another form")
    at = 0
    for name, size in names:
        body = bodies[at : at + size]
        at += size
        if name.endswith(".json"):
            _join(disk, name, body)
        elif disk.read(name) is None:
            disk.write(name, body)
    return [name for name, _ in names]


def _join(disk: Disk, name: str, body: bytes) -> None:
    """A table with the entries of another; its own come first."""
    with disk.lock(name):
        own = json.loads(disk.read(name) or b"{}")
        disk.write(name, json.dumps({**json.loads(body), **own}, sort_keys=True).encode())
