"""Tables of JSON values in the cache on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .disk import Disk, disk_of


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
        table = json.loads(body) if body is not None else {}
        return table if isinstance(table, dict) else {}

    def merge(self, entries: Mapping[str, object]) -> None:
        """Add or replace entries."""
        with self.disk.lock(self.name):
            table = self.load()
            table.update(entries)
            self.disk.write(self.name, json.dumps(table, sort_keys=True).encode())


def json_cache(name: str, folder: Path, limit_mb: int = 2048) -> JsonCache:
    """The table `name` in the cache of `folder`: `load() -> dict`, `merge(entries)`."""
    return JsonCache(disk_of(folder, limit_mb), name)
