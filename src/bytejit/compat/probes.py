"""Whether this torch and this Python have what `table.ROWS` names, and may be compiled for.

Names are looked up in this process: microseconds. So is how memory is laid out (`layouts.py`: 5 ms), where the suite ran on
these versions; a child process that reads it imports torch first. On other versions a child reads it, and another one compiles
sample functions (`trial.py`). What a child found is kept by a store that the API gives, under a key that changes with the
binaries; a child that dies, hangs or cannot be started is a failed probe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bytejit.common import caches
from bytejit.common.registry import count

from .table import PYTHONS, REFUSED, ROWS, TORCHES, Interface

SECONDS = {"layouts": 120, "trial": 300}  # most that a child may take
MISSING = object()


class ProbeStore:
    """What was found on this machine before: `load() -> dict`, `merge(entries)`. This one remembers nothing."""

    def load(self) -> dict[str, Any]:
        """All entries of the store."""
        return {}

    def merge(self, entries: Mapping[str, object]) -> None:
        """Add entries to the store."""


@dataclass
class Probes:
    """What is known in this process. One: `PROBES`."""

    open_store: Callable[[], Any] = ProbeStore
    child: bool = False  # this process is itself a probe: it starts none

    def __post_init__(self) -> None:
        self._found: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen] = {}

    def start(self, probe: str) -> None:
        """Begin a probe beside other work, when nothing is known of it and it needs a child."""
        if probe not in self._found and probe not in self._running and not self.child and not _safe_here(probe):
            known = self.open_store().load().get(f"{probe} {key()}")
            if isinstance(known, str):
                self._found[probe] = known
            elif sys.executable:
                command = [sys.executable, "-I", "-S", "-c", BEGIN, json.dumps(search_path()), probe]
                try:
                    self._running[probe] = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                    )
                except OSError as error:
                    self._found[probe] = f"no child process can be started: {error}"
            else:
                self._found[probe] = "no child process can be started: sys.executable is empty"

    def failed(self, probe: str) -> str:
        """Returns why a probe failed; "" where it passed. Waits for it."""
        if self.child:
            return ""
        self.start(probe)
        if probe not in self._found:
            here = probe not in self._running
            found, certain = _run_here(probe) if here else _end(self._running.pop(probe), probe)
            self._found[probe] = found
            if certain and not here:
                self.open_store().merge({f"{probe} {key()}": found})
            if found:
                count("fallbacks", f"the probe {probe!r} failed: {found}")
        return self._found[probe]


def search_path() -> list[str]:
    """Where a child finds torch, bytejit and what they import, after the standard library: this process's path without
    the program's own folders, whose files may have any name (random.py, torch.py)."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {os.path.realpath(folder) for folder in ("", os.path.dirname(main) if main else "")}
    packages = [str(Path(torch.__file__).parent.parent), str(Path(__file__).parents[2])]
    return [*packages, *(os.path.abspath(p) for p in sys.path if os.path.realpath(p) not in own)]


# run with -I and -S: the path is the standard library's alone, and no variable, .pth file or working folder adds to it
BEGIN = """
import json, sys
sys.path += json.loads(sys.argv[1])
import importlib
importlib.import_module("bytejit.compat." + sys.argv[2]).main()
print("passed")
"""


def _safe_here(probe: str) -> bool:
    """Whether a probe needs no child: it reads memory that is laid out as the suite saw it on these versions."""
    return probe == "layouts" and not untested()


def _run_here(probe: str) -> tuple[str, bool]:
    """As `_end`, of a probe run in this process."""
    try:
        importlib.import_module(f"bytejit.compat.{probe}").main()
    except AssertionError as error:
        return f"AssertionError: {error}"[:300], True
    return "", True


def _end(child: subprocess.Popen, probe: str) -> tuple[str, bool]:
    """Returns why a child failed, "" where it passed; and whether it would do so again (it was not only too slow)."""
    try:
        out, error = child.communicate(timeout=SECONDS[probe])
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"it took more than {SECONDS[probe]} s", False
    if child.returncode < 0:
        return f"it died of signal {-child.returncode}", child.returncode in (-4, -6, -7, -8, -11)
    if child.returncode or not out.endswith("passed\n"):
        return (error.strip().splitlines() or ["it said nothing"])[-1][:300], True
    return "", True


PROBES = Probes()


@functools.cache
def key() -> str:
    """What the outcome of a probe depends on: the versions and binaries of Python and torch."""
    binaries: list[str | Path] = [sys.executable, Path(torch.__file__).parent / "lib" / "libtorch_python.so"]
    stats = [os.stat(b) for b in binaries if b and os.path.exists(b)]
    marks = " ".join(f"{s.st_size}.{s.st_mtime_ns}" for s in stats)
    return f"{sys.version} {platform.machine()} torch {torch.__version__} {marks} rows {len(ROWS)}"


def find(name: str) -> object:
    """The object of a dotted name; MISSING if there is none. Only the top package is imported. For a submodule that is not
    imported yet it returns the import spec: names below it are assumed to exist."""
    parts = name.split(".")
    found: object
    try:
        found = importlib.import_module(parts[0])
    except ImportError:
        return MISSING
    for n, part in enumerate(parts[1:], 2):
        inner = getattr(found, part, MISSING)
        if inner is MISSING and hasattr(found, "__path__"):
            return importlib.util.find_spec(".".join(parts[:n])) or MISSING
        found = inner
        if found is MISSING:
            return MISSING
    return found


@functools.cache
def missing() -> tuple[Interface, ...]:
    """The rows whose names this torch and this Python have not."""
    return tuple(row for row in ROWS if row.probe == "name" and find(row.name.rstrip(".")) is MISSING)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def untested() -> str:
    """What of this process is newer or older than all that the suite ran on; "" where nothing is."""
    said = []
    for name, here, (least, most) in (("torch", torch.__version__, TORCHES), ("Python", platform.python_version(), PYTHONS)):
        if not _release(least) <= _release(here) <= _release(most):
            kind = "newer" if _release(here) > _release(most) else "older"
            said.append(f"{name} {here} is {kind} than any that bytejit is tested with ({least} to {most})")
    return " and ".join(said)


def free_threaded() -> bool:
    """Whether this Python was built without the GIL: its objects lie otherwise in memory, and threads change them at any time."""
    return "t" in sys.abiflags


@functools.cache
def refused() -> str:
    """Returns why nothing is compiled in this process; "" where all that is needed is there. Warns once where it is told so.

    Costs 0.2 ms once on versions that the suite ran on; on others a child's trial, once a machine.
    """
    lost = [row.name for row in missing() if row.without == REFUSED]
    new = untested()
    if lost:
        why = f"this torch or Python has no {', '.join(lost)}" + (f" ({new})" if new else "")
    elif platform.python_implementation() != "CPython":
        why = f"{platform.python_implementation()} is no CPython"
    elif free_threaded():
        why = f"this Python {platform.python_version()} is free-threaded (built without the GIL), on which bytejit was never run"
    else:
        why = PROBES.failed("trial") if new else ""
        why = why and f"{new}; sample functions could not be compiled: {why}"
    if why:
        count("fallbacks", "this torch or Python is not supported")
        caches.warn_once("compat", f"bytejit: {why}: functions run as they are. `python -m bytejit.verify` says more")
    elif new:
        caches.warn_once("compat", f"bytejit: {new}; the probes pass, and functions are compiled")
    return why
