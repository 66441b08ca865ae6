"""Find the C++ compiler, say what is missing when there is none, and turn source text into a loaded library.

options.cxx where it is given; else $CXX, g++, clang++, c++ and zig's clang (the wheel `ziglang` brings it), in this order.
A compiler's version is remembered on disk by its path, size and time, so a warm start runs no compiler at all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from bytejit.common import caches
from bytejit.common.errors import BadSetting, BytejitError
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.registry import count

from .disk import Disk
from .json_cache import json_cache
from .machine import cpu, limits, tuning

PRELUDE = Path(__file__).parent / "prelude"


class NoCompiler(BytejitError):
    """No C++ compiler that works was found. Graphs run through torch instead."""


class NoDriver(BytejitError):
    """There is no CUDA driver that can be called. Graphs on a GPU run through torch."""


class BuildFailed(BytejitError):
    """The C++ compiler refused a unit, by a bug of bytejit or of the compiler. The message has its first errors."""


@light_dataclass(frozen=True)
class Compiler:
    """A C++ compiler. version: its own first line; gcc: whether it is GCC (else clang)."""

    path: str
    version: str
    gcc: bool
    extra: tuple[str, ...] = ()  # words after the name in $CXX: "g++ -fno-plt", "ccache g++"

    def __repr__(self) -> str:
        return f"{self.path} ({self.version})"

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of every unit.

        -fno-math-errno and -fno-trapping-math let sqrt, rint and selects become vector instructions (torch reads neither
        errno nor the exception flags). The one result that they would change is a float made whole and a float again:
        see `hidden_zero` in prelude/base.h. Contraction is off: a*b+c rounds twice as in
        eager, and the prelude says fma where it wants one. No -ffast-math: nan, infinities and signed zeros mean
        what they mean in torch. -fwrapv: integers wrap, as torch's do; without it compilers take x + 1 > x for true.
        """
        common = (
            "-std=c++17",
            "-O3",
            "-march=native",
            "-fwrapv",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-ffp-contract=off",
            "-fopenmp-simd",
            "-fPIC",
            "-shared",
            "-fno-exceptions",
            "-fno-rtti",
            "-fvisibility=hidden",
            "-w",
            "-pipe",
            *(("-mprefer-vector-width=512",) if cpu().vector_bytes == 64 else ()),  # as torch's: compilers prefer 256
            *limits()[0],
        )
        if not self.gcc:
            return common
        # unroll-and-jam took gcc a minute for one kernel of strided lanes within two loops of 32: 0.1 s without
        # partial redundancies eliminated, or jumps threaded, a comparison of what another one chose becomes a branch, and the
        # loop stays scalar: log1p(exp(x)), argmin(maximum(0, x)), the places of a max pool's greatest elements. And of a path on
        # which no index is out of range (the pad of `x[pad(i)]`) GCC 12 for AVX-512 made a masked operation of threaded jumps,
        # and put bits of other values into the fault
        own = (
            "-fno-semantic-interposition",
            "-fno-asynchronous-unwind-tables",
            "-fno-loop-unroll-and-jam",
            "-fno-tree-pre",
            "-fno-thread-jumps",
            # a unit takes nothing from libstdc++ and no part in optimisation of whole programs: a sixth of a small unit's time
            # is spent on reading that library and on starting the linker's plugin
            "-fno-threadsafe-statics",
            "-nodefaultlibs",
            "-fno-use-linker-plugin",
            *tuning(),
        )
        # GCC 13 puts conditions of neighbouring elements side by side as 1, and reads them as masks: an index out of range of a
        # row of three passed its check. 12 and 14 do not
        return (*common, *own, *(("-fno-tree-slp-vectorize",) if self.major == 13 else ()))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The words behind a unit that name what it is linked with."""
        return ("-lm", "-lc", "-lgcc") if self.gcc else ("-lm",)

    @property
    def major(self) -> int:
        """13 of "g++ (Ubuntu 13.3.0-6ubuntu2) 13.3.0"; 0 where the line does not say."""
        numbers = re.findall(r"\b(\d+)\.\d+\.\d+", self.version)
        return int(numbers[-1]) if numbers else 0


def candidates() -> list[str]:
    """Command lines to try, in order, where the user names none."""
    return [c for c in (os.environ.get("CXX", ""), "g++", "clang++", "c++", "zig c++", "python-zig c++") if c.strip()]


def compiler_here(disk: Disk, cxx: str = "") -> Compiler | None:
    """The first compiler that runs; with `cxx`, that one; None where there is none."""
    key = "\0".join([cxx, os.environ.get("CXX", ""), os.environ.get("PATH", "")])
    if key not in caches.COMPILERS:
        probed = (_probe(command, disk) for command in ([cxx] if cxx.strip() else candidates()))
        caches.COMPILERS[key] = next((c for c in probed if c is not None), None)
    found = caches.COMPILERS[key]
    return found if isinstance(found, Compiler) else None


def find_compiler(disk: Disk, cxx: str = "") -> Compiler:
    """`compiler_here`. Raises: NoCompiler, after one warning that says what to install; BadSetting where there is no compiler
    `cxx`."""
    compiler = compiler_here(disk, cxx)
    if compiler is None and cxx.strip():
        raise BadSetting(
            f"{cxx!r}, which BYTEJIT_CXX (the option cxx) names, is no C++ compiler that runs: correct it, or unset "
            "it to have $CXX, g++ and clang++ looked for"
        )
    if compiler is None:
        message = (
            f"bytejit: no C++ compiler found (tried {', '.join(candidates())}): graphs run through torch, unfused. "
            "Install g++ (apt install g++, dnf install gcc-c++), clang++ or zig, or set BYTEJIT_CXX to one."
        )
        caches.warn_once("no compiler", message)
        count("fallbacks", "no C++ compiler")
        raise NoCompiler(message)
    return compiler


def _probe(command: str, disk: Disk) -> Compiler | None:
    words = shlex.split(command)
    path = shutil.which(words[0])
    if path is None:
        return None
    info = os.stat(path)
    key = f"{os.path.realpath(path)} {info.st_size} {info.st_mtime_ns} {' '.join(words[1:])}"
    table = json_cache("compilers", disk.wanted, disk.limit >> 20)
    version = table.load().get(key)
    if version is None:
        try:
            done = subprocess.run([path, *words[1:], "--version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode or not done.stdout.strip():
            return None
        version = done.stdout.splitlines()[0].strip() + (" clang" if "clang" in done.stdout else "")
        table.merge({key: version})
    return Compiler(path, version, "clang" not in version, tuple(words[1:]))
