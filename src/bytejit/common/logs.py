"""Lines for the user as things happen (BYTEJIT_LOGS, TORCH_LOGS), to stderr or a file, and faults of bytejit's own."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from . import caches, torch_options
from .errors import backend_name
from .options import LOG_FILE, LOG_JSON, LOG_KINDS, Options, config
from .registry import count
from .text import indent
from .where import Where

_said: set[str] = set()  # owner: fault; size: one entry a distinct fault; cleared by forget()


def wanted(kind: str, options: Options | None = None) -> bool:
    """Whether a kind of log is on: ask before building a long text. Raises: ValueError for an unknown kind."""
    if kind not in LOG_KINDS:
        raise ValueError(f"no kind of log is called {kind!r}")
    return kind in (options or config.current).logs or torch_options.asked_of_torch(kind)


def log(kind: str, text: str, where: Where | None = None, options: Options | None = None) -> None:
    """Print an event when its kind is on: `[bytejit breaks] model.py:14 in forward: ...`, to stderr or the file that is named."""
    if not wanted(kind, options):
        return
    text, to = text.strip("\n"), (options or config.current).logs
    file = next((item.removeprefix(LOG_FILE) for item in to if item.startswith(LOG_FILE)), "")
    as_json = LOG_JSON in to or file.endswith((".json", ".jsonl"))
    line = json_line(kind, text, where) if as_json else text_line(kind, text, where)
    if file:
        try:
            with open(file, "a", encoding="utf-8") as out:  # anew for each event: other processes append to it, too
                out.write(line + "\n")
            return
        except OSError as e:
            caches.warn_once(f"log {file}", f"bytejit: the log cannot be written, and goes to stderr: {e}")
    print(line, file=sys.stderr, flush=True)


def text_line(kind: str, text: str, where: Where | None) -> str:
    """An event, printed for users."""
    head = f"[bytejit {kind}]" + (f" {where}" if where is not None else "")
    return f"{head}\n{indent(text)}" if "\n" in text else f"{head}  {text}"


def json_line(kind: str, text: str, where: Where | None) -> str:
    """An event for programs, on one line. Units: seconds since 1970."""
    place = {}
    if where is not None:
        place = {"file": where.file, "line": where.line, "function": where.function, "source": where.source.strip()}
    return json.dumps({"time": time.time(), "process": os.getpid(), "kind": kind, **place, "text": text})


def warn_once(key: str, text: str) -> None:
    """Warn the user once a process about one thing: what, and what to do."""
    caches.warn_once(key, f"bytejit: {text}")


def fault(error: BaseException, doing: str, where: Where | None = None, options: Options | None = None) -> None:
    """An internal fault of bytejit: counted and logged once with a way to report it, and the original code runs.

    Raises: the error itself when `suppress_errors` is off.
    """
    options = options or config.current
    if not options.suppress_errors:
        raise error
    last = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
    place = f" ({last[0].filename.rpartition('bytejit/')[2]}:{last[0].lineno})" if last else ""
    what = f"{type(error).__name__} while {doing}{place}"
    count("faults", what)
    if what in _said:
        return
    _said.add(what)
    print(
        f"[bytejit fault] {what}: {str(error).splitlines()[0] if str(error) else ''}\n"
        f"  where  {where if where is not None else 'not known'}\n"
        f"  why    a fault of bytejit, not of your code; the original code runs instead\n"
        "  do     report it with the traceback that BYTEJIT_SUPPRESS_ERRORS=0 shows",
        file=sys.stderr,
        flush=True,
    )


def backend_place(backend: object) -> str:
    """Returns what a backend was doing, for the note on an exception that it raised."""
    return f"backend {backend_name(backend)!r} compiled the graph"


def ran_place(backend: object) -> str:
    """Returns what a backend was doing, for the note on an exception that its callable raised."""
    return f"what backend {backend_name(backend)!r} made of the graph ran"


def forget() -> None:
    """Say again what was said once: for tests and `reset()`."""
    _said.clear()
