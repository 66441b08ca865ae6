"""The prelude as the compiler has read it once: a fifth of the time of a small unit goes into reading it.

GCC is given a precompiled header from some units on that a process builds. It is made beside the next units, in a folder of
this process, and never waited for. Until it is there, where it cannot be made, and with other compilers, units read the text:
the same unit comes of both.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from contextlib import ExitStack, suppress

from bytejit.common import caches

from .build import PRELUDE, Compiler
from .scratch import temporary

HEADER = "glue.h"  # what units of kernels and of guards begin with
AFTER = 3  # units built by this process: for fewer it costs more than it saves


class Precompiled:
    """The header of one compiler, which is being made or has been. Nothing is waited for."""

    def __init__(self, compiler: Compiler) -> None:
        self.owner, self.ready = os.getpid(), False
        self.held = ExitStack()
        self.folder = self.held.enter_context(temporary())
        self.part = self.folder / "part"
        command = [
            compiler.path,
            *compiler.flags,
            f"-I{PRELUDE}",
            "-x",
            "c++-header",
            str(PRELUDE / HEADER),
            "-o",
            str(self.part),
        ]
        env = {**os.environ, "LC_ALL": "C", "TMPDIR": str(self.folder)}
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=env)
        atexit.register(self.end)

    def __repr__(self) -> str:
        return f"Precompiled({self.folder}, {'ready' if self.ready else 'not ready'})"

    def look(self) -> bool:
        """Whether units can use it. A child that was forked while it was made never does: it cannot see the end."""
        if not self.ready and os.getpid() == self.owner and self.process.poll() == 0:
            with suppress(FileNotFoundError):  # another thread was first
                self.part.rename(self.folder / f"{HEADER}.gch")
            self.ready = True
        return self.ready

    def end(self) -> None:
        """Delete it, in the process that made it."""
        if os.getpid() == self.owner:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.held.close()


def include_words(compiler: Compiler, units: int) -> list[str]:
    """The words that lead the compiler to the prelude. units: how many it is about to build."""
    words = [f"-I{PRELUDE}"]
    if not compiler.gcc or compiler.extra:
        return words
    key = (compiler.path, *compiler.flags)
    found = caches.PRECOMPILED.setdefault(key, 0)
    if isinstance(found, int):
        caches.PRECOMPILED[key] = found + units
        if found >= AFTER:
            try:
                caches.PRECOMPILED[key] = Precompiled(compiler)
            except OSError:  # no room, or no more processes: units read the text
                caches.PRECOMPILED[key] = None
    elif isinstance(found, Precompiled) and found.look():
        words.insert(0, f"-I{found.folder}")
    return words
