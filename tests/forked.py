"""Programs in processes of their own, which start with what they all import: a second instead of four for a start of Python.

One process of Python imports modules and does nothing else; each program runs in a fork of it, with its own environment,
folder, arguments and `__main__`, and ends as Python ends. What a library reads from the environment when it is imported is
that of the first process: a program that says otherwise for torch needs `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

# Reads a line a job and writes its exit status. A job leaves the loop as a child, and is the rest of the program there.
SERVER = """
import importlib, json, os, runpy, sys, types, warnings
for name in sys.argv[1:]:
    importlib.import_module(name)
replies = os.dup(1)
given = lambda: [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
paths = [p for p in sys.path[1:] if p not in given()]
for line in sys.stdin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: none of ours holds a lock
        child = os.fork()
    if not child:
        break
    os.write(replies, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit()
job = json.loads(line)
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["env"])
for number, name in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
os.close(replies)
kind, *arguments = job["command"]
first = os.path.dirname(os.path.abspath(kind)) if kind not in ("-c", "-m") else "" if kind == "-c" else os.getcwd()
sys.path[:] = [first, *dict.fromkeys(given()), *paths]  # once each, as Python does
sys.orig_argv = [sys.executable, *job["command"]]
if "bytejit" in sys.modules:
    sys.modules["bytejit"].config.reload()
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__builtins__ = __builtins__
try:
    if kind == "-m":
        sys.argv = ["-m", *arguments[1:]]  # as Python says it until the module is found
        runpy._run_module_as_main(arguments[0])
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, main.__file__ = [kind, *arguments], kind
        exec(compile(open(kind).read(), kind, "exec"), main.__dict__)
except Exception as error:
    sys.excepthook(type(error), error, error.__traceback__.tb_next)
    sys.exit(1)
"""

# what the first compile of a process imports: for programs that are not about that
COMPILER = ("torch", "bytejit", "bytejit.pipeline", "bytejit.backends.inductor")


@functools.cache
def _server(preload: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The process that has imported these modules, until this one ends."""
    command = [sys.executable, "-c", SERVER, *preload]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.stdin.close()
    process.wait(60)


def run_forked(
    *command: str | Path, cwd: Path | None = None, timeout: float = 600, preload: tuple[str, ...] = ("torch",), **environ: str
) -> subprocess.CompletedProcess[str]:
    """What `python COMMAND` would do: `-c CODE`, `-m MODULE ...` or `FILE ...`. environ: what differs from ours.

    Raises: AssertionError where it does not end in time; then it is killed.
    """
    server = _server(preload)
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        job = {"command": [*map(str, command)], "env": {**os.environ, **environ}, "out": str(out), "err": str(err)}
        server.stdin.write(json.dumps({**job, "cwd": str(cwd or os.getcwd())}).encode() + b"\n")
        ready = select.select([server.stdout], [], [], timeout)[0]
        reply = server.stdout.readline() if ready else b""
        if not reply:
            os.killpg(server.pid, 9)
            server.wait()
            _server.cache_clear()
        said = [path.read_text() if path.exists() else "" for path in (out, err)]
        assert reply, f"{command} did not end in {timeout} s, or its parent died: {said}"
        return subprocess.CompletedProcess([*map(str, command)], int(reply), *said)
