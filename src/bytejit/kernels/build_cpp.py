"""C++ units -> loaded libraries. Compilers run in parallel; the disk cache keeps each library under the hash of its inputs."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bytejit.common import caches
from bytejit.common.errors import BytejitError
from bytejit.common.interrupts import poll
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import Options

from .build import PRELUDE, BuildFailed, Compiler, candidates, find_compiler
from .disk import digest, disk_of, load_bytes
from .launch import load
from .machine import cpu
from .precompiled import include_words
from .scratch import temporary

POLL = 0.2  # seconds between two looks for signals
COMMENT = re.compile(r'  // [^"\\\n]*$', re.MULTILINE)  # of a line that holds no string behind it
FORMAT = "1"  # of the units and of how they are called: raise it when either changes


@light_dataclass(frozen=True)
class Built:
    """Loaded units. calls: the methods of each unit by name; cached: units that needed no compiler. Units: seconds."""

    calls: tuple[dict[str, Callable], ...]
    cached: int
    seconds: float
    files: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"built {len(self.calls)} units, {self.cached} from the cache, {self.seconds:.2f} s"


@functools.cache
def prelude_key() -> str:
    """The hash of our headers."""
    return digest(*(part for h in sorted(PRELUDE.glob("*.h")) for part in (h.name, h.read_bytes())))


def unit_key(text: str, compiler: Compiler) -> str:
    """The key of a unit's binary: text, headers, flags, compiler, CPU, calling convention. The program's lines, which stand in
    comments of the text, change nothing: a kernel is found again where other lines of the program have moved it."""
    flags = " ".join(compiler.flags + compiler.extra + compiler.libraries)
    return digest(FORMAT, COMMENT.sub("", text), prelude_key(), flags, compiler.version, cpu().key, sys.platform)


def ahead(unit: str, options: Options) -> None:
    """Start to build a unit in a thread, because it will be needed soon; `build` waits for it. Without a compiler nothing is
    started, and the later request raises the error."""

    def work() -> None:
        try:
            build((unit,), options)
        except BytejitError:
            pass  # whoever asks for the unit meets the same error, and tells it
        finally:
            caches.BUILDING.pop(unit, None)

    here = any(shutil.which(shlex.split(command)[0]) for command in ([options.cxx] if options.cxx.strip() else candidates()))
    if here and unit not in caches.BUILDING:
        thread = caches.BUILDING[unit] = threading.Thread(target=work, daemon=True)
        thread.start()


def functions(unit: str, options: Options) -> dict[str, Callable]:
    """The functions of one unit, from the cache when it was built before. Raises: NoCompiler, BuildFailed."""
    return build((unit,), options).calls[0]


def build(units: Sequence[str], options: Options) -> Built:
    """Compile (or find) and load units of C++ text. Raises: NoCompiler, BuildFailed."""
    start = time.perf_counter()
    for thread in filter(None, map(caches.BUILDING.get, units)):
        if thread is not threading.current_thread():
            while thread.is_alive():
                poll()
                thread.join(POLL)
    caches.say_unsaid()
    disk = disk_of(options.cache_path, options.cache_mb)
    compiler = find_compiler(disk, options.cxx)
    keys = [unit_key(text, compiler) for text in units]
    found = {key: caches.LIBRARIES[key] for key in keys if key in caches.LIBRARIES}
    for key in dict.fromkeys(key for key in keys if key not in found):
        if (loaded := disk.load(key + ".so", load)) is not None:
            found[key] = loaded
    missing = {key: text for key, text in zip(keys, units) if key not in found}
    for key, body in (_compile(missing, compiler) if missing else {}).items():
        disk.write(key + ".so", body)
        loaded = disk.load(key + ".so", load)
        found[key] = load_bytes(key + ".so", body, load) if loaded is None else loaded  # deleted again by another process
    caches.LIBRARIES.update(found)
    if missing:
        disk.trim()
    cached = sum(key not in missing for key in keys)
    return Built(
        tuple(found[key] for key in keys), cached, time.perf_counter() - start, tuple(str(disk.path(key + ".so")) for key in keys)
    )


def _compile(units: dict[str, str], compiler: Compiler) -> dict[str, bytes]:
    """Run the compiler on each unit, all at once, at most one a core at a time. Returns libraries by key.

    A compiler that ended without a message about the unit (it was killed, or the system had no memory) runs once more,
    alone.
    """
    done: dict[str, bytes] = {}
    most, again = max(cpu().cores, 1), set()
    includes = include_words(compiler, len(units))
    with temporary() as work:
        waiting = list(units.items())
        running: list[tuple[str, subprocess.Popen, Path]] = []
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    key, text = waiting.pop(0)
                    running.append((key, *_start(key, text, compiler, includes, work)))
                key, process, out = running[0]
                message = _errors_of(process)
                running.pop(0)
                if process.returncode and f"{key}.cpp:" not in message and key not in again:
                    again.add(key)
                    waiting.append((key, units[key]))
                    most = 1
                    continue
                if process.returncode:
                    raise BuildFailed(_explain(compiler, message, units[key]))
                done[key] = out.read_bytes()
        finally:
            for _, other, _ in running:
                other.kill()
                other.communicate()
    return done


def _errors_of(process: subprocess.Popen) -> str:
    """What a compiler wrote, once it has ended. Raises: Interrupted; a Ctrl-C may have ended the compiler too."""
    while True:
        try:
            message = process.communicate(timeout=POLL)[1]
        except subprocess.TimeoutExpired:
            poll()
        else:
            poll()
            return message


def _start(key: str, text: str, compiler: Compiler, includes: list[str], work: Path) -> tuple[subprocess.Popen, Path]:
    source, out = work / f"{key}.cpp", work / f"{key}.so"
    source.write_text(text)
    command = [compiler.path, *compiler.extra, *compiler.flags, *includes, str(source), "-o", str(out), *compiler.libraries]
    env = {**os.environ, "LC_ALL": "C", "TMPDIR": str(work)}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, text=True, env=env)
    return process, out


def _explain(compiler: Compiler, message: str, text: str) -> str:
    """The first errors, each with the line of the unit that it names."""
    lines = text.splitlines()
    shown = []
    for line in message.splitlines():
        if " error: " not in line and "fatal error" not in line:
            continue
        place = line.split(":")
        number = next((int(p) for p in place[1:3] if p.isdigit()), 0)
        shown.append(f"  {line}")
        if ".cpp" in place[0] and 0 < number <= len(lines):
            shown.append(f"    {lines[number - 1].strip()}")
        if len(shown) >= 6:
            break
    return "\n".join([f"{compiler} refused a unit", *(shown or [message[-2000:]])])
