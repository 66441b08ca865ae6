"""Facts about this machine, which the schedule and the keys of the kernel cache need."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Cpu:
    """This machine's CPU. Units: vector_bytes, l2 in bytes (0: unknown); cores: those this process may use."""

    name: str
    arch: str  # "x86_64", "aarch64", ...
    flags: frozenset[str]
    vector_bytes: int
    cores: int
    l2: int

    def __repr__(self) -> str:
        size = f"{self.vector_bytes * 8} bit vectors, {self.cores} cores, L2 {self.l2 >> 10} KiB"
        return f"Cpu({self.name}, {self.arch}, {size})"

    @property
    def key(self) -> str:
        """A short hash of what `-march=native` depends on."""
        text = " ".join([self.arch, self.name, *sorted(self.flags)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpuinfo() -> tuple[str, frozenset[str]]:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            text = f.read(1 << 14)  # the first core's part: the whole file takes tens of milliseconds on a big machine
    except OSError:
        return name, frozenset()
    first = text.split("\n\n", 1)[0]
    rows = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in first.splitlines())}
    for key in ("model name", "Model", "CPU part"):
        if key in rows:
            name = " ".join(rows.get(k, "") for k in (key, "cpu family", "model", "stepping")).strip()
            break
    return name, frozenset((rows.get("flags") or rows.get("Features") or "").split())


def _l2_size() -> int:
    """Bytes of the first core's cache of level 2; 0 when the system does not say."""
    for index in range(6):
        folder = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}")
        try:
            if int((folder / "level").read_text()) != 2 or (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            return 0
        return int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]] if size[-1] in "KM" else int(size)
    return 0


def _vector_bytes(flags: frozenset[str]) -> int:
    if "avx512f" in flags and "avx512dq" in flags and "avx512bw" in flags and "avx512vl" in flags:
        return 64
    if "avx2" in flags:
        return 32
    return 16


# ATEN_CPU_CAPABILITY, by which a user keeps torch's own kernels from newer instructions, holds for ours: its value -> the
# compiler's flags, and what of /proc/cpuinfo's flags they take away
CAPABILITIES = {"avx2": (("-mno-avx512f",), ("avx512",)), "default": (("-mno-avx",), ("avx", "fma", "f16c", "vaes", "vpclmul"))}


def limits() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(flags of the compiler, beginnings of the CPU's flags) that the user's ATEN_CPU_CAPABILITY rules out."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return CAPABILITIES.get(os.environ.get("ATEN_CPU_CAPABILITY", "").lower(), ((), ())) if x86 else ((), ())


@functools.cache
def cpu() -> Cpu:
    """This machine's CPU, read once."""
    arch = platform.machine()
    name, flags = _cpuinfo()
    flags = frozenset(f for f in flags if not f.startswith(limits()[1])) if limits()[1] else flags
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Cpu(name, arch, flags, _vector_bytes(flags), cores, _l2_size())


# "Not affected", or that gathers are slow by what has been done about it; absent: a kernel that does not say
SAMPLED = Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling")


@functools.cache
def tuning() -> tuple[str, ...]:
    """Flags of GCC for a CPU that loads the lanes of a gather at once, twice to four times as fast as one by one. GCC 12 takes a
    CPU that it does not know for a generic one, for which it makes no gathers."""
    try:
        fast = SAMPLED.read_text().startswith("Not affected")
    except OSError:
        return ()
    return ("-mtune=icelake-server",) if fast and "Intel" in cpu().name and "avx2" in cpu().flags else ()
