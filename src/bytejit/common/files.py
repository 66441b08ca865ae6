"""Files that the user names, and that a tool writes when its work is done."""

from __future__ import annotations

from pathlib import Path


def writable(file: Path) -> None:
    """Raises: OSError where a file cannot be written; leaves nothing behind."""
    there = file.exists()
    with open(file, "a"):
        pass
    if not there:
        file.unlink()
